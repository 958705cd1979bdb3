"""The networks of the encoders as torch modules. Other folders load and run them."""
