"""Worst cases before the last linear layer, where they can be computed exactly or bounded closely."""
