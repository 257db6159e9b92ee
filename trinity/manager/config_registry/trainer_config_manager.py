"""The fields of the trainer, the algorithm and what is recorded."""

from trinity.manager.config_registry.config_registry import CONFIG_GENERATORS

CONFIG_GENERATORS.register_part("trainer")
