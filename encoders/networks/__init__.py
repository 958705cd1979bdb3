"""Encoder networks as torch modules. Other folders load and run these networks."""
