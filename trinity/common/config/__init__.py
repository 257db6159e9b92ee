"""Configuration: schema, reading, checks, derivation; no torch, no ray."""

from trinity.common.config.algorithm import AlgorithmConfig
from trinity.common.config.buffer import (
    BufferConfig,
    DataSelectorConfig,
    ExperienceBufferConfig,
    ExplorerInput,
    FormatConfig,
    GenerationConfig,
    ReplayBufferConfig,
    TasksetConfig,
    TrainerInput,
)
from trinity.common.config.catalogue import Catalogue
from trinity.common.config.config import Config, StageConfig
from trinity.common.config.explorer import ExplorerConfig
from trinity.common.config.model import InferenceModelConfig, ModelConfig
from trinity.common.config.model import LoraConfig as LoRAConfig
from trinity.common.config.plan import Plan, StagePlan, complete, examine, load_config, load_plan, plugin_dirs_of
from trinity.common.config.plugins import read_plugins, scan_plugins
from trinity.common.config.problems import ConfigErrors, Finding
from trinity.common.config.resolution import Derived
from trinity.common.config.sections import ClusterConfig, LogConfig, MonitorConfig, OperatorConfig
from trinity.common.config.showing import dump_config, json_schema, origins
from trinity.common.config.storage import StorageConfig
from trinity.common.config.synchronizer import SynchronizerConfig
from trinity.common.config.trainer import TrainerConfig

__all__ = [
    "AlgorithmConfig",
    "BufferConfig",
    "Catalogue",
    "ClusterConfig",
    "Config",
    "ConfigErrors",
    "DataSelectorConfig",
    "Derived",
    "ExperienceBufferConfig",
    "ExplorerConfig",
    "ExplorerInput",
    "Finding",
    "FormatConfig",
    "GenerationConfig",
    "InferenceModelConfig",
    "LoRAConfig",
    "LogConfig",
    "ModelConfig",
    "MonitorConfig",
    "OperatorConfig",
    "Plan",
    "ReplayBufferConfig",
    "StageConfig",
    "StagePlan",
    "StorageConfig",
    "SynchronizerConfig",
    "TasksetConfig",
    "TrainerConfig",
    "TrainerInput",
    "complete",
    "dump_config",
    "examine",
    "json_schema",
    "load_config",
    "load_plan",
    "origins",
    "plugin_dirs_of",
    "read_plugins",
    "scan_plugins",
]
