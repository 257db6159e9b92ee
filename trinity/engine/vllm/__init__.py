"""The vLLM engine: vLLM computes logits, and our own sampler draws tokens."""
