"""Rules of the Data-Juicer service and of the task pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trinity.common.config.keys import KEYS, TASKSET, Key, present
from trinity.common.config.resolution import Resolution
from trinity.common.constants import TASKS_FILE

SERVICE = present(KEYS.service.data_juicer)
PIPELINE = present(KEYS.data_processor.task_pipeline)
TASKSETS = KEYS.buffer.explorer_input.tasksets
OPERATORS = KEYS.data_processor.experience_pipeline.operators
OPERATOR = "data_juicer"
TASKS = "tasks"
_DATA_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")
WEIGHTS = ("difficulty", "diversity", "usage_frequency", "quality")
MADE = ("priority", "quality_score", "difficulty_score", "diversity_score")
"""Columns that the task pipeline adds."""
_COLUMNS = (
    TASKSET.format.prompt_key,
    TASKSET.format.response_key,
    TASKSET.format.system_prompt_key,
    TASKSET.format.messages_key,
    TASKSET.format.tools_key,
    TASKSET.format.image_key,
    TASKSET.format.workflow_key,
    TASKSET.format.reward_fn_key,
)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def resolve_task_pipeline(resolution: Resolution) -> None:
    """Make what the task pipeline writes the input of the explorer.

    It is written to `output.path`, else to the path of the taskset where that is none of the inputs, else into the
    folder of the job.
    """
    section = resolution.config.data_processor.task_pipeline
    if section is None:
        return
    if resolution.mode not in ("both", "explore"):
        if resolution.is_own(PIPELINE):
            message = f"`{PIPELINE}` has no effect in mode {resolution.mode}"
            resolution.problem("W1902", PIPELINE, message, involves=(KEYS.mode,), suggestion="remove it")
        return
    tasks = resolution.config.buffer.explorer_input
    if tasks.tasksets:
        resolution.problem(
            "E1929",
            PIPELINE,
            f"`{PIPELINE}` makes one taskset, got {len(tasks.tasksets)} in `{TASKSETS}`",
            involves=(TASKSETS,),
            suggestion=f"name their files in `{PIPELINE.inputs}` and write one `{TASKSET}`",
        )
    if tasks.taskset is None:  # E1809 says so
        return
    raw = tasks.taskset.path
    if not section.inputs and raw:
        resolution.derive(PIPELINE.inputs, [raw] if isinstance(raw, str) else list(raw), TASKSET.path)
    _check_section(resolution)
    _check_columns(resolution)
    written = (section.output or {}).get("path")
    folder, why = str(Path(resolution.config.checkpoint_job_dir) / TASKS), "the folder of the job"
    if written:
        folder, why = str(written), f"{PIPELINE.output}.path"
    elif isinstance(raw, str) and raw and raw not in resolution.get(PIPELINE.inputs):
        folder, why = raw, "the folder that was written here"
    folder = folder.removesuffix(f"/{TASKS_FILE}")  # so a completed configuration has it
    if folder.endswith(_DATA_SUFFIXES):
        resolution.problem(
            "E1935",
            PIPELINE.output if written else TASKSET.path,
            f"`{KEYS.data_processor.task_pipeline}` writes a folder, got the file {folder}",
            suggestion=f"write `path: {folder.rpartition('.')[0]}`",
        )
        return
    resolution.derive(TASKSET.path, str(Path(folder) / TASKS_FILE), f"what the task pipeline writes, in {why}")


def _check_section(resolution: Resolution) -> None:
    section = resolution.get(PIPELINE)
    if not section.inputs:
        resolution.problem(
            "E1934", PIPELINE.inputs, f"`{PIPELINE.inputs}` is missing", suggestion="write where the raw tasks are"
        )
    if bool(section.operators) == bool(section.config_path):
        got = "both" if section.operators else "none"
        resolution.problem(
            "E1930",
            PIPELINE.operators,
            f"`{PIPELINE}` must have either operators or config_path, got {got}",
            suggestion="keep one of them",
        )
    unknown = sorted((section.output or {}).keys() - {"path", "name", "storage_type", "format", "split"})
    if section.output is not None and (unknown or not section.output.get("path")):
        resolution.problem(
            "E1935",
            PIPELINE.output,
            f"`{PIPELINE.output}` must have a `path`, the folder that is written, got {dict(section.output)}",
            suggestion="write `output: {path: tasks}`",
        )
    if section.top_k == 0:
        resolution.problem(
            "E1302",
            PIPELINE.top_k,
            f"`{PIPELINE.top_k}` keeps no task, got 0",
            rule="-1 for all, or a number >= 1",
            suggestion="write `top_k: -1`, or remove it",
        )
    strange = sorted(set(section.priority_weights or ()) - set(WEIGHTS))
    if strange:
        resolution.problem(
            "E1936",
            PIPELINE.priority_weights,
            f"`{PIPELINE.priority_weights}` has {', '.join(strange)}",
            rule=f"some of {', '.join(WEIGHTS)}",
            suggestion="remove it",
        )


def _check_columns(resolution: Resolution) -> None:
    """Check that the columns that are read are among those that are kept."""
    kept = resolution.get(PIPELINE.target_fields)
    columns = TASKSET.format
    form = resolution.get(columns.prompt_type)
    is_messages = form == "messages" or (form is None and resolution.is_given(columns.messages_key))
    prompt = columns.messages_key if is_messages else columns.prompt_key
    read = [key for key in _COLUMNS if resolution.is_given(key)]
    wanted: list[tuple[Key[Any], str]] = [(key, str(resolution.get(key))) for key in dict.fromkeys([prompt, *read])]
    features = TASKSET.data_selector.feature_keys
    wanted += [(features, name) for name in resolution.get(features) if name not in MADE]
    for key, name in wanted:
        if kept and name not in kept:
            resolution.problem(
                "E1954",
                PIPELINE.target_fields,
                f"`{PIPELINE.target_fields}` leaves out the column {name!r}, which `{key}` names",
                rule=f"with {name!r}, or empty: all columns are kept",
                involves=(key,),
                suggestion=f"write `target_fields: [{', '.join([*kept, name])}]`",
            )


def check_service(resolution: Resolution) -> None:
    """Check that there is one server to ask, and that somebody asks it."""
    config = resolution.config
    service = config.service.data_juicer
    if service is None:
        return
    asks = config.data_processor.task_pipeline is not None or any(
        operator.name == OPERATOR for operator in config.data_processor.experience_pipeline.operators
    )
    if not asks and resolution.is_own(SERVICE):
        message = f"`{SERVICE}` has no effect: no operator or task pipeline asks it"
        resolution.problem("W1902", SERVICE, message, suggestion="remove it")
        return
    if not service.auto_start and not service.server_url:
        resolution.problem(
            "E1937",
            SERVICE.server_url,
            f"`{SERVICE}` must say where a server is, or that one is started",
            suggestion="write `auto_start: true`",
        )
    elif service.server_url:
        _check_url(resolution, service.server_url)


def _check_url(resolution: Resolution, url: str) -> None:
    service = resolution.get(SERVICE)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = None, None, None
    if parts is None or parts.scheme not in ("http", "https") or not host:
        resolution.problem(
            "E1938",
            SERVICE.server_url,
            f"`{SERVICE.server_url}` is no address: {url}",
            rule="http://<host>:<port>",
            suggestion="write `server_url: http://127.0.0.1:5005`",
        )
    elif service.auto_start and (host not in _LOOPBACK or (port is not None and service.port not in (None, port))):
        resolution.problem(
            "E1939",
            SERVICE.server_url,
            f"`{SERVICE.server_url}: {url}` is not where `auto_start: true` starts a server: port {service.port} of "
            "127.0.0.1",
            involves=(SERVICE.auto_start, SERVICE.port),
            suggestion="remove server_url, or write `auto_start: false`",
        )
    elif service.auto_start and service.port is None and port is not None:
        resolution.derive(SERVICE.port, port, f"the port of {SERVICE.server_url}")
