"""Synchronization of explorer and trainer: schedule and weights.

Decides which side waits for the other, and moves weights from the trainer to the explorer.
"""
