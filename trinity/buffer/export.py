"""The experiences of a database as a file: parquet, or JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from trinity.buffer.records import Records, Wanted
from trinity.common.errors import DataError, EnvironmentProblem
from trinity.common.schema.sql_schema import ExperienceModel

Form = Literal["parquet", "jsonl"]
PAGE = 512
SCHEMA = pa.schema(
    [
        *(
            (name, pa.int64())
            for name in ("id", "explore_step", "run_id", "model_version", "trained_step", "use_count")
        ),
        *((name, pa.string()) for name in ("uid", "run", "stage", "buffer", "producer", "task_id", "msg_id")),
        *((name, pa.string()) for name in ("state", "drop_reason", "prompt_text", "response_text")),
        ("reward", pa.float64()),
        ("timestamp", pa.timestamp("us")),
        ("prompt_length", pa.int64()),
        ("tokens", pa.list_(pa.int64())),
        ("action_mask", pa.list_(pa.bool_())),
        *((name, pa.list_(pa.float32())) for name in ("logprobs", "token_level_reward", "advantages", "returns")),
        ("truncate_status", pa.string()),
        ("metrics", pa.string()),
        ("info", pa.string()),
    ]
)
"""`metrics` and `info` are JSON; what the payload holds is null where it was pruned, or cannot be read."""
_OF_ROW = [name for name in SCHEMA.names if name in ExperienceModel.__table__.columns]
_OF_PAYLOAD = [name for name in SCHEMA.names if name not in _OF_ROW]
_LISTS = [field.name for field in SCHEMA if pa.types.is_list(field.type)]


def export_experiences(records: Records, wanted: Wanted, output: Path, *, form: Form) -> tuple[int, int]:
    """Write experiences to a file, in the order of the log.

    The file is there when it is complete.

    Args:
        records: the database.
        wanted: which experiences.
        output: the file.
        form: of the file.

    Returns:
        Their number, and how many of them have no payload any more.

    Raises:
        DataError: there are no such experiences (E4070).
        EnvironmentProblem: the file exists, or cannot be written (E3601).
    """
    if output.exists():
        raise EnvironmentProblem(f"{output} exists already; remove it, or name another --output", code="E3601")
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    counts = [0, 0]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with _WRITERS[form](temporary) as write:
            for page in _pages(records, wanted):
                rows = [_row(each) for each in page]
                counts = [counts[0] + len(rows), counts[1] + sum(row["tokens"] is None for row in rows)]
                write(rows)
        if not counts[0]:
            raise DataError("there are no such experiences", code="E4070")
        os.replace(temporary, output)
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {output}: {error.strerror or error}", code="E3601") from error
    finally:
        with suppress(OSError):  # its folder could not be made
            temporary.unlink(missing_ok=True)
    return counts[0], counts[1]


def _pages(records: Records, wanted: Wanted) -> Iterator[list[ExperienceModel]]:
    last = 0
    while page := records.after(wanted, last, size=PAGE):
        yield page
        last = page[-1].id


def _row(row: ExperienceModel) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _OF_ROW} | _payload(row)


def _payload(row: ExperienceModel) -> dict[str, Any]:
    try:
        experience = row.to_experience()
    except DataError:
        return dict.fromkeys(_OF_PAYLOAD)
    values = {name: getattr(experience, name) for name in _OF_PAYLOAD}
    lists = {name: None if values[name] is None else values[name].tolist() for name in _LISTS}
    return values | lists | {name: json.dumps(values[name], ensure_ascii=False) for name in ("metrics", "info")}


Write = Callable[[list[dict[str, Any]]], None]


@contextmanager
def _parquet(file: Path) -> Iterator[Write]:
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        yield lambda rows: writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))


@contextmanager
def _json_lines(file: Path) -> Iterator[Write]:
    with open(file, "w", encoding="utf-8", errors="replace") as text:
        yield lambda rows: text.writelines(json.dumps(_plain(row), ensure_ascii=False) + "\n" for row in rows)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON has it: metrics and info as they are."""
    nested = {name: None if row[name] is None else json.loads(row[name]) for name in ("metrics", "info")}
    stamp = row["timestamp"]
    return {name: row[name] for name in SCHEMA.names} | nested | {"timestamp": stamp and stamp.isoformat()}


_WRITERS: dict[Form, Callable[[Path], AbstractContextManager[Write]]] = {"parquet": _parquet, "jsonl": _json_lines}
