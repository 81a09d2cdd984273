"""Adversaries: how bad a client's loss gets when its examples may move, over all cost budgets at once."""
