"""Inference engines and their creation from a configuration.

Imports no torch.
"""
