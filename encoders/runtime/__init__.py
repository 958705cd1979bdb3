"""Running a network: model folders, batches, devices, and the encoder around it."""
