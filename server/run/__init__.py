"""A run's folder: its lock, ledger, events, traffic and progress."""
