"""The explorer's snapshot for exact resume, as plain JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from trinity.common.errors import CheckpointError

STATE_FILE = "explorer.json"


@dataclass
class ExplorerState:
    """Where the explorer stands after a finished explore step.

    Attributes:
        explore_step: the last finished step; 0 before the first.
        model_version: version of the weights that the engine serves.
        readers: state of each task reader by the taskset's name.
        eval_steps: explore steps after which an evaluation was done.
        monitor: how much the monitor had written.
        pipeline: state of the operators and of the advantage function that have one, by name.
        times: what the deadline of `explorer.dynamic_timeout` is made from.
        eval_rows: fingerprint of the rows of each evaluation taskset, by its name.
    """

    explore_step: int = 0
    model_version: int = 0
    readers: dict[str, Any] = field(default_factory=dict)
    eval_steps: list[int] = field(default_factory=list)
    monitor: dict[str, int] = field(default_factory=lambda: {"lines": 0, "samples": 0})
    pipeline: dict[str, Any] = field(default_factory=dict)
    times: dict[str, Any] = field(default_factory=dict)
    eval_rows: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return a copy as plain containers."""
        state: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return state

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ExplorerState:
        """Return the snapshot that `as_json` wrote.

        Raises KeyError or TypeError if `values` are not of this version.
        """
        values = {"pipeline": {}, "times": {}, "eval_rows": {}} | values  # a checkpoint may lack what has no state
        return cls(**{f.name: values[f.name] for f in fields(cls)})

    @classmethod
    def load(cls, checkpoint: Path) -> ExplorerState:
        """Return the snapshot in a checkpoint, or that of step 0 if none.

        Raises:
            CheckpointError: the file cannot be read, or is from another version.
        """
        file = checkpoint / STATE_FILE
        if not file.exists():
            return cls()
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            return cls() if values is None else cls.from_json(values)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{file} is no snapshot of an explorer of this version ({type(error).__name__}: {error}); "
                "resume from an older checkpoint, or delete the job folder to start again",
                code="E7010",
            ) from error
