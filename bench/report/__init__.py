"""Reports: rows of measurements, tables, plots, and pages."""
