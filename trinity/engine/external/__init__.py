"""Models behind an OpenAI-compatible server, whose weights are fixed."""
