"""Report measurements as rows, tables, plots and pages."""
