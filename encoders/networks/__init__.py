"""The networks of the encoders as torch modules; loading and running them is elsewhere."""
