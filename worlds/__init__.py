"""Simulated networks: the clients, and the truth that a certificate about them is checked against.

A client distribution is a real pool of images under a shift drawn for that client alone, so the
clients are i.i.d. draws from one meta-distribution by construction and the exact risk of each can be
computed. ``datasets`` → ``shifts`` → ``population`` build the data, ``training`` the
evaluated model.
"""
