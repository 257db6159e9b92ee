"""Checks of a workflow before a long run: `trinity env-check`."""
