"""From rows of measurements to pages."""
