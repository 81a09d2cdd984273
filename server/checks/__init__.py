"""Checks of the certificates on clients and networks that nobody asked."""
