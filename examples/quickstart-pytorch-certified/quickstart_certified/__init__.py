"""Flower's PyTorch quickstart on handwritten digits, with a certificate for clients that nobody has measured."""
