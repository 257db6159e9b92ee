"""The torch engine: continuous batching over its own copy of a model."""
