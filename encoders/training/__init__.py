"""Training of the encoders: the loss, the data and the loop."""
