"""Several engines as one model: routing, health and weight updates."""
