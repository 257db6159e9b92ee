"""Configuration: schema, reading, checks, derivation; no torch, no ray."""

from trinity.common.config.algorithm import AlgorithmConfig, OptimizerConfig
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
from trinity.common.config.explorer import DynamicTimeoutConfig, ExplorerConfig, OverRolloutConfig
from trinity.common.config.given import ConfigSource, Overrides, override_texts
from trinity.common.config.model import InferenceModelConfig, ModelConfig, TinkerConfig
from trinity.common.config.model import LoraConfig as LoRAConfig
from trinity.common.config.plan import Plan, StagePlan, complete, examine, load_config, load_plan, plugin_dirs_of
from trinity.common.config.plugins import read_plugins, scan_plugins
from trinity.common.config.problems import ConfigErrors, Finding
from trinity.common.config.resolution import Derived
from trinity.common.config.sections import (
    ClusterConfig,
    DataJuicerServiceConfig,
    DataProcessorConfig,
    ExperiencePipelineConfig,
    LogConfig,
    MonitorConfig,
    OperatorConfig,
    ServiceConfig,
    TaskPipelineConfig,
)
from trinity.common.config.showing import dump_config, json_schema, origins
from trinity.common.config.storage import StorageConfig
from trinity.common.config.synchronizer import SynchronizerConfig
from trinity.common.config.trainer import MegatronConfig, TrainerConfig

__all__ = [
    "AlgorithmConfig",
    "BufferConfig",
    "Catalogue",
    "ClusterConfig",
    "Config",
    "ConfigErrors",
    "ConfigSource",
    "DataJuicerServiceConfig",
    "DataProcessorConfig",
    "DataSelectorConfig",
    "Derived",
    "DynamicTimeoutConfig",
    "ExperienceBufferConfig",
    "ExperiencePipelineConfig",
    "ExplorerConfig",
    "ExplorerInput",
    "Finding",
    "FormatConfig",
    "GenerationConfig",
    "InferenceModelConfig",
    "LoRAConfig",
    "LogConfig",
    "MegatronConfig",
    "ModelConfig",
    "MonitorConfig",
    "OperatorConfig",
    "OptimizerConfig",
    "OverRolloutConfig",
    "Overrides",
    "Plan",
    "ReplayBufferConfig",
    "ServiceConfig",
    "StageConfig",
    "StagePlan",
    "StorageConfig",
    "SynchronizerConfig",
    "TaskPipelineConfig",
    "TasksetConfig",
    "TinkerConfig",
    "TrainerConfig",
    "TrainerInput",
    "complete",
    "dump_config",
    "examine",
    "json_schema",
    "load_config",
    "load_plan",
    "origins",
    "override_texts",
    "plugin_dirs_of",
    "read_plugins",
    "scan_plugins",
]
