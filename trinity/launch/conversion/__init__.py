"""Checkpoints as folders that other programs read, and of other programs."""
