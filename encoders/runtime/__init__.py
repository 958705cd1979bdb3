"""Run networks: model folders, batches, devices, and encoders."""
