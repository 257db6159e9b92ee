"""The studio's fields by parts, and how to add others."""

from trinity.manager.config_registry import (
    buffer_config_manager,
    explorer_config_manager,
    model_config_manager,
    trainer_config_manager,
)
from trinity.manager.config_registry.config_registry import CONFIG_GENERATORS, ConfigRegistry

__all__ = [
    "CONFIG_GENERATORS",
    "ConfigRegistry",
    "buffer_config_manager",
    "explorer_config_manager",
    "model_config_manager",
    "trainer_config_manager",
]
