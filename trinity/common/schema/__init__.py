"""Schemas of what is stored."""
