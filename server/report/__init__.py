"""The report and its table."""
