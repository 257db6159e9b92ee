"""Stored experiences of a finished run, used again."""
