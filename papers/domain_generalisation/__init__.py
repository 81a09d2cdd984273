"""Experiments of [DG]: digits at two angles, and domains at a distance from them."""
