"""Proofs: upper bounds of the loss of examples that move, from Lipschitz constants and linear relaxations."""
