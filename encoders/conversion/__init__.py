"""Convert published checkpoints to model folders."""
