"""Create the readers and writers of buffers from their configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.buffer.dataset_reader import DatasetReader
from trinity.buffer.priority import PRIORITY_FUNC, PriorityFunction
from trinity.buffer.store import GIB, AppendResult, ConsumerToken, ExperienceStore, JSONBackup, Replay
from trinity.buffer.task_reader import TaskReader
from trinity.common.config.buffer import ExperienceBufferConfig, TasksetConfig
from trinity.common.config.config import Config
from trinity.common.config.storage import StorageConfig
from trinity.common.constants import SyncStyle
from trinity.common.errors import ConfigError
from trinity.common.experience import Experience

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STANDALONE_RUN = "standalone"
DEFAULT_GIB = 1.0  # of payloads that a run's own database keeps
# Name and reader of the run's experience buffer, within `reader_of_run`.
_OF_RUN: ContextVar[tuple[str, Any] | None] = ContextVar("reader_of_run", default=None)


class StoreReader:
    """Reads experiences of a store, in the order of the log.

    Args:
        store: an open store.
        token: of `ExperienceStore.open_consumer`, with which experiences are claimed.
        timeout_s: deadline of a read.
    """

    def __init__(self, store: ExperienceStore, token: ConsumerToken, *, timeout_s: float) -> None:
        self.store = store
        self.token = token
        self.timeout_s = timeout_s

    def read(self, n: int) -> list[Experience]:
        """Return the experiences of up to `n` claimed rollouts.

        Fewer are returned at the deadline, or once all producers are finished; none at the end.

        Raises:
            StarvedError: nothing at the deadline although producers are open.
        """
        return self.store.read_batch(self.token, n, timeout_s=self.timeout_s).experiences


class StoreWriter:
    """Appends experiences to a store; every write is one explore step.

    Args:
        store: an open store.
        buffer: name of the buffer.
        run: run that owns the rows.
    """

    def __init__(self, store: ExperienceStore, buffer: str, *, run: str = STANDALONE_RUN) -> None:
        self.store = store
        self.buffer = buffer
        self.run = run
        store.open_producer(buffer, "writer", run=run, is_scheduled=False)
        self.step = store.finished_step(buffer, "writer", run=run)

    def write(self, experiences: Sequence[Experience]) -> AppendResult:
        """Append the experiences in one transaction."""
        self.step += 1
        return self.store.append(self.buffer, experiences, run=self.run, producer="writer", explore_step=self.step)

    def close(self) -> None:
        """Tell readers that no more will come."""
        self.store.close_producer(self.buffer, "writer", run=self.run)


def open_store(config: Config) -> ExperienceStore:
    """Return the open store of a run.

    A queue is limited to the capacity of its buffer; with a replay buffer it hands out trained rollouts again. The path
    of a queue may be a JSON file: then the run's own database is the store, and the file is a copy of what is appended.
    The same holds for the file that mode explore writes with `storage_type: file`.
    """
    buffer = config.buffer.trainer_input.experience_buffer
    own = f"sqlite:///{Path(config.buffer.cache_dir or Path(config.checkpoint_job_dir) / 'buffer') / 'experience.db'}"
    if buffer is None:
        return ExperienceStore(own, kept_bytes=kept_bytes(config)).open()
    if buffer.storage_type == "file":
        output = JSONBackup(buffer.backup_path) if buffer.backup_path else None
        return ExperienceStore(own, backup=output, kept_bytes=kept_bytes(config)).open()
    is_queue = buffer.storage_type != "sql"
    path, backup = _place(buffer, own)
    keeps_all = config.buffer.keep_payloads is None and (path != own or not is_queue)
    return ExperienceStore(
        path,
        kept_bytes=None if keeps_all else kept_bytes(config),
        backup=backup,
        capacity=buffer.capacity if is_queue else None,
        replay=replay_of(config) if is_queue and buffer.replay_buffer.enable else None,
    ).open()


def kept_bytes(config: Config) -> int:
    """Return how many bytes of payloads a run keeps beyond a resume's needs."""
    kept = config.buffer.keep_payloads
    return int((DEFAULT_GIB if kept is None else kept) * GIB)


def replay_of(config: Config) -> Replay | None:
    """Return how the rollouts of the run's queue are reused, or None.

    Raises:
        ConfigError: an unknown priority function (E1701), or arguments that it does not take (E1866).
    """
    buffer = config.buffer.trainer_input.experience_buffer
    if buffer is None or buffer.replay_buffer.reuse_cooldown_time is None:
        return None
    replay = buffer.replay_buffer
    key = "buffer.trainer_input.experience_buffer.replay_buffer.priority_fn_args"
    priority: PriorityFunction = PRIORITY_FUNC.build(replay.priority_fn, replay.priority_fn_args, key=key, code="E1866")
    priority.seed = config.seed
    return Replay(
        priority,
        cooldown_s=buffer.replay_buffer.reuse_cooldown_time,
        capacity=buffer.capacity,
        is_patient=config.deterministic or config.synchronizer.sync_style == SyncStyle.FIXED,
        is_bounded=config.trainer.total_steps is not None,
    )


def _place(buffer: ExperienceBufferConfig, own: str) -> tuple[str, JSONBackup | None]:
    """Return the URL of a buffer's store, and its text copy.

    The URL is `own` where the buffer names none.
    """
    path, copy = buffer.place or own, buffer.backup_path
    if "://" not in path and path.lower().endswith((".json", ".jsonl")):
        path, copy = own, path
    return path, JSONBackup(copy) if copy else None


@contextmanager
def reader_of_run(name: str, reader: Any) -> Iterator[None]:
    """Make `get_buffer_reader` return the run's own reader in this context.

    Published sample strategies open the experience buffer of the run in their constructor.

    Args:
        name: of the experience buffer.
        reader: what is returned for it.
    """
    token = _OF_RUN.set((name, reader))
    try:
        yield
    finally:
        _OF_RUN.reset(token)


def get_buffer_reader(
    config: TasksetConfig | ExperienceBufferConfig | StorageConfig,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    run: str = STANDALONE_RUN,
    consumer: str = "reader",
    **options: Any,
) -> TaskReader | DatasetReader | StoreReader:
    """Return the reader of a taskset, a dataset or stored experiences.

    A dataset may be a table of a database.

    Args:
        config: what to read.
        tokenizer: for a dataset.
        run: run whose experiences are read, for a database.
        consumer: name under which they are claimed.
        **options: handed to `TaskReader` or `DatasetReader`.

    Raises:
        ConfigError: a dataset without a tokenizer or of another schema, or a database without a path.
    """
    if isinstance(config, StorageConfig):
        config = config.section()
    if isinstance(config, TasksetConfig):
        return TaskReader(config, **options)
    of_run = _OF_RUN.get()
    if of_run is not None and config.name == of_run[0]:
        own: StoreReader = of_run[1]  # or an object with the same methods
        return own
    if config.storage_type == "file" or (config.storage_type == "sql" and config.schema_type == "sft"):
        if tokenizer is None:
            raise ConfigError(f"buffer {config.name!r}: a dataset needs a tokenizer", code="E1615")
        return DatasetReader(config, tokenizer=tokenizer, **{"schema": config.schema_type or "sft"} | options)
    store = _named_store(config)
    token = store.open_consumer(config.name, consumer, run=run, cut=0)
    return StoreReader(store, token, timeout_s=config.max_read_timeout)


def get_buffer_writer(
    config: ExperienceBufferConfig | StorageConfig, *, run: str = STANDALONE_RUN
) -> StoreWriter | JSONBackup:
    """Return the writer of a database or of a JSON lines file.

    The latter is chosen by `storage_type: file`.

    Raises:
        ConfigError: no path.
    """
    if isinstance(config, StorageConfig):
        config = config.buffer_section()
    if config.storage_type != "file":
        return StoreWriter(_named_store(config), config.name, run=run)
    if config.place is None:
        raise ConfigError(f"buffer {config.name!r}: storage_type file needs a path", code="E1610")
    path = Path(config.place)
    return JSONBackup(path if path.suffix in (".json", ".jsonl") else path / f"{config.name}.jsonl")


def _named_store(config: ExperienceBufferConfig) -> ExperienceStore:
    if config.place is None:
        raise ConfigError(f"buffer {config.name!r}: path must be a database URL, got null", code="E1610")
    path, backup = _place(config, f"sqlite:///{Path(config.place).with_suffix('.db').absolute()}")
    return ExperienceStore(path, kept_bytes=None, backup=backup).open()
