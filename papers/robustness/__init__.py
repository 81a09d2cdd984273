"""Attacks and proofs on models that move inputs: what each leaves standing, beside what is certified."""
