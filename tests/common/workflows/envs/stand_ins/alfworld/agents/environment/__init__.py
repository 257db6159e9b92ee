"""Speaks the protocol of ALFWorld."""
