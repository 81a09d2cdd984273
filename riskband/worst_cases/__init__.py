"""Worst networks: reweighted within an f-divergence, or moved within a Wasserstein distance."""
