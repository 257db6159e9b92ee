"""Rules of what comes into the experience pipeline, and of what leaves it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trinity.common.config.following import note_idle
from trinity.common.config.keys import EXPERIENCES, KEYS
from trinity.common.config.resolution import Resolution
from trinity.common.config.resolved import input_log
from trinity.common.config.rules.databases import absolute_url, is_database

PIPELINE = KEYS.data_processor.experience_pipeline
AUXILIARY = KEYS.buffer.trainer_input.auxiliary_buffers
_COPY_SUFFIXES = (".json", ".jsonl")
_FILE_SUFFIXES = (".db", ".sqlite", ".sqlite3")


def resolve_pipeline_input(resolution: Resolution) -> None:
    """Fill in where the input is kept; check `inputs` and `output`."""
    if resolution.mode not in ("both", "explore"):
        if resolution.is_own(PIPELINE.save_input) and resolution.get(PIPELINE.save_input):
            message = f"`{PIPELINE.save_input}` has no effect in mode {resolution.mode}: nothing is explored"
            resolution.problem("W1902", PIPELINE.save_input, message, involves=(KEYS.mode,), suggestion="remove it")
        if resolution.mode == "train" and resolution.is_own(PIPELINE.operators) and resolution.get(PIPELINE.operators):
            message = f"`{PIPELINE.operators}` has no effect in mode train: what an explorer stores has passed them"
            way_out = "for stored rollouts, give them to trinity rescore --set, or remove them"
            resolution.problem("W1902", PIPELINE.operators, message, involves=(KEYS.mode,), suggestion=way_out)
        return
    note_idle(resolution, PIPELINE)
    written = resolution.get(PIPELINE.input_save_path)
    if resolution.get(PIPELINE.save_input):
        _resolve_place(resolution)
    _check_inputs(resolution, written)
    _check_output(resolution)


def _resolve_place(resolution: Resolution) -> None:
    key, own = PIPELINE.input_save_path, input_log(resolution.config)
    path = resolution.get(key)
    if not path:
        resolution.derive(key, own, "the run's own log of it")
        return
    if "://" not in path and path.lower().endswith(_COPY_SUFFIXES):
        copy = os.path.normpath(resolution.cwd / Path(path).expanduser())
        resolution.derive(PIPELINE.input_copy_path, copy, f"{key} is a JSON file")
        resolution.derive(key, own, "the run's own log of it; the written path is its copy")
        return
    url = absolute_url(path, resolution.cwd)
    if not is_database(url) or ("://" not in path and not path.lower().endswith(_FILE_SUFFIXES)):
        resolution.problem(
            "E1951",
            key,
            f"`{key}` is no place that experiences can be kept in",
            rule="a file that ends in .jsonl or .db, sqlite:///<file> or postgresql://user@host/database",
            suggestion="write `input_save_path: pipeline_input.jsonl`",
        )
        return
    if url == resolution.get(EXPERIENCES.path):
        resolution.problem(
            "E1951",
            key,
            f"`{key}` is the database of `{EXPERIENCES}`, where what left the pipeline goes",
            rule="a database of its own",
            involves=(EXPERIENCES.path,),
            suggestion="remove it",
        )
        return
    resolution.derive(key, url, "a relative database is relative to the working directory")


def _check_inputs(resolution: Resolution, written: str | None) -> None:
    for name, given in resolution.get(PIPELINE.inputs).items():
        path = given.get("path")
        if path is None or path not in (written, resolution.get(PIPELINE.input_save_path)):
            resolution.problem(
                "E1952",
                PIPELINE.inputs[name],
                f"`{PIPELINE.inputs[name]}` is another source of experiences, and the pipeline processes those of the "
                "explorer of this run only",
                rule=f"the path of {PIPELINE.input_save_path}",
                suggestion=f"write it under `{AUXILIARY}`, which the trainer reads, or run `mode: train` on it",
            )


def _check_output(resolution: Resolution) -> None:
    given, buffer = resolution.get(PIPELINE.output), resolution.config.buffer.trainer_input.experience_buffer
    if not given or buffer is None:
        return
    for name, value in given.items():
        known = _known(resolution, name)
        if value is not None and value not in known:
            shown = next((each for each in reversed(known) if each is not None), "nothing of this kind")
            resolution.problem(
                "E1953",
                PIPELINE.output,
                f"`{PIPELINE.output}.{name}: {value}` is not that of `{EXPERIENCES}` ({shown}), where what leaves the "
                "pipeline goes",
                involves=(EXPERIENCES,),
                suggestion=f"remove it, or write it as `{EXPERIENCES}.{name}`",
            )
            return


def _known(resolution: Resolution, name: str) -> list[Any]:
    """Return a value of the buffer, as it was written and as it is."""
    key = {"name": EXPERIENCES.name, "storage_type": EXPERIENCES.storage_type, "path": EXPERIENCES.path}.get(name)
    if key is None:
        return []
    written = resolution.typed.buffer.trainer_input.experience_buffer
    copy = resolution.get(EXPERIENCES.backup_path) if name == "path" else None
    return [None if written is None else getattr(written, name), copy, resolution.get(key)]
