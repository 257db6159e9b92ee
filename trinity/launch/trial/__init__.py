"""Attempts at tasks without training: `trinity try`, `debug`, `env-check`."""
