"""Attacks: examples moved so that the loss is high; what they find is a lower bound of the worst case."""
