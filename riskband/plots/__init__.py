"""Figures, made from certificates alone."""
