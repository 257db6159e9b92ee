"""The experiences of a database as a file: parquet, or JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from trinity.buffer.records import Records
from trinity.buffer.wanted import Wanted
from trinity.common.errors import DataError
from trinity.common.experience import Experience
from trinity.common.images.picture import encoded_images
from trinity.common.images.reading import data_uri
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.utils.disk import new_file

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
        ("token_versions", pa.list_(pa.int64())),
        *((name, pa.list_(pa.float32())) for name in ("logprobs", "token_level_reward", "advantages", "returns")),
        ("truncate_status", pa.string()),
        ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))),
        *((name, pa.string()) for name in ("truth", "metrics", "info", "messages", "tools")),
    ]
)
"""The last four columns are JSON texts; `metrics` has the parts of the reward. `truth` is that of the taskset: a text
is as it was, anything else is JSON. `token_versions` are the versions of the weights that sampled the tokens of the
response. Images have the form of `datasets`; in JSON lines they are data: URIs.

Columns that come from the payload are null where it was pruned or cannot be read.
"""
_OF_ROW = [name for name in SCHEMA.names if name in ExperienceModel.__table__.columns]
_OF_PAYLOAD = [name for name in SCHEMA.names if name not in _OF_ROW]
_JSON = ("metrics", "info", "messages", "tools")
_IMAGES, _VERSIONS, _TRUTH = "images", "token_versions", "truth"
_DERIVED = (_IMAGES, _VERSIONS, _TRUTH)
_LISTS = [field.name for field in SCHEMA if pa.types.is_list(field.type) and field.name not in _DERIVED]


def export_experiences(records: Records, wanted: Wanted, output: Path, *, form: Form) -> tuple[int, int]:
    """Write experiences to a file, in the order of the log.

    The file appears once it is complete.

    Args:
        records: the database.
        wanted: which experiences.
        output: the file.
        form: format of the file.

    Returns:
        Their number, and how many of them have no payload any more.

    Raises:
        DataError: there are no such experiences (E4070).
        EnvironmentProblem: the file exists, or cannot be written (E3601).
    """
    counts = [0, 0]
    with new_file(output) as temporary:
        with _WRITERS[form](temporary) as write:
            for page in pages(records, wanted):
                rows = [_row(each) for each in page]
                counts = [counts[0] + len(rows), counts[1] + sum(row["tokens"] is None for row in rows)]
                write(rows)
        if not counts[0]:
            raise DataError("there are no such experiences", code="E4070")
    return counts[0], counts[1]


def pages(records: Records, wanted: Wanted) -> Iterator[list[ExperienceModel]]:
    """Yield experiences with payloads, `PAGE` at a time, in the log's order."""
    last = 0
    while page := records.after(wanted, last, size=PAGE):
        yield page
        last = page[-1].id


def _row(row: ExperienceModel) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _OF_ROW} | _payload(row)


def _payload(row: ExperienceModel) -> dict[str, Any]:
    if row.experience_bytes is None:
        return dict.fromkeys(_OF_PAYLOAD)
    try:
        experience = row.to_experience()
    except DataError:
        return dict.fromkeys(_OF_PAYLOAD)
    values = {name: getattr(experience, name) for name in _OF_PAYLOAD if name not in _DERIVED}
    truth = experience.info.get("truth")
    values[_TRUTH] = truth if truth is None or isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)
    values[_VERSIONS] = token_versions(experience)
    images = encoded_images(experience.multi_modal_inputs or {})
    values[_IMAGES] = [{"bytes": image, "path": None} for image in images] or None
    lists = {name: None if values[name] is None else values[name].tolist() for name in _LISTS}
    texts = {name: None if values[name] is None else json.dumps(values[name], ensure_ascii=False) for name in _JSON}
    return values | lists | texts


def token_versions(experience: Experience) -> list[int | None]:
    """Return the version of the weights that sampled each response token."""
    info, length = experience.info, experience.response_length
    return list(info.get("model_versions") or [info.get("model_version")] * length)


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
    """Return a row as JSON values, images as data: URIs."""
    nested: dict[str, Any] = {name: None if row[name] is None else json.loads(row[name]) for name in _JSON}
    nested[_IMAGES] = row[_IMAGES] and [data_uri(image["bytes"]) for image in row[_IMAGES]]
    stamp = row["timestamp"]
    return {name: row[name] for name in SCHEMA.names} | nested | {"timestamp": stamp and stamp.isoformat()}


_WRITERS: dict[Form, Callable[[Path], AbstractContextManager[Write]]] = {"parquet": _parquet, "jsonl": _json_lines}
