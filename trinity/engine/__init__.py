"""Engines: what computes the answers of a model, and how a run gets one from its configuration. Imports no torch."""
