"""The tokens of a replayed training step as a file, for SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trinity.buffer.export import token_versions
from trinity.common.experience import Experience, rows_of
from trinity.launch.reuse.replay import Computed, Replayed
from trinity.trainer.verl.observation import RowContribution
from trinity.utils.disk import new_file

RUN, CHANGED = "run", "changed"
SIDES = ("chosen", "rejected")
SCHEMA = pa.schema(
    [
        ("settings", pa.string()),
        *((name, pa.int64()) for name in ("step", "optimizer_step")),
        *((name, pa.string()) for name in ("uid", "side", "task_id")),
        *((name, pa.int64()) for name in ("run_id", "model_version", "position", "token")),
        ("is_counted", pa.bool_()),
        *((name, pa.float64()) for name in ("reward", "logprob", "rollout_logprob", "old_logprob", "ref_logprob")),
        *((name, pa.float64()) for name in ("ratio", "advantage", "loss_weight", "gradient")),
        ("clip_reason", pa.string()),
    ]
)
"""A row for each response token and optimizer step. `settings` is `run`, or `changed` for those of `--set`; `side` is
`chosen` or `rejected` in a pair."""


def write_tokens(found: Replayed, output: Path) -> int:
    """Write a replayed step's tokens to a parquet file; return their number.

    Raises:
        EnvironmentProblem: the file exists, or cannot be written (E3601).
    """
    number = 0
    with new_file(output) as temporary, pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer:
        for name, computed in ((RUN, found.own), (CHANGED, found.other)):
            for rows in _rows(found, name, computed):
                writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
                number += len(rows)
    return number


def _rows(found: Replayed, name: str, computed: Computed | None) -> Iterator[list[dict[str, Any]]]:
    if computed is None:
        return
    known = {each.eid.uid: rows_of(each) for each in found.experiences}
    pairs = {each.eid.uid for each in found.experiences if each.chosen is not None}
    seen: dict[tuple[str, int], int] = {}
    for row in computed.rows:
        place = seen.setdefault((row.uid, row.optimizer_step), 0)
        seen[row.uid, row.optimizer_step] += 1
        side = SIDES[place] if row.uid in pairs else None
        yield _tokens(row, known[row.uid][place], {"settings": name, "step": found.step, "side": side})


def _tokens(row: RowContribution, experience: Experience, tags: dict[str, Any]) -> list[dict[str, Any]]:
    versions = token_versions(experience)
    columns = {name: row.columns[name].tolist() for name in ("rollout_logprob", "old_logprob", "ref_logprob")
               if name in row.columns}  # fmt: skip
    advantages = row.columns["advantages"].tolist() if "advantages" in row.columns else None
    own, gradients, counted = row.logprob.double(), row.gradient.tolist(), row.counted.tolist()
    ratios = None if row.ratio is None else row.ratio.tolist()
    tags |= {"optimizer_step": row.optimizer_step, "uid": row.uid, "task_id": experience.eid.tid}
    tags |= {"run_id": experience.eid.run, "reward": experience.reward}
    tokens = experience.tokens[experience.prompt_length :].tolist()
    made = []
    for place, (token, logprob, is_counted) in enumerate(zip(tokens, own.tolist(), counted, strict=True)):
        each = tags | {name: values[place] for name, values in columns.items()}
        each |= {"model_version": versions[place], "position": place, "token": token, "is_counted": is_counted}
        each["clip_reason"] = row.clip_reasons[place]
        if is_counted:
            each |= {"logprob": logprob, "gradient": gradients[place]}
            each["ratio"] = None if ratios is None else ratios[place]
        if advantages is not None:
            each["advantage"] = advantages[place]
            has_weight = is_counted and advantages[place]
            each["loss_weight"] = -gradients[place] / advantages[place] if has_weight else None
        made.append(each)
    return made
