"""Images of prompts: reading them, their place in messages, their tokens."""
