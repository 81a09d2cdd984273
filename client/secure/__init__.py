"""A client's part in the rounds of secure aggregation, and what it remembers between them."""
