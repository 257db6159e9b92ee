"""Checks that the engine or the trainer can load a model's family.

Reads `config.json` and a table of the installed transformers as text; imports neither.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from trinity.common.config.problems import Finding
from trinity.common.models.families import VISION, engine_problem
from trinity.common.models.rotary_lengths import rotary_refusal
from trinity.preflight.model_dir import POLICY
from trinity.preflight.model_files import UnreadableFile, read_mapping
from trinity.utils.syntax import parsed

_TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"


@cache
def causal_families() -> frozenset[str]:
    """Return the causal model types of transformers; empty if unknown."""
    spec = importlib.util.find_spec("transformers")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        file = Path(folder, "models", "auto", "modeling_auto.py")
        for node in parsed(_table(file.read_text("utf-8"))).body if file.is_file() else ():
            names = node.targets if isinstance(node, ast.Assign) else ()
            if any(isinstance(name, ast.Name) and name.id == _TABLE for name in names):
                pairs = [item.elts for item in ast.walk(node) if isinstance(item, ast.Tuple) and len(item.elts) == 2]
                return frozenset(str(key.value) for key, _ in pairs if isinstance(key, ast.Constant))
    return frozenset()


def _table(source: str) -> str:
    """Return the statement of the table alone.

    It is read in a tenth of the time of the file. A source that is laid out otherwise is returned as it is.
    """
    _, name, after = source.partition(f"\n{_TABLE} = ")
    table, end, _ = after.partition("\n)\n")
    return f"{name}{table}{end}" if end else source


def check_loading(
    path: str | Path,
    *,
    is_served: bool,
    max_model_len: int | None,
    overrides: Mapping[str, Any] | None = None,
    key: str = POLICY,
) -> list[Finding]:
    """Return why the model at `path` cannot be loaded or served.

    Empty if it can.

    Incomplete model folders give nothing here; `check_model_dir` reports them.

    Args:
        path: the directory.
        is_served: by the torch engine; otherwise it is trained only.
        max_model_len: tokens of the longest row, if known.
        overrides: entries that `override_config` sets.
        key: where the configuration names the directory.
    """
    try:
        config = read_mapping(Path(path).expanduser() / "config.json")
    except (UnreadableFile, OSError):
        return []
    for name, value in (overrides or {}).items():
        old = config.get(name)
        config[name] = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    family, known = config.get("model_type"), causal_families() | {*VISION} if causal_families() else frozenset()
    if known and isinstance(family, str) and family not in known and not config.get("auto_map"):
        return [
            Finding(
                "E3110",
                key,
                f"model_type {family!r} of config.json is none that transformers loads as a causal language model; "
                f"give a model of text only, or one with images of these families: {', '.join(VISION)}",
            )
        ]
    refusals = [("E5604", engine_problem(config) if is_served else None)]
    refusals.append(("E1895", rotary_refusal(config, max_model_len)))
    return [Finding(code, key, refusal) for code, refusal in refusals if refusal]
