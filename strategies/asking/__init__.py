"""Asking: one question to all clients, their replies checked, kept and counted."""
