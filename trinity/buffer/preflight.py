"""Looks at the first rows of a dataset without torch, `datasets` or the network."""

from __future__ import annotations

import importlib.util
import itertools
import re
from pathlib import Path

from trinity.buffer.checks import Fault, control_token, missing_columns, prompt_type, row_faults
from trinity.buffer.rows import SUFFIXES, BadRow, Row, read_rows, split_files
from trinity.buffer.samples import NEEDED, decoded, form_of, sample_faults
from trinity.common.config.buffer import FormatConfig
from trinity.common.errors import DataError, EnvironmentProblem

MAX_ROWS = 50
_NUM_SHOWN = 3
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

Problem = tuple[str, str]


def check_taskset(
    path: str | None,
    *,
    split: str,
    subset_name: str | None,
    fmt: FormatConfig,
    where: str,
    needs_prompt: bool = True,
    needs_truth: bool = False,
    schema: str | None = None,
) -> list[Problem]:
    """Return the problems of a dataset as (code, message), from its first 50 rows; `W...` are warnings.

    A hub id and a folder written by `save_to_disk` are accepted unseen.

    Args:
        path: file, folder or hub id.
        split: split that is asked for.
        subset_name: subset that is asked for.
        fmt: names of the columns.
        where: the configuration key, for the messages.
        needs_prompt: the workflow reads the prompt's column.
        needs_truth: the reward function reads the response's column.
        schema: kind of training that reads the rows, `sft`, `dpo` or `cpt`; None for tasks.
    """
    if not path:
        return [("E4001", f"{where}: path is not set; give a file, a folder or a hub id")]
    try:
        files = data_files(path, split=split, subset_name=subset_name)
        rows = list(itertools.islice(itertools.chain.from_iterable(map(read_rows, files)), MAX_ROWS))
    except DataError as error:
        return [(error.code, f"{where}: {error.args[0]}")]
    if not files:
        return []
    if not rows:
        return [("E4002", f"{where}: {path} has no rows in split {split!r}")]
    if schema is not None:
        return _check_rows(rows, fmt, where=where, needs=set(NEEDED[schema]), schema=schema)
    needs = {"prompt_key", "messages_key"} if needs_prompt else set()
    return _check_rows(rows, fmt, where=where, needs=needs | ({"response_key"} if needs_truth else set()))


def check_table(path: str | None, *, name: str, fmt: FormatConfig, schema: str, where: str) -> list[Problem]:
    """Return the problems of a buffer in a database as (code, message), from its first 50 rows; `W...` are warnings.

    Args:
        path: URL of the database.
        name: of the buffer.
        fmt: names of the columns.
        schema: `sft` or `experience`.
        where: the configuration key, for the messages.
    """
    from trinity.buffer.sql_tables import load_sql_table

    try:
        table = load_sql_table(path, name=name, schema=schema)
    except (DataError, EnvironmentProblem) as error:
        return [(error.code, f"{where}: {error.args[0]}")]
    rows = [table.row(number) for number in range(min(len(table), MAX_ROWS))]
    return _check_rows(list(rows), fmt, where=where, needs=set(NEEDED[schema]), schema=schema)


def data_files(path: str, *, split: str, subset_name: str | None) -> list[Path]:
    """Return the files of a split; empty if only `datasets` can tell (hub id, `save_to_disk`, subset).

    Raises:
        DataError: no such path (E4001), nothing in it (E4002) or no such split (E4003).
    """
    place = Path(path).expanduser()
    if place.is_file():
        if place.suffix not in SUFFIXES:
            raise DataError(f"{place}: a data file must end in {', '.join(SUFFIXES)}", code="E4001")
        return _readable([place])
    if not place.exists():
        if is_hub_id(path):
            return []
        raise DataError(missing_path(path), code="E4001")
    if subset_name or is_saved_dataset(place) or (place / "README.md").exists():
        return []
    found = split_files(place, split)
    if not found:
        raise DataError(f"{place} holds no data file ({', '.join(SUFFIXES)})", code="E4002")
    if split not in found:
        raise DataError(f"{place} has no split {split!r}; available: {', '.join(sorted(found))}", code="E4003")
    return _readable(found[split])


def _readable(files: list[Path]) -> list[Path]:
    if any(file.suffix == ".parquet" for file in files) and importlib.util.find_spec("pyarrow") is None:
        return []
    return files


def is_saved_dataset(folder: Path) -> bool:
    """Return whether `datasets` wrote the folder by `save_to_disk`."""
    return (folder / "dataset_dict.json").exists() or (folder / "state.json").exists()


def is_hub_id(path: str) -> bool:
    """Return whether a path that does not exist here may name a dataset on the hub (`owner/name`)."""
    return "/" in path and HUB_ID.fullmatch(path) is not None and not path.endswith(SUFFIXES)


def missing_path(path: str) -> str:
    """Return the message for a path that does not exist: what is there beside it."""
    place = Path(path).expanduser().absolute()
    beside = sorted(entry.name for entry in place.parent.iterdir())[:10] if place.parent.is_dir() else []
    hint = f"; in {place.parent}: {', '.join(beside)}" if beside else ""
    return f"{place} does not exist{hint}"


def _check_rows(
    rows: list[Row | BadRow], fmt: FormatConfig, *, where: str, needs: set[str], schema: str | None = None
) -> list[Problem]:
    good = [row for row in rows if isinstance(row, Row)]
    bad: list[tuple[str, str]] = [(row.code, str(row)) for row in rows if isinstance(row, BadRow)]
    columns = list(dict.fromkeys(key for row in good for key in row.values))
    faults = missing_columns(fmt, columns, needs=needs) if good else []
    if len(rows) == MAX_ROWS:  # of the columns named, tools may be there in a few rows only, which come later
        faults = [fault for fault in faults if fault.key != fmt.tools_key]
    if faults:
        return [(fault.code, f"{where}: {fault.reason}") for fault in faults]
    kind = prompt_type(fmt, columns) if schema is None else form_of(schema, fmt, columns)
    key = fmt.messages_key if kind == "messages" else fmt.prompt_key
    marks = {"has_prompt": key in columns, "needs_truth": "response_key" in needs}
    warnings: list[Problem] = []
    for row in good:
        if schema is None:
            of_row = row_faults(fmt, row.values, kind=kind, **marks)
        else:
            of_row = sample_faults(schema, fmt, decoded(fmt, row.values, kind=kind), kind=kind)
        fault: Fault | None = next(of_row, None)
        if fault is not None:
            bad.append((fault.code, f"{row.file}:{row.line}: {fault.key}: {fault.reason}"))
        token = control_token(fmt, row.values, kind=kind)
        if token is not None and not warnings:
            text = f"{where}: {row.file}:{row.line}: the text contains the control token {token}"
            warnings.append(("W4030", f"{text}; the tokenizer may read it as the end of a message"))
    if len(bad) <= max(1, len(rows) // 100):
        # As many as a run sets aside by itself.
        return warnings + [(f"W{code[1:]}", f"{where}: {text}; the row will be left out") for code, text in bad]
    return warnings + [(code, f"{where}: {text}") for code, text in _first_of_each(bad, len(rows))]


def _first_of_each(bad: list[tuple[str, str]], num_rows: int) -> list[tuple[str, str]]:
    """Return the first few rows of each code, the last of them with the number of the others."""
    shown: list[tuple[str, str]] = []
    for code in dict.fromkeys(code for code, _ in bad):
        texts = [text for other, text in bad if other == code]
        more = len(texts) - _NUM_SHOWN
        if more > 0:
            texts = texts[:_NUM_SHOWN]
            texts[-1] += f" (and {more} more of the first {num_rows} rows)"
        shown += [(code, text) for text in texts]
    return shown
