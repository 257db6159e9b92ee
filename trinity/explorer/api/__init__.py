"""The OpenAI-compatible endpoint of the models that workflows use."""
