"""Levels of a band that are chosen for one functional."""
