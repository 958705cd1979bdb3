"""Published checkpoints to model folders."""
