"""Models behind an OpenAI-compatible server, whose weights nobody here changes."""
