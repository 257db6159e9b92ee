"""Rules across keys: derived values with reasons, and conflicts."""
