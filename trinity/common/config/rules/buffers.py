"""Rules of the experience buffer: place, replay, capacity and names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.config.following import note_idle, set_from
from trinity.common.config.keys import AUXILIARY, EXPERIENCES, KEYS, Key, args_of, path_of
from trinity.common.config.resolution import Resolution
from trinity.common.config.rules.batches import num_trained
from trinity.common.config.rules.databases import absolute_url, has_several, is_database
from trinity.common.config.rules.registered import Chosen, check_name, resolve_arguments
from trinity.common.config.rules.selectors import check_selector
from trinity.common.config.rules.tasksets import (
    check_format,
    check_multi_turn,
    resolve_format,
    tasksets,
    trained_tasksets,
)
from trinity.common.constants import BENCH, TRAINER

REPLAY = EXPERIENCES.replay_buffer
INPUT = KEYS.buffer.explorer_input
FUNCTION = REPLAY.priority_fn
COOLDOWN = REPLAY.reuse_cooldown_time
_BACKUP_SUFFIXES = (".json", ".jsonl")


def resolve_experience_buffer(resolution: Resolution) -> None:
    """Fill type and place of the experience buffer; check the mode can use it."""
    algorithm = resolution.config.algorithm.algorithm_type
    trains_on_data = resolution.trains_on_dataset
    if resolution.config.buffer.trainer_input.experience_buffer is None:
        if resolution.mode == "train" and trains_on_data:
            resolution.problem(
                "E1809",
                EXPERIENCES,
                f"`{EXPERIENCES}` is missing: {algorithm} trains on a dataset",
                involves=(KEYS.algorithm.algorithm_type,),
                suggestion="write `buffer: {trainer_input: {experience_buffer: {path: data.jsonl}}}`",
            )
            return
        resolution.put(EXPERIENCES, ExperienceBufferConfig())
    if resolution.get(EXPERIENCES.storage_type) is None:
        resolution.derive(
            EXPERIENCES.storage_type,
            "file" if trains_on_data else "queue",
            f"{algorithm} trains on a dataset" if trains_on_data else "experiences come from an explorer",
        )
    kind = resolution.filled(EXPERIENCES.storage_type)
    _check_storage(resolution, kind, trains_on_data=trains_on_data)
    _resolve_place(resolution, kind)
    resolve_format(resolution, EXPERIENCES.format)
    if trains_on_data:
        check_format(resolution, EXPERIENCES.format, resolution.schema)
    else:
        check_multi_turn(resolution, EXPERIENCES.format)
    check_selector(resolution, EXPERIENCES.data_selector)
    values = resolution.config
    set_from(resolution, EXPERIENCES.schema_type, resolution.schema, "algorithm_type")
    set_from(resolution, EXPERIENCES.tokenizer_path, values.model.model_path, KEYS.model.model_path)
    set_from(resolution, EXPERIENCES.total_epochs, values.buffer.total_epochs, KEYS.buffer.total_epochs)
    set_from(resolution, EXPERIENCES.total_steps, values.trainer.total_steps, KEYS.trainer.total_steps)
    set_from(resolution, EXPERIENCES.batch_size, values.buffer.train_batch_size, KEYS.buffer.train_batch_size)


def _check_storage(resolution: Resolution, kind: str, *, trains_on_data: bool) -> None:
    key = EXPERIENCES.storage_type
    involves = (KEYS.mode, KEYS.algorithm.algorithm_type)
    if kind == "file" and resolution.mode == "both" and not trains_on_data:
        resolution.problem(
            "E1811",
            key,
            f"`{key}: file` cannot feed a trainer while an explorer writes it",
            rule="queue or sql in mode both",
            involves=involves,
            suggestion="write `storage_type: queue`",
        )
    elif kind == "file" and resolution.mode == "train" and not trains_on_data:
        resolution.problem(
            "E1811",
            key,
            f"`{key}: file` is a dataset, and {resolution.config.algorithm.algorithm_type} trains on experiences",
            rule="queue or sql",
            involves=involves,
            suggestion="write `storage_type: queue`",
        )
    elif kind != "file" and trains_on_data:
        resolution.problem(
            "E1900",
            key,
            f"`{key}: {kind}` for {resolution.config.algorithm.algorithm_type} is not available yet in this version",
            involves=involves,
            suggestion="write `storage_type: file`",
        )
    if kind == "file" and trains_on_data and not resolution.get(EXPERIENCES.path):
        resolution.problem(
            "E1826",
            EXPERIENCES.path,
            f"`{EXPERIENCES.path}` is missing: a file buffer is a dataset",
            suggestion="write the folder or file of the dataset",
        )


def _resolve_place(resolution: Resolution, kind: str) -> None:
    """Make the path of an output file or a store's URL absolute."""
    if kind == "file":
        if resolution.mode in ("explore", "serve") and not has_several(resolution, EXPERIENCES.path):
            _resolve_output_file(resolution)
        return
    if has_several(resolution, EXPERIENCES.path):
        return
    path, folder = cast("str | None", resolution.get(EXPERIENCES.path)), Path(resolution.filled(KEYS.buffer.cache_dir))
    own = f"sqlite:///{folder / 'experience.db'}"
    if not path:
        resolution.derive(EXPERIENCES.path, own, "the run's own store")
        return
    if "://" not in path and path.lower().endswith(_BACKUP_SUFFIXES):
        resolution.derive(
            EXPERIENCES.backup_path, str(_absolute(resolution, path)), "path is a JSON file: a backup of the queue"
        )
        resolution.derive(EXPERIENCES.path, own, "the run's own store; the written path is its backup")
        return
    url = absolute_url(path, resolution.cwd)
    if not is_database(url):
        resolution.problem(
            "E1829",
            EXPERIENCES.path,
            f"`{EXPERIENCES.path}` is no database that experiences can be stored in",
            rule="sqlite:///<file> or postgresql://user@host/database",
            suggestion="write `path: sqlite:///experience.db`",
        )
        return
    resolution.derive(EXPERIENCES.path, url, "a relative database is relative to the working directory")


def _resolve_output_file(resolution: Resolution) -> None:
    """Fill the path of the explorer's output file; it defaults to the job's."""
    path = cast("str | None", resolution.get(EXPERIENCES.path))
    if path and "://" in path:
        resolution.problem(
            "E1890",
            EXPERIENCES.path,
            f"`{EXPERIENCES.path}` is a database, and storage_type file writes JSON lines",
            rule="a file that ends in .jsonl, or a folder",
            involves=(EXPERIENCES.storage_type,),
            suggestion="write `storage_type: sql`",
        )
        return
    file = _absolute(resolution, path or resolution.filled(KEYS.buffer.cache_dir))
    if file.suffix.lower() not in _BACKUP_SUFFIXES:
        file /= f"{resolution.get(EXPERIENCES.name)}.jsonl"
    resolution.derive(EXPERIENCES.backup_path, str(file), "what the explorer writes")


def _absolute(resolution: Resolution, path: str) -> Path:
    return Path(os.path.normpath(resolution.cwd / Path(path).expanduser()))


def check_unique_names(resolution: Resolution) -> None:
    """Refuse one name for two tasksets, buffers or components."""
    keys = [KEYS.trainer.name]
    if resolution.explores:
        keys = [KEYS.explorer.name, KEYS.trainer.name, *(key.name for key in tasksets(resolution))]
    if resolution.config.buffer.trainer_input.experience_buffer:
        keys.append(EXPERIENCES.name)
    keys += [AUXILIARY[name].name for name in resolution.get(AUXILIARY) if _shares_names(resolution, AUXILIARY[name])]
    evaluated = {str(INPUT.eval_tasksets[i].name) for i in range(len(resolution.get(INPUT.eval_tasksets)))}
    trained = [each.name for each in trained_tasksets(resolution)]
    seen: dict[str, Key[str]] = {}
    _check_place(resolution)
    for key in keys:
        name = resolution.get(key)
        if name not in seen:
            seen[name] = key
            continue
        origin = resolution.origin(seen[name])
        place = f" ({origin.describe()})" if origin else ""
        if seen[name] in trained and str(key) in evaluated:
            resolution.problem(
                "W1305",
                key,
                f"`{key}` is {name}, and so is `{seen[name]}`{place}: the evaluation has the metrics "
                f"`eval/{name}`, and its rows that are left out are in the folder `eval`",
                value=name,
                suggestion="give each its own name if you want two names",
            )
            continue
        resolution.problem(
            "E1305",
            key,
            f"`{key}` is {name}, and so is `{seen[name]}`{place}",
            value=name,
            rule="unique",
            suggestion="give each its own name",
        )


def _shares_names(resolution: Resolution, key: Key[ExperienceBufferConfig]) -> bool:
    """Return whether an auxiliary buffer needs a name of its own.

    In another database, the name is that of the rows there. A buffer that nothing reads, for example in a stage
    of another algorithm, was not resolved and needs none.
    """
    if not resolution.is_given(key.name) or not resolution.get(key.tokenizer_path):
        return False
    shared = resolution.config.buffer.trainer_input.experience_buffer
    is_elsewhere = shared is None or resolution.get(key.path) != shared.path
    return resolution.get(key.storage_type) == "file" or not is_elsewhere


def _check_place(resolution: Resolution) -> None:
    """Refuse a separate explorer named like another component's job folder."""
    name = resolution.config.explorer.name
    if resolution.mode in ("explore", "serve") and name in {TRAINER, BENCH} - {resolution.config.trainer.name}:
        resolution.problem(
            "E1305",
            KEYS.explorer.name,
            f"`explorer.name` is {name}, which is the place of another component in the folder of the job",
            value=name,
            rule=f"neither {TRAINER} nor {BENCH}",
            suggestion="give the explorer its own name",
        )


def check_replay(resolution: Resolution) -> None:
    """Check the priority function and whether the queue's capacity suffices."""
    if resolution.config.buffer.trainer_input.experience_buffer is None:
        return
    if resolution.get(REPLAY.enable):
        _check_replay(resolution)
    elif resolution.is_own(REPLAY) and any(map(resolution.is_given, (FUNCTION, args_of(FUNCTION)))):
        resolution.problem(
            "W1902", REPLAY, f"`{REPLAY}` has no effect: enable is false", suggestion="write `enable: true`"
        )
    if not resolution.trains_on_dataset:
        _check_capacity(resolution)


def _check_replay(resolution: Resolution) -> None:
    kind = resolution.get(EXPERIENCES.storage_type)
    if kind != "queue":
        resolution.problem(
            "E1867",
            REPLAY.enable,
            f"`{REPLAY}` uses the experiences of a queue again, and storage_type is {kind}",
            rule="storage_type queue",
            involves=(EXPERIENCES.storage_type, KEYS.algorithm.algorithm_type),
            suggestion="write `storage_type: queue`",
        )
        return
    function = resolution.get(FUNCTION)
    if check_name(resolution, FUNCTION, "priority_fn", function):
        resolve_arguments(resolution, Chosen(FUNCTION, args_of(FUNCTION), "priority_fn", function))
    cooldown = resolution.get(COOLDOWN)
    if cooldown is None and path_of(COOLDOWN) not in resolution.broken:
        resolution.problem(
            "W1902",
            REPLAY.enable,
            f"`{REPLAY.enable}` has no effect: without reuse_cooldown_time no experience is used again",
            suggestion="write `reuse_cooldown_time: 0`, or the pause in seconds",
        )
    elif cooldown and resolution.config.deterministic:
        resolution.problem(
            "E1868",
            COOLDOWN,
            f"`{COOLDOWN}` is {cooldown:g} s: a pause depends on the machine's speed, a deterministic run does not",
            rule="0 with deterministic: true",
            involves=(KEYS.deterministic,),
            suggestion="write `reuse_cooldown_time: 0`",
        )


def _check_capacity(resolution: Resolution) -> None:
    """Check that a queue can hold a batch; else all batches are incomplete."""
    capacity, size = resolution.get(EXPERIENCES.capacity), num_trained(resolution)
    note_idle(resolution, EXPERIENCES)
    if resolution.get(EXPERIENCES.storage_type) != "queue" or capacity >= size:
        return
    resolution.problem(
        "E1865",
        EXPERIENCES.capacity,
        f"`{EXPERIENCES.capacity}` ({capacity} experiences) is less than the {size} rollouts of a training step",
        rule=f">= {size}",
        involves=(KEYS.buffer.train_batch_size, KEYS.buffer.batch_size, KEYS.algorithm.repeat_times),
        suggestion=f"write `capacity: {4 * size}`",
    )
