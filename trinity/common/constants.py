"""Names that plugins, YAML files and environment variables share."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, get_args

DEFAULT_SEED = 42
CHECKPOINT_ROOT_DIR_ENV_VAR = "TRINITY_CHECKPOINT_ROOT_DIR"
MODEL_PATH_ENV_VAR = "TRINITY_MODEL_PATH"
TASKSET_PATH_ENV_VAR = "TRINITY_TASKSET_PATH"
SFT_DATASET_PATH_ENV_VAR = "TRINITY_SFT_DATASET_PATH"
PLUGIN_DIRS_ENV_VAR = "TRINITY_PLUGIN_DIRS"
LOG_LEVEL_ENV_VAR = "TRINITY_LOG_LEVEL"
FAILPOINTS_ENV_VAR = "TRINITY_FAILPOINTS"
CACHE_DIR_ENV_VAR = "TRINITY_CACHE_DIR"

SELECTOR_METRIC = "selector_metric"
LORA_FOLDER = "lora_adapter"  # of a checkpoint whose trained part is an adapter
TRAJECTORY = "trajectory"
LINK = (TRAJECTORY, "follows", "shared_tokens")  # of `Experience.info`: what one of several of a rollout follows
RETOKENISED = "retokenised_turns"  # of `Experience.info`: its responses that were not sampled
VERL_DATA = "data.pt"  # of a checkpoint of veRL: the state of its data loader
PROCESSOR = "preprocessor_config.json"

# How the losses of tokens become one number: in Trinity's convention, and in veRL's.
LossAggMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
VerlLossAggMode = Literal[LossAggMode, "token-sum"]
LOSS_AGG_MODES: tuple[str, ...] = get_args(LossAggMode)
VERL_LOSS_AGG_MODES: tuple[str, ...] = get_args(VerlLossAggMode)
TOOL_CALL_PARSERS = ("hermes", "qwen3_coder", "llama3_json", "mistral", "glm45", "deepseek_v3")
REASONING_PARSERS = ("qwen3", "deepseek_r1", "glm45")


class Mode(StrEnum):
    """What a run starts."""

    BOTH = "both"
    TRAIN = "train"
    EXPLORE = "explore"
    BENCH = "bench"
    SERVE = "serve"
    COLOCATE = "colocate"


BENCH = Mode.BENCH.value  # also the name under which that mode shares a job folder
TRAINER = "trainer"  # the name under which a trainer shares it, whatever `trainer.name` says: a job has one


class PromptType(StrEnum):
    """Format of the prompt column of a dataset."""

    MESSAGES = "messages"
    PLAINTEXT = "plaintext"


class StorageType(StrEnum):
    """Kind of storage of a buffer or taskset."""

    FILE = "file"
    QUEUE = "queue"
    SQL = "sql"


class SyncMethod(StrEnum):
    """Transport of the weights."""

    AUTO = "auto"
    NCCL = "nccl"
    CHECKPOINT = "checkpoint"
    MEMORY = "memory"


class SyncStyle(StrEnum):
    """Whether explorer and trainer wait for each other."""

    FIXED = "fixed"
    DYNAMIC_BY_EXPLORER = "dynamic_by_explorer"
    DYNAMIC_BY_TRAINER = "dynamic_by_trainer"
    FULLY_ASYNC = "fully_async"
    # Further published names of two of them.
    EXPLORER_DRIVEN = "dynamic_by_explorer"
    TRAINER_DRIVEN = "dynamic_by_trainer"


class SaveStrategy(StrEnum):
    """Parallelism of checkpoint writing."""

    SINGLE_THREAD = "single_thread"
    SINGLE_PROCESS = "single_process"
    SINGLE_NODE = "single_node"
    UNRESTRICTED = "unrestricted"


class RunningStatus(StrEnum):
    """State of an explorer or a trainer as the synchronizer sees it."""

    RUNNING = "running"
    WAITING_SYNC = "waiting_sync"
    REQUIRE_SYNC = "require_sync"
    STOPPED = "stopped"


class OpType(StrEnum):
    """Arithmetic operation of the reward shaping operator."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"


TASKS_FILE = "output.jsonl"
"""The file that a task pipeline writes."""
TASKS_REPORT = "_report.json"
"""What it says of it, beside it; not read as a data file, since its name begins with `_`."""
