"""The whole configuration: top level, sections and stages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from trinity.common.config.algorithm import AlgorithmConfig
from trinity.common.config.base import GUIDE, OWN, TRINITY, Int, Section, key, only, section
from trinity.common.config.buffer import BufferConfig
from trinity.common.config.explorer import ExplorerConfig
from trinity.common.config.model import ModelConfig
from trinity.common.config.published import PublishedConfig
from trinity.common.config.sections import ClusterConfig, DataProcessorConfig, LogConfig, MonitorConfig, ServiceConfig
from trinity.common.config.synchronizer import SynchronizerConfig
from trinity.common.config.trainer import TrainerConfig
from trinity.common.constants import DEFAULT_SEED

ModeName = Literal["both", "train", "explore", "bench", "serve", "colocate"]
NAME_RULE = "must be 1 to 120 letters, digits, '_', '-', '.', '+' or spaces, not begin with '-' or '.'"
_RESERVED = {"con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10))}


def is_folder_name(name: str) -> bool:
    """Return whether a name is that of one folder on every system."""
    usable = 0 < len(name) <= 120 and not name.startswith(("-", ".", " ")) and not name.endswith((".", " "))
    plain = all(c.isalnum() or c in "_-.+ " for c in name)
    return plain and usable and name.lower().split(".")[0] not in _RESERVED


def _folder_name(name: str) -> str:
    if not is_folder_name(name):
        raise PydanticCustomError("E1304", NAME_RULE)
    return name


def _job_name(name: str) -> str:
    """Return a name, or `<name>/<stage_name>` as a resolved stage has it."""
    parts = name.split("/")
    if len(parts) > 2:
        raise PydanticCustomError("E1304", NAME_RULE)
    return "/".join(_folder_name(part) for part in parts)


def _group_name(name: str) -> str:
    return _folder_name(name) if name else name


FolderName = Annotated[str, AfterValidator(_folder_name)]


class StageConfig(Section):
    """One stage: its name and the keys that override the global ones."""

    stage_name: FolderName = key("", "Unique name; suffix of the experiment's name.", GUIDE)
    mode: ModeName | None = key(None, "Mode of the stage; null inherits.", GUIDE)
    algorithm: AlgorithmConfig | None = key(None, "Algorithm of the stage.", GUIDE)
    buffer: BufferConfig | None = key(None, "Buffers of the stage.", GUIDE)
    data_processor: DataProcessorConfig | None = key(None, "Pipelines of the stage.", TRINITY)
    explorer: ExplorerConfig | None = key(None, "Explorer of the stage.", GUIDE)
    trainer: TrainerConfig | None = key(None, "Trainer of the stage.", GUIDE)
    synchronizer: SynchronizerConfig | None = key(None, "Synchronizer of the stage.", OWN)


class Config(PublishedConfig):
    """The configuration of a run, or of one of its stages."""

    project: FolderName = key("Trinity-RFT", "Name of the project; first folder of the job.", GUIDE)
    group: Annotated[str, AfterValidator(_group_name)] = key("", "Optional folder between project and name.", TRINITY)
    name: Annotated[str, AfterValidator(_job_name)] = key("rft", "Name of the experiment.", TRINITY)
    mode: ModeName = key(
        "both",
        "What is started: both, train, explore, bench or serve.",
        GUIDE,
        support=only("both", "train", "explore", "bench", "serve"),
    )
    checkpoint_root_dir: str = key(
        "", "Root of all jobs; relative: to the working directory.", TRINITY, fallback="checkpoints"
    )
    checkpoint_job_dir: str = key("", "<root>/<project>[/<group>]/<name>.", TRINITY, derived=True)
    continue_from_checkpoint: bool = key(True, "Resume; false: start <name>_<timestamp> if the job has files.", GUIDE)
    ray_namespace: str = key("", "Namespace of the run; empty: <project>[/<group>]/<name>.", GUIDE)
    ignore_validator_suggestions: bool = key(False, "No effect: this project never stops to ask.", TRINITY)
    seed: Int = key(DEFAULT_SEED, "Seed of everything that is not seeded elsewhere.", OWN)
    deterministic: bool = key(False, "Identical runs give bitwise identical results, resumed or not.", OWN)
    plugin_dirs: tuple[str, ...] = key(
        (), "Folders of plugin files, as --plugin-dir; relative: to the working directory.", OWN
    )
    algorithm: AlgorithmConfig = section(AlgorithmConfig, "Algorithm, optimizer and loss.")
    model: ModelConfig = section(ModelConfig, "Which model is trained.")
    cluster: ClusterConfig = section(ClusterConfig, "Machines.")
    buffer: BufferConfig = section(BufferConfig, "Tasks and experiences.")
    explorer: ExplorerConfig = section(ExplorerConfig, "Rollouts and evaluation.")
    trainer: TrainerConfig = section(TrainerConfig, "Training.")
    synchronizer: SynchronizerConfig = section(SynchronizerConfig, "Weights from trainer to explorer.")
    monitor: MonitorConfig = section(MonitorConfig, "Metrics.")
    service: ServiceConfig = section(ServiceConfig, "Outside services.")
    data_processor: DataProcessorConfig = section(DataProcessorConfig, "Pipelines.")
    log: LogConfig = section(LogConfig, "Log files.")
    stages: tuple[StageConfig, ...] = key((), "Stages, run in this order.", GUIDE)
    written: tuple[str, ...] | None = key(
        None,
        "Keys that a user wrote, in a file that a run saved; the others were filled in. null: all were written.",
        OWN,
    )
