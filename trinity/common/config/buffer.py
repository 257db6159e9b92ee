"""Section `buffer`: tasks for the explorer, experiences for the trainer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from trinity.common.config.base import (
    GUIDE,
    OWN,
    TRINITY,
    Args,
    Count,
    Facts,
    Fraction,
    Idle,
    IdleWith,
    Int,
    Natural,
    NonNegative,
    Positive,
    Renamed,
    Section,
    key,
    only,
    refused,
    section,
)
from trinity.common.config.model import TopK, TopP
from trinity.common.config.row_schemas import SCHEMAS


def _buffer_name(name: str) -> str:
    """Return a buffer or taskset name that fits a file, table or actor."""
    usable = 0 < len(name) <= 120 and not name.startswith(("-", "."))
    if not usable or not all(c.isalnum() or c in "_-.+ " for c in name):
        raise PydanticCustomError(
            "E1304", "must be 1 to 120 letters, digits, '_', '-', '.', '+' and not begin with '-' or '.'"
        )
    return name


BufferName = Annotated[str, AfterValidator(_buffer_name)]
StorageName = Literal["file", "queue", "sql"]


class FormatConfig(Section):
    """Columns of a dataset."""

    prompt_type: Literal["plaintext", "messages"] | None = key(
        None, "Format of a row: plaintext (prompt and response columns) or messages; null: from the keys given.", GUIDE
    )
    prompt_key: str = key("prompt", "Column of the user's prompt (plaintext).", GUIDE)
    response_key: str = key("response", "Column of the response or the truth (plaintext).", GUIDE)
    system_prompt_key: str | None = key(None, "Column of the system prompt (plaintext).", GUIDE)
    system_prompt: str | None = key(None, "System prompt as text; system_prompt_key wins.", GUIDE)
    messages_key: str = key("message", "Column of the list of messages (messages).", GUIDE)
    tools_key: str = key("tools", "Column of the tools, a list of mappings.", GUIDE)
    chosen_key: str = key("chosen", "Column of the preferred response (dpo).", GUIDE)
    rejected_key: str = key("rejected", "Column of the rejected response (dpo).", GUIDE)
    enable_concatenated_multi_turn: bool = key(
        False, "Train each conversation as one experience (sft, messages only).", GUIDE
    )
    chat_template: str | None = key(None, "Chat template as text; null: model.custom_chat_template.", GUIDE)
    image_key: str | None = key(
        None, "Column of images: bytes, paths, or lists of them; read by simple_mm_workflow.", TRINITY
    )
    video_key: str | None = key(None, "Column of videos.", TRINITY, support=only(None))
    reply_prefix: str | None = key(None, "Text that every response begins with.", TRINITY)
    workflow_key: str | None = key(None, "Column that names the workflow of a row.", TRINITY)
    reward_fn_key: str | None = key(None, "Column that names the reward function of a row.", TRINITY)
    enable_thinking: bool | None = key(None, "As model.enable_thinking; null inherits.", TRINITY)


class GenerationConfig(Section):
    """Sampling of rollouts; null inherits from section `model`."""

    temperature: NonNegative | None = key(
        None, "Sampling temperature, >= 0; 0: greedy.", GUIDE, default_from="model.temperature"
    )
    top_p: TopP | None = key(None, "Nucleus sampling, in (0, 1].", TRINITY, default_from="model.top_p")
    top_k: TopK | None = key(None, "Candidates per token; -1: all.", TRINITY, default_from="model.top_k")
    logprobs: Natural | None = key(
        None,
        "Alternatives per token whose logprobs are returned.",
        TRINITY,
        support=only(0),
        default_from="model.logprobs",
    )
    max_tokens: Count | None = key(
        None,
        "Longest response in tokens.",
        TRINITY,
        default_from="model.max_response_tokens",
    )
    n: Count = key(1, "Responses per call; set by the workflow, leave it out.", TRINITY, derived=True, support=only(1))


class DataSelectorConfig(Section):
    """Order of tasks."""

    selector_type: str = key("sequential", "Order: sequential, shuffle, random, ...", TRINITY)
    seed: Int | None = key(None, "Seed of the order.", TRINITY, default_from="seed")
    feature_keys: tuple[str, ...] = key((), "Columns that a selector reads.", TRINITY)
    kwargs: Args = key({}, "Further arguments of the selector.", TRINITY)


RETRIES = Idle(
    None, "a database call waits for other processes by itself, and an error after that ends the run", is_any=True
)
OF_FILES = IdleWith("storage_type", but=("file",))
PROGRESS = Idle(True, "progress is in the log and in metrics.jsonl")


class TasksetConfig(Section):
    """A dataset of tasks."""

    name: BufferName = key("taskset", "Name of the taskset; unique in the run.", GUIDE)
    storage_type: StorageName = key(
        "file",
        "file: jsonl, parquet or a Hugging Face dataset; sql: the table of this name, else the table `task`.",
        GUIDE,
        support=refused(
            "sql",
            why="the tasks of a run are read in an order of its own, in every epoch again, and what is taken from a "
            "queue is gone",
            instead="write `storage_type: sql` for a table of tasks, or `file`",
        ),
    )
    path: str | tuple[str, ...] | None = key(
        None, "Folder, file, hub id or database of the tasks, or a list of files, folders and hub ids.", GUIDE
    )
    split: str = key("train", "Split of the dataset.", GUIDE, idle_with=(OF_FILES,))
    subset_name: str | None = key(
        None, "Subset of the dataset (`name` of datasets.load_dataset).", GUIDE, idle_with=(OF_FILES,)
    )
    format: FormatConfig = section(FormatConfig, "Columns of the dataset.")
    rollout_args: GenerationConfig = section(GenerationConfig, "Sampling of the rollouts.")
    workflow_args: Args = key({}, "Arguments handed to the workflow.", GUIDE)
    reward_fn_args: Args = key({}, "Arguments handed to the reward function.", TRINITY)
    default_workflow_type: str | None = key(None, "Workflow; null: of explorer_input.", GUIDE)
    default_reward_fn_type: str | None = key(None, "Reward function; null: of explorer_input.", GUIDE)
    repeat_times: Count | None = key(
        None, "Rollouts per task; null: algorithm.repeat_times for training, 1 for evaluation.", GUIDE
    )
    long_prompts: Literal["keep", "drop", "refuse"] = key(
        "keep",
        "Rows whose prompt has more than model.max_prompt_tokens tokens, with the chat template: keep: the model's "
        "section says what happens to them; drop: they are left out; refuse: the run does not begin.",
        OWN,
    )
    weight: Positive | None = key(
        None, "Share among the tasksets, in any unit, > 0 (tasksets only); null: its number of usable rows.", OWN
    )
    data_selector: DataSelectorConfig = section(DataSelectorConfig, "Order of the tasks.", TRINITY)
    task_selector: DataSelectorConfig | None = key(
        None, "", TRINITY, renamed=Renamed("data_selector", TRINITY, both="older")
    )
    max_retry_times: Natural = key(3, "Retries of a database call.", TRINITY, idle=RETRIES)
    max_retry_interval: Positive = key(1.0, "Pause between retries in seconds, > 0.", TRINITY, idle=RETRIES)
    enable_progress_bar: bool = key(False, "Show the evaluation's progress.", TRINITY, idle=PROGRESS)
    index: Natural = key(0, "Place among the tasksets.", TRINITY, derived=True)
    is_eval: bool = key(False, "Whether the taskset is for evaluation.", TRINITY, derived=True)
    batch_size: Natural = key(0, "Tasks per step, from buffer.batch_size.", TRINITY, derived=True)
    total_epochs: Count = key(1, "Passes over the tasks, from buffer.total_epochs.", TRINITY, derived=True)
    total_steps: Count | None = key(None, "Steps, from buffer.total_steps.", TRINITY, derived=True)
    ray_namespace: str | None = key(None, "Namespace of the run.", TRINITY, derived=True)


class ReplayBufferConfig(Section):
    """Reuse of trained experiences."""

    enable: bool = key(False, "Put experiences back.", GUIDE)
    priority_fn: str = key("linear_decay", "Order in which rollouts are handed out, by name.", GUIDE)
    reuse_cooldown_time: NonNegative | None = key(None, "Pause before reuse in seconds; null: no reuse.", GUIDE)
    priority_fn_args: Args = key({}, "Arguments of priority_fn; those not written have its defaults.", GUIDE)


class ExperienceBufferConfig(Section):
    """Where the explorer writes experiences and the trainer reads them."""

    name: BufferName = key("experience_buffer", "Name of the buffer; unique in the run.", GUIDE)
    storage_type: StorageName | None = key(
        None, "queue, sql or file; null: file for algorithms that train on datasets, else queue.", GUIDE
    )
    path: str | tuple[str, ...] | None = key(
        None,
        "Database URL, backup file, or folder, file or hub id of a dataset, or a list of these three; null: the run's "
        "own store.",
        GUIDE,
    )
    format: FormatConfig = section(FormatConfig, "Columns of a dataset (file).")
    max_read_timeout: Positive = key(
        1800.0, "Longest wait for a full batch in seconds, > 0; then the incomplete one is used.", GUIDE
    )
    replay_buffer: ReplayBufferConfig = section(ReplayBufferConfig, "Reuse of trained experiences (queue).")
    capacity: Count = key(10000, "Experiences of a queue that wait to be trained, or may be used again, >= 1.", TRINITY)
    split: str = key("train", "Split of a dataset (file).", TRINITY)
    subset_name: str | None = key(None, "Subset of a dataset (file).", TRINITY)
    max_retry_times: Natural = key(3, "Retries of a database call.", TRINITY, idle=RETRIES)
    max_retry_interval: Positive = key(1.0, "Pause between retries in seconds, > 0.", TRINITY, idle=RETRIES)
    enable_progress_bar: bool = key(False, "Show the progress of reading.", TRINITY, idle=PROGRESS)
    data_selector: DataSelectorConfig = section(DataSelectorConfig, "Order of a dataset's rows (file).", TRINITY)
    backup_path: str | None = key(None, "JSON lines file beside the store, from path.", OWN, derived=True)
    schema_type: str | None = key(None, f"Kind of rows: {', '.join(SCHEMAS)}.", TRINITY, derived=True)
    index: Natural = key(0, "Place among the buffers.", TRINITY, derived=True)
    batch_size: Natural = key(0, "Experiences per step, from buffer.train_batch_size.", TRINITY, derived=True)
    tokenizer_path: str | None = key(None, "Tokenizer of the rows, from model.model_path.", TRINITY, derived=True)
    total_epochs: Count = key(1, "Passes over the rows, from buffer.total_epochs.", TRINITY, derived=True)
    total_steps: Count | None = key(None, "Steps, from buffer.total_steps.", TRINITY, derived=True)

    @property
    def place(self) -> str | None:
        """The one place that is no dataset; `resolve` refuses a list there."""
        assert self.path is None or isinstance(self.path, str), f"{self.name} has one place, got {self.path}"
        return self.path


class ExplorerInput(Section):
    """Tasks of the explorer."""

    taskset: TasksetConfig | None = key(
        None, "Tasks that are explored for training.", GUIDE, at={"path": Facts(verl_names=("train_files",))}
    )
    tasksets: tuple[TasksetConfig, ...] = key(
        (), "Several tasksets that are explored for training, in mixture; excludes taskset.", TRINITY
    )
    eval_tasksets: tuple[TasksetConfig, ...] = key((), "Tasksets for evaluation.", GUIDE, verl_names=("val_files",))
    default_workflow_type: str | None = key(None, "Workflow of tasksets that name none.", GUIDE)
    default_eval_workflow_type: str | None = key(None, "Workflow of evaluation tasksets that name none.", GUIDE)
    default_reward_fn_type: str | None = key(
        None, "Reward function of tasksets that name none.", GUIDE, verl_names=("custom_reward_function",)
    )


def _only_of(*storages: str, why: str = "") -> Facts:
    """Return that a key of a buffer has an effect with some storages only."""
    return Facts(idle_with=(IdleWith("storage_type", but=storages, why=why),))


class TrainerInput(Section):
    """Experiences of the trainer."""

    experience_buffer: ExperienceBufferConfig | None = key(
        None,
        "Output of the explorer and input of the trainer; null: the run's own queue.",
        GUIDE,
        at={"capacity": _only_of("queue")},
    )
    auxiliary_buffers: dict[str, ExperienceBufferConfig] = key(
        {},
        "Further sources by name.",
        GUIDE,
        at={
            "*.replay_buffer.enable": Facts(only(False)),
            "*.split": _only_of("file"),
            "*.subset_name": _only_of("file"),
            "*.data_selector": _only_of("file", "sql"),
            "*.max_read_timeout": _only_of("queue"),
            "*.capacity": _only_of(why="the run that fills a queue has it"),
        },
    )


class BufferConfig(Section):
    """Batch sizes, and where tasks and experiences are."""

    batch_size: Count = key(1, "Tasks per explore step, >= 1.", GUIDE)
    train_batch_size: Natural = key(
        0,
        "Rollouts per training step, with all of their experiences; 0: batch_size times algorithm.repeat_times.",
        GUIDE,
        verl_names=("ppo_mini_batch_size",),
    )
    total_epochs: Count = key(1, "Passes over the tasks, >= 1.", TRINITY)
    total_steps: Count | None = key(None, "Explore steps; wins over total_epochs.", GUIDE)
    explorer_input: ExplorerInput = section(ExplorerInput, "Tasks of the explorer.")
    trainer_input: TrainerInput = section(TrainerInput, "Experiences of the trainer.")
    max_bad_row_ratio: Fraction = key(
        0.01,
        "Share of a dataset's rows that may be left out as unusable, in [0, 1]; one row always may, unless it is 0.",
        OWN,
    )
    keep_payloads: NonNegative | None = key(
        None,
        "GiB of payloads that stay in the database after training although no checkpoint needs them; "
        "null: 1, and all in a database that you name or with storage_type sql.",
        OWN,
    )
    max_retry_times: Natural | None = key(None, "Retries of a database call.", TRINITY, idle=RETRIES)
    max_retry_interval: Positive | None = key(None, "Pause between them in seconds, > 0.", TRINITY, idle=RETRIES)
    tokenizer_path: str | None = key(None, "Tokenizer, from model.model_path.", TRINITY, derived=True)
    pad_token_id: Natural | None = key(None, "Padding token of the tokenizer.", TRINITY, derived=True)
    cache_dir: str | None = key(None, "Folder of buffer files: <job>/buffer.", TRINITY, derived=True)


__all__ = [
    "BufferConfig",
    "BufferName",
    "DataSelectorConfig",
    "ExperienceBufferConfig",
    "ExplorerInput",
    "FormatConfig",
    "GenerationConfig",
    "ReplayBufferConfig",
    "TasksetConfig",
    "TrainerInput",
]
