"""Rules that look at more than one key: derived values, each with its reason, and what does not fit together."""
