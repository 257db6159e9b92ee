"""Ranks that share the training of one model.

Rows, sequences, matrices, layers and checkpoints are divided over them.
"""
