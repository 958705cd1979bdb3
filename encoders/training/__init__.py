"""Training of the encoders: objectives, data, recipes, and the training loop."""
