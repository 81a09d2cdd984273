"""Bands of several groups of clients and comparisons between groups."""
