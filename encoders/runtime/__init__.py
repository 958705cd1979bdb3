"""What runs a network: model folders, batches, devices."""
