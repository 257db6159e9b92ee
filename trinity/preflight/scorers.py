"""Checks of what scores the rows of veRL files, and of a resumed run.

A user's file is parsed and not executed: what it does on import belongs to the run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinity.buffer.data_files import data_files, places_of
from trinity.buffer.rows import DataRow, read_rows
from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding
from trinity.common.constants import VERL_DATA
from trinity.common.errors import DataError
from trinity.common.rewards.verl.scorers import has_scorer, no_scorer
from trinity.preflight.data import MAX_ROWS, tasksets
from trinity.preflight.model_dir import not_fetched
from trinity.utils.remote.addresses import is_remote
from trinity.utils.syntax import parsed

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.config.buffer import TasksetConfig

WORKFLOW = "verl_workflow"
RESUME = KEYS.trainer.trainer_config.trainer.resume_from_path


def check_scorers(config: Config) -> Iterator[Finding]:
    """Yield why rows of veRL's form could not be scored."""
    for key, taskset in tasksets(config).items():
        if taskset.default_workflow_type != WORKFLOW:
            continue
        arguments: Mapping[str, Any] = taskset.workflow_args
        place = f"{key}.workflow_args"
        if arguments.get("path"):
            reason = missing_function(Path(str(arguments["path"])).expanduser(), str(arguments["function"]))
            if reason is not None:
                yield Finding("E5137", f"{place}.path", f"`{place}.path`: {reason}")
        elif arguments.get("is_scored", True):
            yield from _of_sources(taskset, place, str(arguments.get("source_key") or "data_source"))


def check_resumed(config: Config) -> Iterator[Finding]:
    """Yield that the checkpoint to resume from is not there."""
    verl = config.trainer.trainer_config.trainer
    if verl.resume_mode != "resume_path" or verl.resume_from_path is None:
        return
    folder = Path(verl.resume_from_path).expanduser().absolute()
    if is_remote(verl.resume_from_path):
        yield not_fetched(str(RESUME), verl.resume_from_path)
    elif not folder.is_dir():
        yield Finding(
            "E7058", str(RESUME), f"`{RESUME}`: there is no folder {folder}; give a folder global_step_N of the job"
        )
    elif (folder / VERL_DATA).is_file():
        yield Finding(
            "W7059",
            str(RESUME),
            f"`{RESUME}`: {VERL_DATA} of {folder} is veRL's order of the rows, which is not continued; the rows of the "
            "first steps in the order of this run count as read",
        )


def missing_function(file: Path, name: str) -> str | None:
    """Return why a file has no function of a name; None if it has."""
    if not file.is_file():
        return f"there is no file {file}"
    try:
        module = parsed(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{file} is no Python file: {error}"
    names = set(_names(module.body))
    if name in names or "*" in names:
        return None
    return f"{file} defines no function {name}; it defines {', '.join(sorted(names)) or 'nothing'}"


def _names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements of a module bind; `*`: others as well."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name
            case ast.Import() | ast.ImportFrom():
                yield from (each.asname or each.name.partition(".")[0] for each in statement.names)
            case ast.Assign() | ast.AnnAssign():
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                nodes = (node for target in targets for node in ast.walk(target))
                yield from (node.id for node in nodes if isinstance(node, ast.Name))
            case _:
                for part in ("body", "orelse", "finalbody"):
                    yield from _names(getattr(statement, part, []))
                for handler in getattr(statement, "handlers", []):
                    yield from _names(handler.body)


def _of_sources(taskset: TasksetConfig, place: str, column: str) -> Iterator[Finding]:
    """Yield which sources of the first rows have no scorer here."""
    key = f"{place}.source_key"
    told = set[str]()
    for values in _first_rows(taskset):
        if column not in values:
            columns = ", ".join(values)
            why = f"the rows have no column {column!r}, which names the scorer of a row; their columns are {columns}"
            yield Finding("E4004", key, f"`{key}`: {why}")
            return
        source = values[column]
        if isinstance(source, str) and source not in told and not has_scorer(source):
            told.add(source)
            yield Finding("E5136", key, f"`{key}`: {no_scorer(source)}")


def _first_rows(taskset: TasksetConfig) -> Iterator[Mapping[str, Any]]:
    """Yield the first rows of each local file.

    Faults of files are told by another check.
    """
    if taskset.storage_type == "sql" or not taskset.path:
        return
    for place in places_of(taskset.path):
        try:
            files = [] if is_remote(place) else data_files(place, split=taskset.split, subset_name=taskset.subset_name)
        except DataError:
            continue
        for file in (files or [])[:1]:
            for number, row in enumerate(read_rows(file)):
                if number == MAX_ROWS:
                    break
                if isinstance(row, DataRow):
                    yield row.values
