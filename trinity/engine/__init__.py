"""Inference engines and their creation. Imports no torch."""
