"""The trainer's own files in a checkpoint.

```
global_step_N/trainer.json      step, sampler and data position, monitor position, reference
              explorer.json     the explorer's snapshot, null where there is no explorer
              explorer/version_<v>.safetensors   weights that the explorer may still request, except this step's
```

The back end writes its files beside them. Other components read the explorer's part.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from trinity.common.errors import CheckpointError

TRAINER_FILE = "trainer.json"
EXPLORER_FILE = "explorer.json"
SERVED_FOLDER = "explorer"
SCHEMA = 1


@dataclass(frozen=True)
class TrainerState:
    """Position of the trainer after a training step.

    Attributes:
        step: the last training step.
        run: run that owns the rows of the store.
        sampler: state of the sample strategy.
        source: position in the dataset; empty for the experience buffer, whose position is `step` in the ledger.
        monitor: position in the metrics.
        reference: path and hash of the reference model; empty where none is loaded.
        served_versions: versions of the weights in `explorer/`.
        num_tokens: tokens of all training steps up to `step`.
        begun_from: path of another program's checkpoint that this one is a copy of: it has no positions in our data,
            and no facts about the reference model. Empty for a checkpoint that a run of ours wrote.
    """

    step: int
    run: str
    sampler: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    monitor: dict[str, int] = field(default_factory=dict)
    reference: dict[str, str] = field(default_factory=dict)
    served_versions: tuple[int, ...] = ()
    num_tokens: int = 0
    begun_from: str = ""

    def write(self, folder: Path) -> None:
        """Write the state into `folder` as `trainer.json`."""
        document = {"schema": SCHEMA} | dataclasses.asdict(self)
        (folder / TRAINER_FILE).write_text(json.dumps(document, indent=1, sort_keys=True), encoding="utf-8")


def read_trainer_state(checkpoint: Path) -> TrainerState:
    """Return the trainer's state in a checkpoint.

    Raises:
        CheckpointError: the file is missing, unreadable or of another version.
    """
    file = checkpoint / TRAINER_FILE
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        return TrainerState(**document | {"served_versions": tuple(document["served_versions"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"cannot read {file}: {error}", code="E7009") from error


def check_reference(state: TrainerState, own: Mapping[str, str], checkpoint: Path) -> None:
    """Check that a run's reference model is the one of its checkpoint.

    Raises:
        CheckpointError: it is another model, or its files changed (E7011).
    """
    if not state.begun_from and own.get("hash") != state.reference.get("hash"):
        raise CheckpointError(
            f"the reference model {own.get('path') or '(none)'} is not the one of {checkpoint} "
            f"({state.reference.get('path') or 'none'}): its files changed; restore them, or set "
            "continue_from_checkpoint: false",
            code="E7011",
        )


def write_explorer_part(folder: Path, state: dict[str, Any] | None, served: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Write the explorer's snapshot, and weights it may request by version."""
    (folder / EXPLORER_FILE).write_text(json.dumps(state, indent=1, sort_keys=True), encoding="utf-8")
    for version, weights in served.items():
        target = _served_file(folder, version)
        target.parent.mkdir(exist_ok=True)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, target)


def read_served_weights(checkpoint: Path) -> dict[int, dict[str, Tensor]]:
    """Return the weights that the explorer may still request, by version.

    The checkpoint's own version is not among them.

    Raises:
        CheckpointError: the state cannot be read.
    """
    versions = read_trainer_state(checkpoint).served_versions
    return {version: load_file(_served_file(checkpoint, version)) for version in versions}


def _served_file(folder: Path, version: int) -> Path:
    return folder / SERVED_FOLDER / f"version_{version}.safetensors"
