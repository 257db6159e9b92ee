"""vLLM as an engine: it computes logits; its tokens are drawn by the sampler of every engine here."""
