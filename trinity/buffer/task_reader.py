"""Read tasks from a taskset in a selector's order, resuming exactly."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from trinity.buffer.checks import (
    Fault,
    control_token,
    feature_fault,
    missing_columns,
    missing_features,
    prompt_type,
    row_faults,
)
from trinity.buffer.data_files import is_of_pipeline, one_place
from trinity.buffer.dataset import Table, check_unchanged, fingerprint, load_table
from trinity.buffer.image_rows import image_fault, with_image_bytes
from trinity.buffer.prompt_limit import PromptLimit
from trinity.buffer.quarantine import MAX_BAD_ROW_RATIO, admit, write_quarantine
from trinity.buffer.rows import BadRow, DataRow
from trinity.buffer.selector.data_source import SelectedRows
from trinity.buffer.selector.selection import Selection, number_columns
from trinity.buffer.training_rows import tools_fault
from trinity.common.config.buffer import TasksetConfig
from trinity.common.errors import ConfigError, DataError
from trinity.common.rewards import REWARD_FUNCTIONS, RewardError, RewardFn
from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.workflow import Task, Workflow
from trinity.utils.declaration import declared_args, entry_of
from trinity.utils.log import get_logger
from trinity.utils.nested import as_written

_logger = get_logger("buffer")


class TaskReader:
    """Reads tasks.

    All rows are checked when the reader is made: those that cannot be used are in `quarantined`.

    Args:
        config: the taskset.
        batch_size: tasks of a `read` without a number.
        is_eval: the tasks are evaluated, not trained on.
        seed: of the selector, unless `config.data_selector` has its own.
        workflow: class that attempts the tasks; None: `config.default_workflow_type`.
        reward_fn: class of the reward function; None: `config.default_reward_fn_type`.
        total_epochs: passes over the rows, 0 without end; None: of `config` (without end if it has `total_steps`).
        max_bad_row_ratio: more bad rows are an error; in [0, 1].
        limit: the longest prompt, unless `config.long_prompts` is `keep`; None: any length.

    Raises:
        DataError: the dataset cannot be read or used (E4001 to E4060).
        ConfigError: unknown workflow, reward function or selector (E1701).
    """

    def __init__(
        self,
        config: TasksetConfig,
        *,
        batch_size: int = 1,
        is_eval: bool = False,
        seed: int | None = None,
        workflow: type[Workflow] | None = None,
        reward_fn: Any = None,
        total_epochs: int | None = None,
        max_bad_row_ratio: float = MAX_BAD_ROW_RATIO,
        limit: PromptLimit | None = None,
    ) -> None:
        self.config = config
        self.batch_size = batch_size
        self.is_eval = is_eval
        self.workflow = workflow or WORKFLOWS.get(config.default_workflow_type)
        self.reward_fn = reward_fn or REWARD_FUNCTIONS.get(config.default_reward_fn_type)
        if self.workflow is None and not config.format.workflow_key:
            raise ConfigError(f"taskset {config.name!r}: default_workflow_type is not set", code="E1614")
        self.table = self._load()
        self.kind = prompt_type(config.format, self.table.columns)
        self.quarantined: list[BadRow] = list(self.table.bad)
        self._rows = self._short_enough(self._check_rows(), limit)
        num_rows = len(self.table) + len(self.table.bad)
        admit(self.quarantined, num_rows=num_rows, max_bad_row_ratio=max_bad_row_ratio, name=config.name)
        self._selection = Selection(self, config.data_selector, seed=seed)
        epochs = (0 if config.total_steps else config.total_epochs) if total_epochs is None else total_epochs
        self._end = epochs * len(self._rows) if epochs else None
        self.num_left = self._end

    def __len__(self) -> int:
        """Return the number of usable rows."""
        return len(self._rows)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all rows, made when it is first asked for."""
        return fingerprint(self.table)

    @property
    def dataset_size(self) -> int:
        """The number of usable rows, for selectors."""
        return len(self._rows)

    @property
    def usable_rows(self) -> list[int]:
        """The numbers of the usable rows in the table, from 0."""
        return self._rows

    @property
    def dataset(self) -> SelectedRows:
        """The usable rows, for selectors."""
        return SelectedRows(self.table, self._rows)

    def read(self, n: int | None = None) -> list[Task]:
        """Return the next `n` tasks (None: `batch_size`).

        Fewer are returned at the end of the last epoch, none after it.
        """
        n = self.batch_size if n is None else n
        if self.num_left is not None:
            n = min(n, self.num_left)
            self.num_left -= n
        return [self.task(number) for number in self._selection.take(n)]

    async def read_async(self, n: int | None = None) -> list[Task]:
        """Return what `read` returns."""
        return self.read(n)

    def tasks(self) -> list[Task]:
        """Return all tasks once, in the order of the dataset.

        The position of the reader does not change.
        """
        return [self.task(number) for number in range(len(self))]

    def task(self, number: int) -> Task:
        """Return the task of usable row `number`, 0-based."""
        return self._task_of(self._rows[number], index=number)

    def _task_of(self, row_number: int, *, index: int) -> Task:
        config, row = self.config, self.table.row(row_number)
        workflow = self._named(row, "workflow_key", WORKFLOWS) or self.workflow
        return Task(
            workflow=workflow,
            repeat_times=config.repeat_times or 1,
            format_args=config.format,
            rollout_args=config.rollout_args,
            workflow_args=declared_args(workflow, kind="workflow") | config.workflow_args,
            reward_fn_args=dict(config.reward_fn_args),
            is_eval=self.is_eval,
            reward_fn=self._named(row, "reward_fn_key", REWARD_FUNCTIONS) or self.reward_fn,
            raw_task=with_image_bytes(dict(row.values), config.format, row),
            index={"index": index, "taskset_id": config.index},
        )

    @property
    def by_number(self) -> dict[int, TaskReader]:
        """The readers by the numbers of their tasksets: this one."""
        return {self.config.index: self}

    def feedback(self, **given: Any) -> None:
        """Pass results of tasks to the selector: `indices` and `values`."""
        self._selection.feedback(**given)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, JSON-able."""
        return {
            "fingerprint": self.fingerprint,
            "num_left": self.num_left,
            "selector_type": self.config.data_selector.selector_type,
        } | self._selection.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        With more epochs than before, the reader continues to their new end.

        Raises:
            CheckpointError: the dataset or the selector changed (E7005).
        """
        own = {"fingerprint": self.fingerprint, "selector_type": self.config.data_selector.selector_type}
        check_unchanged(f"taskset {self.config.name!r}", own, state)
        self._selection.load_state_dict(state)
        if self._end is not None:
            self.num_left = max(0, self._end - self._selection.num_read)
        for told in state.get("feedback", ()):  # older snapshots hold feedback that came after the position
            self.feedback(**told)

    def write_quarantine(self, folder: Path) -> Path | None:
        """Write the rows that are left out to `<folder>/<taskset>.jsonl`.

        Return the file, or None if no row is left out.
        """
        return write_quarantine(self.quarantined, folder, name=self.config.name)

    def _load(self) -> Table:
        config = self.config
        try:
            if config.storage_type == "sql":
                from trinity.buffer.sql_tables import TASKS, load_sql_table

                return load_sql_table(one_place(config.path), name=config.name, schema=TASKS)
            # What a task pipeline writes has one split, whichever its inputs had.
            split = "train" if is_of_pipeline(config.path) else config.split
            return load_table(config.path, split=split, subset_name=config.subset_name)
        except DataError as error:
            raise DataError(f"taskset {config.name!r}: {error.args[0]}", code=error.code) from error

    def _check_rows(self) -> list[int]:
        fmt, columns = self.config.format, self.table.columns
        needs_prompt = isinstance(self.workflow, type) and "prompt" in entry_of(self.workflow, kind="workflow").needs
        needs = {"prompt_key", "messages_key"} if needs_prompt else set()
        features = number_columns(self.config.data_selector)
        faults = [*missing_columns(fmt, columns, needs=needs), *missing_features(features, columns)]
        if faults and len(self.table):
            reasons = "; ".join(fault.reason for fault in faults)
            raise DataError(f"taskset {self.config.name!r}: {reasons}", code="E4004")
        has_prompt = (fmt.messages_key if self.kind == "messages" else fmt.prompt_key) in columns
        has_truth = self.reward_fn is not None and fmt.response_key in columns
        if self.kind == "messages":  # the column may be there for something else
            reward = self.reward_fn if isinstance(self.reward_fn, type) else None
            has_truth = has_truth and reward is not None and "truth" in entry_of(reward, kind="reward_fn").needs
        good, num_control = [], 0
        for number in range(len(self.table)):
            row = self.table.row(number)
            faulty = row_faults(fmt, row.values, kind=self.kind, has_prompt=has_prompt, needs_truth=has_truth)
            fault = next(faulty, None) or self._name_fault(row) or (self._tools_fault(row) if needs_prompt else None)
            fault = fault or feature_fault(features, row.values) or (self._truth_fault(row) if has_truth else None)
            fault = fault or image_fault(fmt, row, kind=self.kind)
            if fault is None:
                good.append(number)
                num_control += control_token(fmt, row.values, kind=self.kind) is not None
            else:
                self.quarantined.append(BadRow(row.file, row.line, fault.key, fault.reason, fault.code))
        if num_control:
            _logger.warning("[W4030] taskset %r: %d prompts contain control tokens", self.config.name, num_control)
        return good

    def _short_enough(self, rows: list[int], limit: PromptLimit | None) -> list[int]:
        """Return the rows without those of long prompts, as the taskset says."""
        config = self.config
        if config.long_prompts == "keep" or limit is None:
            return rows
        lengths = {number: limit.num_tokens(self._task_of(number, index=0)) for number in rows}
        long = [number for number, length in lengths.items() if length > limit.max_tokens]
        if not long:
            return rows
        first = self.table.row(long[0])
        said = (
            f"taskset {config.name!r}: {len(long)} of {len(rows)} prompts have more than {limit.max_tokens} tokens "
            f"with the chat template, the first {first.file}:{first.line} with {lengths[long[0]]}"
        )
        if config.long_prompts == "refuse":
            way_out = "raise model.max_prompt_tokens, or write long_prompts: drop (veRL: data.filter_overlong_prompts)"
            raise DataError(f"{said}; {way_out}", code="E4063")
        _logger.warning("%s; they are left out", said)
        kept = [number for number in rows if lengths[number] <= limit.max_tokens]
        if not kept:
            raise DataError(f"{said}; no row is left", code="E4063")
        return kept

    def _name_fault(self, row: DataRow) -> Fault | None:
        fmt = self.config.format
        for key, registry in ((fmt.workflow_key, WORKFLOWS), (fmt.reward_fn_key, REWARD_FUNCTIONS)):
            name = row.values.get(key) if key else None
            if name is not None and name not in registry:
                return Fault(str(key), registry.unknown(str(name)), "E4050")
        if self.workflow is None and row.values.get(str(fmt.workflow_key)) is None:
            return Fault(str(fmt.workflow_key), "names no workflow, and default_workflow_type is not set", "E4050")
        return None

    def _truth_fault(self, row: DataRow) -> Fault | None:
        key = self.config.format.response_key
        reward_fn = self._named(row, "reward_fn_key", REWARD_FUNCTIONS) or self.reward_fn
        if not (isinstance(reward_fn, type) and issubclass(reward_fn, RewardFn)):
            return None
        try:
            reward_fn.check_truth(row.values.get(key))
        except RewardError as error:
            return Fault(key, str(error.args[0]), error.code)
        return None

    def _tools_fault(self, row: DataRow) -> Fault | None:
        key = self.config.format.tools_key
        return tools_fault(key, as_written(row.values.get(key)))

    def _named(self, row: DataRow, format_key: str, registry: Any) -> Any:
        column = self.config.format.workflow_key if format_key == "workflow_key" else self.config.format.reward_fn_key
        return registry.get(row.values.get(column)) if column else None
