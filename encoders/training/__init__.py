"""Train encoders: objectives, data, recipes and the training loop."""
