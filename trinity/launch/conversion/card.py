"""The model card of an exported checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from trinity import __version__
from trinity.launch.conversion.sources import Located
from trinity.launch.job import read_record
from trinity.launch.samples import configuration_of
from trinity.monitor import headline
from trinity.utils.log import redact

MAX_POINTS = 20
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_WIDTH = 30


def card_of(found: Located, *, hashes: Mapping[str, str], settings: Path, dtype: str) -> str:
    """Return the text of the card; the same checkpoint has the same card.

    Args:
        found: the part of the checkpoint.
        hashes: SHA-256 of each file of weights.
        settings: folder of the model's configuration.
        dtype: data type of most of the weights.

    Raises:
        CheckpointError: the record of the job cannot be read (E7014).
        ConfigError: its configuration cannot be read (E1922).
    """
    tree = {} if found.job is None else configuration_of(found.job)
    base = None if found.job is None else _hub_id(str((tree.get("model") or {}).get("model_path") or ""))
    architectures = json.loads((settings / "config.json").read_text(encoding="utf-8")).get("architectures") or ["?"]
    algorithm = str((tree.get("algorithm") or {}).get("algorithm_type") or "")
    front: dict[str, Any] = {"library_name": "transformers"}
    front |= {"pipeline_tag": "text-generation"} if str(architectures[0]).endswith("ForCausalLM") else {}
    front |= {"base_model": base} if base else {}
    front["tags"] = ["trinity-rft", *([algorithm] if algorithm else [])]
    title = str(tree.get("name") or found.folder.parent.parent.name or "model")
    step = "" if found.step is None else f", training step {found.step}"
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(),
        "---",
        "",
        f"# {title}{step}",
        "",
    ]
    lines += [f"{architectures[0]}, {dtype}, exported by Trinity {__version__}."]
    if found.job is None:
        lines += ["", "The checkpoint was written by another program; what it was trained on is not known here."]
    else:
        lines += [*_training(tree), *_curve(found.job, found.step), *_command(found.job)]
    lines += ["", "## Files", "", "| File | SHA-256 |", "|---|---|"]
    lines += [f"| `{name}` | `{digest}` |" for name, digest in hashes.items()]
    return redact("\n".join(lines) + "\n")


def _training(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the part on model, data and algorithm."""
    algorithm, buffer, model = (tree.get(key) or {} for key in ("algorithm", "buffer", "model"))
    rows = [("Base model", _short(model.get("model_path")))]
    explored = (buffer.get("explorer_input") or {}).get("taskset")
    trained = (buffer.get("trainer_input") or {}).get("experience_buffer") or {}
    tasksets = explored if isinstance(explored, list) else [explored or {}]
    data = [_short(each.get("path")) for each in tasksets if each.get("path")]
    data += [_short(trained["path"])] if trained.get("path") and not data else []
    rows += [("Data", ", ".join(data)), ("Algorithm", str(algorithm.get("algorithm_type") or ""))]
    for key in ("advantage_fn", "policy_loss_fn", "kl_loss_fn", "kl_penalty_fn"):
        arguments = algorithm.get(f"{key}_args")
        told = f" {json.dumps(arguments, sort_keys=True)}" if arguments else ""
        rows.append((f"`{key}`", f"{algorithm.get(key) or ''}{told}"))
    rows += [("Rollouts of a task", str(algorithm.get("repeat_times") or ""))]
    rows += [("Learning rate", str((algorithm.get("optimizer") or {}).get("lr") or ""))]
    rows += [("Batch size", str(buffer.get("train_batch_size") or "")), ("Seed", str(tree.get("seed", "")))]
    yield from ("", "## Training", "", "| | |", "|---|---|")
    yield from (f"| {name} | {_cell(value)} |" for name, value in rows if value and value != "none")


def _curve(job: Path, step: int | None) -> Iterator[str]:
    """Yield the curve of reward or loss up to the checkpoint."""
    points: dict[str, dict[int, float]] = {"reward": {}, "loss": {}, "accuracy": {}}
    kinds = {"reward": headline.reward, "loss": headline.loss, "accuracy": headline.accuracy}
    file = job / "metrics.jsonl"
    for line in file.read_text(encoding="utf-8").split("\n") if file.is_file() else ():
        try:
            row = json.loads(line)
            number = int(row["step"])
        except (ValueError, KeyError, TypeError):
            continue
        for name, read in kinds.items():
            value = read(row)
            if value is not None and (step is None or number <= step):
                points[name][number] = value
    for name, title in (("reward", "Mean reward"), ("loss", "Loss"), ("accuracy", "Held-out accuracy")):
        known = sorted(points[name].items())
        if len(known) < 2:
            continue
        yield from ("", f"## {title}", "", "```")
        stride = -(-len(known) // MAX_POINTS)
        shown = known[::stride] + ([known[-1]] if (len(known) - 1) % stride else [])
        low, high = min(value for _, value in shown), max(value for _, value in shown)
        for number, value in shown:
            width = round(_WIDTH * (value - low) / (high - low)) if high > low else 0
            yield f"step {number:>6}  {value:>10.4f}  {'#' * width}".rstrip()
        yield "```"


def _command(job: Path) -> Iterator[str]:
    command = str(read_record(job).get("command") or "")
    if command:
        yield from ("", "## Command", "", "```bash", command.replace(str(Path.home()), "~"), "```")


def _hub_id(path: str) -> str | None:
    """Return the hub id of a model, also of one in the hub's cache."""
    cached = _CACHED.search(path)
    if cached is not None:
        return f"{cached[1]}/{cached[2]}"
    return path if _HUB_ID.fullmatch(path) and not Path(path).exists() else None


def _short(path: Any) -> str:
    """Return a path as others may read it: a hub id, or its last name."""
    text = str(path or "")
    return _hub_id(text) or text.rstrip("/").rpartition("/")[2]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
