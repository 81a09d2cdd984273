"""Checks of the certificates on clients and networks that were not asked."""
