"""Checkpoints of other code bases as models of this package."""
