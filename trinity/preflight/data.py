"""Checks of the first rows of every dataset and table of a stage.

They need no torch, no `datasets` and no network.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from trinity.buffer.checks import (
    Fault,
    control_token,
    feature_fault,
    missing_columns,
    missing_features,
    prompt_type,
    row_faults,
)
from trinity.buffer.data_files import check_split_of_file, data_files, is_one_file, one_place, places_of
from trinity.buffer.image_rows import image_fault
from trinity.buffer.quarantine import MAX_BAD_ROW_RATIO, num_admitted
from trinity.buffer.rows import BadRow, DataRow, read_rows
from trinity.buffer.training_rows import decoded, form_of, training_row_faults
from trinity.common.config.buffer import (
    DataSelectorConfig,
    ExperienceBufferConfig,
    FormatConfig,
    TasksetConfig,
)
from trinity.common.config.keys import AUXILIARY, EXPERIENCES, KEYS, present
from trinity.common.config.problems import Finding
from trinity.common.config.row_schemas import SCHEMAS
from trinity.common.errors import DataError, EnvironmentProblem
from trinity.preflight.model_dir import not_fetched, syntax_findings
from trinity.utils.remote.addresses import is_remote

if TYPE_CHECKING:
    from trinity.common.config import Catalogue, Config

MAX_ROWS = 50
_NUM_SHOWN = 3


def check_data(config: Config, *, catalogue: Catalogue) -> Iterator[Finding]:
    """Yield the problems of a stage's datasets.

    The catalogue says which columns workflows and rewards read.
    """
    for key, taskset in tasksets(config).items():
        yield from _template_faults(taskset.format, f"{key}.format")
        workflow = catalogue.entry("workflow", taskset.default_workflow_type)
        own = workflow.default_reward_fn if workflow is not None else None
        reward = catalogue.entry("reward_fn", taskset.default_reward_fn_type or own)
        yield from check_taskset(
            taskset,
            key,
            needs_prompt=workflow is not None and "prompt" in workflow.needs,
            needs_truth=reward is not None and "truth" in reward.needs,
            features=number_columns(taskset.data_selector, catalogue),
            max_bad_row_ratio=config.buffer.max_bad_row_ratio,
            catalogue=catalogue,
        )
    for key, source, schema in training_datasets(config):
        yield from _template_faults(source.format, f"{key}.format")
        features = number_columns(source.data_selector, catalogue)
        ratio = config.buffer.max_bad_row_ratio
        yield from check_taskset(
            source, key, needs_truth=True, schema=schema, features=features, max_bad_row_ratio=ratio
        )


def _template_faults(fmt: FormatConfig, key: str) -> Iterator[Finding]:
    """Yield the syntax error of the chat template of a format (E3109)."""
    if fmt.chat_template:
        yield from syntax_findings(f"{key}.chat_template", fmt.chat_template, key=f"{key}.chat_template")


def number_columns(settings: DataSelectorConfig, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the columns that the selector reads numbers of."""
    entry = catalogue.entry("selector", settings.selector_type)
    return () if entry is None or entry.num_features in (None, (0, 0)) else settings.feature_keys


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
    trained = {} if section.taskset is None else _trained(config, section.taskset)
    trained |= {str(key.tasksets[index]): each for index, each in enumerate(section.tasksets)}
    return trained | {str(key.eval_tasksets[index]): each for index, each in enumerate(section.eval_tasksets)}


def _trained(config: Config, taskset: TasksetConfig) -> dict[str, TasksetConfig]:
    """Return the taskset of training, or what a task pipeline makes it from."""
    pipeline = config.data_processor.task_pipeline
    if pipeline is None or config.mode not in ("both", "explore"):
        return {str(KEYS.buffer.explorer_input.taskset): taskset}
    inputs = present(KEYS.data_processor.task_pipeline).inputs
    return {str(inputs[i]): taskset.model_copy(update={"path": path}) for i, path in enumerate(pipeline.inputs)}


def trained_dataset(config: Config) -> ExperienceBufferConfig | None:
    """Return the training dataset, if any."""
    output = config.buffer.trainer_input.experience_buffer
    return output if output is not None and output.storage_type == "file" and config.mode == "train" else None


def training_datasets(config: Config) -> Iterator[tuple[str, ExperienceBufferConfig, str | None]]:
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
    features: Sequence[str] = (),
    max_bad_row_ratio: float = MAX_BAD_ROW_RATIO,
    catalogue: Catalogue | None = None,
) -> list[Finding]:
    """Return the problems of a dataset or table, from its first 50 rows.

    A hub id and a folder written by `save_to_disk` are accepted unseen; so is an address, with a warning.

    Args:
        source: where the rows are, and the names of the columns.
        where: the key of its section.
        needs_prompt: the workflow reads the prompt's column.
        needs_truth: the reward function reads the response's column.
        schema: kind of training that reads the rows, `sft`, `dpo`, `cpt` or `experience`; None for tasks.
        features: columns of numbers that the selector reads.
        max_bad_row_ratio: more bad rows are an error; in [0, 1].
        catalogue: of the workflows and reward functions that rows may name; None: their names are not looked at.
    """
    fmt = source.format
    if not source.path:
        return [_finding("E4001", where, "path is not set; give a file, a folder, a hub id or a database")]
    for number, place in enumerate(places_of(source.path)):
        if not place:
            text = f"path[{number}] is empty; give a file, a folder or a hub id, or remove it"
            return [_finding("E4001", where, text)]
    unseen = [not_fetched(f"{where}.path", place) for place in places_of(source.path) if is_remote(place)]
    if source.subset_name and is_one_file(source.path):
        text = f"{source.path} is one file and read whole: subset_name {source.subset_name!r} chooses nothing of it"
        unseen.append(_finding("W4003", where, text))
    try:
        rows = _first_rows(source, schema=schema)
    except (DataError, EnvironmentProblem) as error:
        return [*unseen, _finding(error.code, where, error.args[0])]
    if rows is None:
        return unseen
    if not rows:
        return [_finding("E4002", where, f"{source.path} has no rows in split {source.split!r}")]
    if schema is not None:
        needs = set(SCHEMAS[schema].needed)
    else:
        needs = {"prompt_key", "messages_key"} if needs_prompt else set()
        needs |= {"response_key"} if needs_truth else set()
    most = num_admitted(len(rows), max_bad_row_ratio=max_bad_row_ratio)
    return [
        *unseen,
        *_check_rows(
            rows, fmt, where=where, needs=needs, schema=schema, features=features, most=most, catalogue=catalogue
        ),
    ]


def _first_rows(source: TasksetConfig | ExperienceBufferConfig, *, schema: str | None) -> list[DataRow | BadRow] | None:
    """Return the first 50 rows; None where they cannot be looked at yet."""
    if source.storage_type == "sql":
        from trinity.buffer.sql_tables import TASKS, load_sql_table

        table = load_sql_table(one_place(source.path), name=source.name, schema=schema or TASKS)
        return [*table.bad, *(table.row(number) for number in range(min(len(table), MAX_ROWS)))]
    found: list[DataRow | BadRow] | None = None
    check_split_of_file(source.path, split=source.split)
    for place in places_of(source.path):
        if is_remote(place):
            continue
        files = data_files(place, split=source.split, subset_name=source.subset_name)
        if files:
            found = [*(found or ()), *itertools.islice(itertools.chain.from_iterable(map(read_rows, files)), MAX_ROWS)]
    return found


def _check_rows(
    rows: list[DataRow | BadRow],
    fmt: FormatConfig,
    *,
    where: str,
    needs: set[str],
    schema: str | None,
    features: Sequence[str],
    most: int,
    catalogue: Catalogue | None,
) -> list[Finding]:
    good = [row for row in rows if isinstance(row, DataRow)]
    bad: list[tuple[str, str]] = [(row.code, str(row)) for row in rows if isinstance(row, BadRow)]
    columns = list(dict.fromkeys(key for row in good for key in row.values))
    faults = missing_columns(fmt, columns, needs=needs) if good else []
    if len(rows) >= MAX_ROWS:  # of the columns named, tools may be there in a few rows only, which come later
        faults = [fault for fault in faults if fault.key != fmt.tools_key]
    faults += missing_features(features, columns) if good else []
    if faults:
        return [_finding(fault.code, where, fault.reason) for fault in faults]
    kind = prompt_type(fmt, columns) if schema is None else form_of(schema, fmt, columns)
    key = fmt.messages_key if kind == "messages" else fmt.prompt_key
    # Messages may hold all that a reward needs; a column of answers is read where there is one.
    has_truth = kind == "plaintext" or fmt.response_key in columns
    marks = {"has_prompt": key in columns, "needs_truth": "response_key" in needs and has_truth}
    warnings: list[Finding] = []
    for row in good:
        if schema is None:
            of_row = row_faults(fmt, row.values, kind=kind, **marks)
        else:
            of_row = training_row_faults(schema, fmt, decoded(fmt, row.values, kind=kind), kind=kind)
        fault: Fault | None = next(of_row, None) or feature_fault(features, row.values)
        fault = fault or image_fault(fmt, row, kind=kind)
        if schema is None and catalogue is not None:
            fault = fault or _name_fault(fmt, row, catalogue)
        if fault is not None:
            bad.append((fault.code, f"{row.file}:{row.line}: {fault.key}: {fault.reason}"))
        token = control_token(fmt, row.values, kind=kind)
        if token is not None and not warnings:
            text = f"{row.file}:{row.line}: the text contains the control token {token}"
            warnings.append(_finding("W4030", where, f"{text}; the tokenizer may read it as the end of a message"))
    if len(bad) <= most:
        # As many as a run sets aside by itself.
        return warnings + [_finding(f"W{code[1:]}", where, f"{text}; the row will be left out") for code, text in bad]
    return warnings + [_finding(code, where, text) for code, text in _first_of_each(bad, len(rows))]


def _name_fault(fmt: FormatConfig, row: DataRow, catalogue: Catalogue) -> Fault | None:
    """Return why a row names no workflow or reward function (E4050).

    A plugin that cannot be read here may register any name, and one with dots is a place that only the run imports.
    """
    for column, registry in ((fmt.workflow_key, "workflow"), (fmt.reward_fn_key, "reward_fn")):
        name = row.values.get(column) if column else None
        if name is None or catalogue.has_unknown_plugins or "." in str(name) or catalogue.knows(registry, str(name)):
            continue
        near = catalogue.nearest(registry, str(name))
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(catalogue.names(registry))}"
        return Fault(str(column), f"unknown {registry} {str(name)[:80]!r}; {hint}", "E4050")
    return None


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
