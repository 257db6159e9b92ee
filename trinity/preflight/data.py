"""Checks of the first rows of every dataset and table of a stage.

They need no torch, no `datasets` and no network.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from trinity.buffer.checks import Fault, control_token, missing_columns, prompt_type, row_faults
from trinity.buffer.data_files import data_files
from trinity.buffer.rows import BadRow, DataRow, read_rows
from trinity.buffer.training_rows import decoded, form_of, training_row_faults
from trinity.common.config.buffer import ExperienceBufferConfig, FormatConfig, TasksetConfig
from trinity.common.config.keys import AUXILIARY, EXPERIENCES, KEYS
from trinity.common.config.problems import Finding
from trinity.common.config.row_schemas import SCHEMAS
from trinity.common.errors import DataError, EnvironmentProblem

if TYPE_CHECKING:
    from trinity.common.config import Catalogue, Config

MAX_ROWS = 50
_NUM_SHOWN = 3


def check_data(config: Config, *, catalogue: Catalogue) -> Iterator[Finding]:
    """Yield the problems of a stage's datasets.

    The catalogue says which columns workflows and rewards read.
    """
    for key, taskset in tasksets(config).items():
        workflow = catalogue.entry("workflow", taskset.default_workflow_type)
        own = workflow.default_reward_fn if workflow is not None else None
        reward = catalogue.entry("reward_fn", taskset.default_reward_fn_type or own)
        yield from check_taskset(
            taskset,
            key,
            needs_prompt=workflow is not None and "prompt" in workflow.needs,
            needs_truth=reward is not None and "truth" in reward.needs,
        )
    for key, source, schema in _datasets(config):
        yield from check_taskset(source, key, needs_truth=True, schema=schema)


def check_tables(config: Config, *, written: Collection[str]) -> Iterator[Finding]:
    """Yield problems of demonstrations in databases, except `written` ones."""
    if config.mode not in ("both", "train"):
        return
    for name, buffer in config.buffer.trainer_input.auxiliary_buffers.items():
        if buffer.storage_type == "sql" and buffer.schema_type is not None and buffer.path not in written:
            yield from check_taskset(buffer, str(AUXILIARY[name]), schema=buffer.schema_type)


def tasksets(config: Config) -> dict[str, TasksetConfig]:
    """Return the tasksets that a stage reads, by key; none in mode train."""
    section, key = config.buffer.explorer_input, KEYS.buffer.explorer_input
    if config.mode == "train":
        return {}
    trained = {} if section.taskset is None else {str(key.taskset): section.taskset}
    return trained | {str(key.eval_tasksets[index]): each for index, each in enumerate(section.eval_tasksets)}


def trained_dataset(config: Config) -> ExperienceBufferConfig | None:
    """Return the training dataset, if any."""
    output = config.buffer.trainer_input.experience_buffer
    return output if output is not None and output.storage_type == "file" and config.mode == "train" else None


def _datasets(config: Config) -> Iterator[tuple[str, ExperienceBufferConfig, str | None]]:
    """Yield key, configuration and training type of each training dataset."""
    output = trained_dataset(config)
    if output is not None:
        yield str(EXPERIENCES), output, output.schema_type
    for name, dataset in config.buffer.trainer_input.auxiliary_buffers.items():
        if dataset.storage_type == "file" and dataset.schema_type == "sft":
            yield str(AUXILIARY[name]), dataset, "sft"


def check_taskset(
    source: TasksetConfig | ExperienceBufferConfig,
    where: str,
    *,
    needs_prompt: bool = True,
    needs_truth: bool = False,
    schema: str | None = None,
) -> list[Finding]:
    """Return the problems of a dataset or table, from its first 50 rows.

    A hub id and a folder written by `save_to_disk` are accepted unseen.

    Args:
        source: where the rows are, and the names of the columns.
        where: the key of its section.
        needs_prompt: the workflow reads the prompt's column.
        needs_truth: the reward function reads the response's column.
        schema: kind of training that reads the rows, `sft`, `dpo`, `cpt` or `experience`; None for tasks.
    """
    fmt = source.format
    if not source.path:
        return [_finding("E4001", where, "path is not set; give a file, a folder, a hub id or a database")]
    try:
        rows = _first_rows(source, schema=schema)
    except (DataError, EnvironmentProblem) as error:
        return [_finding(error.code, where, error.args[0])]
    if rows is None:
        return []
    if not rows:
        return [_finding("E4002", where, f"{source.path} has no rows in split {source.split!r}")]
    if schema is not None:
        return _check_rows(rows, fmt, where=where, needs=set(SCHEMAS[schema].needed), schema=schema)
    needs = {"prompt_key", "messages_key"} if needs_prompt else set()
    return _check_rows(rows, fmt, where=where, needs=needs | ({"response_key"} if needs_truth else set()))


def _first_rows(source: TasksetConfig | ExperienceBufferConfig, *, schema: str | None) -> list[DataRow | BadRow] | None:
    """Return the first 50 rows; None where they cannot be looked at yet."""
    if source.storage_type == "sql":
        from trinity.buffer.sql_tables import TASKS, load_sql_table

        table = load_sql_table(source.path, name=source.name, schema=schema or TASKS)
        return [*table.bad, *(table.row(number) for number in range(min(len(table), MAX_ROWS)))]
    files = data_files(str(source.path), split=source.split, subset_name=source.subset_name)
    return list(itertools.islice(itertools.chain.from_iterable(map(read_rows, files)), MAX_ROWS)) if files else None


def _check_rows(
    rows: list[DataRow | BadRow], fmt: FormatConfig, *, where: str, needs: set[str], schema: str | None = None
) -> list[Finding]:
    good = [row for row in rows if isinstance(row, DataRow)]
    bad: list[tuple[str, str]] = [(row.code, str(row)) for row in rows if isinstance(row, BadRow)]
    columns = list(dict.fromkeys(key for row in good for key in row.values))
    faults = missing_columns(fmt, columns, needs=needs) if good else []
    if len(rows) == MAX_ROWS:  # of the columns named, tools may be there in a few rows only, which come later
        faults = [fault for fault in faults if fault.key != fmt.tools_key]
    if faults:
        return [_finding(fault.code, where, fault.reason) for fault in faults]
    kind = prompt_type(fmt, columns) if schema is None else form_of(schema, fmt, columns)
    key = fmt.messages_key if kind == "messages" else fmt.prompt_key
    marks = {"has_prompt": key in columns, "needs_truth": "response_key" in needs}
    warnings: list[Finding] = []
    for row in good:
        if schema is None:
            of_row = row_faults(fmt, row.values, kind=kind, **marks)
        else:
            of_row = training_row_faults(schema, fmt, decoded(fmt, row.values, kind=kind), kind=kind)
        fault: Fault | None = next(of_row, None)
        if fault is not None:
            bad.append((fault.code, f"{row.file}:{row.line}: {fault.key}: {fault.reason}"))
        token = control_token(fmt, row.values, kind=kind)
        if token is not None and not warnings:
            text = f"{row.file}:{row.line}: the text contains the control token {token}"
            warnings.append(_finding("W4030", where, f"{text}; the tokenizer may read it as the end of a message"))
    if len(bad) <= max(1, len(rows) // 100):
        # As many as a run sets aside by itself.
        return warnings + [_finding(f"W{code[1:]}", where, f"{text}; the row will be left out") for code, text in bad]
    return warnings + [_finding(code, where, text) for code, text in _first_of_each(bad, len(rows))]


def _finding(code: str, where: str, message: object) -> Finding:
    return Finding(code, f"{where}.path", f"{where}: {message}")


def _first_of_each(bad: list[tuple[str, str]], num_rows: int) -> list[tuple[str, str]]:
    """Return the first rows of each code, and the number of the others."""
    shown: list[tuple[str, str]] = []
    for code in dict.fromkeys(code for code, _ in bad):
        texts = [text for other, text in bad if other == code]
        more = len(texts) - _NUM_SHOWN
        if more > 0:
            texts = texts[:_NUM_SHOWN]
            texts[-1] += f" (and {more} more of the first {num_rows} rows)"
        shown += [(code, text) for text in texts]
    return shown
