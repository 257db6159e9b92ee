"""Speaks the protocol of WebShop."""
