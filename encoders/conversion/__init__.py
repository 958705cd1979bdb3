"""Conversion of published checkpoints to model folders."""
