"""Run networks: model folders, batching, devices and encoders."""
