"""The report page: certificates as one HTML file, for the person who signs."""
