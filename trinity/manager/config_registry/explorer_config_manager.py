"""The fields of the explorer and the synchronizer."""

from trinity.manager.config_registry.config_registry import CONFIG_GENERATORS

CONFIG_GENERATORS.register_part("explorer")
