"""What one client can answer, and the ClientApp that answers it."""
