"""Trinity: reinforcement fine-tuning of language models from one YAML."""

__version__ = "0.1.0"
