"""The engine of this process: continuous batching over its own copy of a Hugging Face model."""
