"""The server's side of secure aggregation."""
