"""Experiments of [RE]: unseen clients, target networks, and clients that were moved."""
