"""Experiments of [DC]: how unequal losses are, and groups."""
