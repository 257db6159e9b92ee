"""The fields of the model, the machines, and what has no other part."""

from trinity.manager.config_registry.config_registry import CONFIG_GENERATORS

CONFIG_GENERATORS.register_part("model")
