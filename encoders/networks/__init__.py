"""Networks of the encoders, apart from how they are loaded and run."""
