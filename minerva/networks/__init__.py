"""Torch modules that policies and critics are built of."""
