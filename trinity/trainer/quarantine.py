"""Batches whose gradient was not finite, saved for inspection.

```
quarantine/step_<N>_<M>.safetensors   tensors of mini-batch M of training step N; of the critic `critic_step_<N>_<M>`
           step_<N>_<M>.json          what was wrong, and the rows
```

The JSON file is written last: if it exists, both files are complete.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from safetensors.torch import save
from torch import Tensor

from trinity.trainer.batch import TrainBatch
from trinity.utils.log import get_logger

logger = get_logger("trainer")

MAX_BATCHES = 8
MAX_NAMES = 20


class Quarantine:
    """Files of the newest batches skipped because of a non-finite gradient.

    Args:
        folder: created with the first batch.
        prefix: prefix of the file names.
        max_batches: number of batches to keep; older ones are removed.
    """

    def __init__(self, folder: Path, *, prefix: str = "step", max_batches: int = MAX_BATCHES) -> None:
        self.folder = folder
        self.prefix = prefix
        self.max_batches = max_batches

    def write(
        self,
        mini: TrainBatch,
        *,
        step: int,
        mini_batch: int,
        norm: float,
        parameters: Sequence[str],
        computed: dict[str, Float[Tensor, "B T"]],
    ) -> Path | None:
        """Write a mini-batch and return the path of its JSON file.

        Return None, with a warning, if the files cannot be written.

        Args:
            mini: the rows.
            step: training step.
            mini_batch: number of the optimizer step within it, from 1.
            norm: norm of the gradient.
            parameters: names of the parameters whose gradient is not finite.
            computed: values [B, T] of the rows at the current weights, such as the policy's `logprob` (nats).
        """
        name = f"{self.prefix}_{step}_{mini_batch}"
        tensors = _tensors(mini) | computed
        document = {
            "step": step,
            "mini_batch": mini_batch,
            "gradient_norm": _number(norm),
            "num_bad_parameters": len(parameters),
            "bad_parameters": list(parameters[:MAX_NAMES]),
            "tensors": f"{name}.safetensors",
            "rows": [_row(mini, index, tensors, computed) for index in range(len(mini))],
        }
        file = self.folder / f"{name}.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _replace(self.folder / f"{name}.safetensors", save({k: t.contiguous() for k, t in tensors.items()}))
            _replace(file, json.dumps(document, indent=1, allow_nan=False).encode())
            self._remove_old()
        except OSError as error:
            logger.warning("the batch of training step %d cannot be written to %s: %s", step, file, error)
            return None
        return file

    def _remove_old(self) -> None:
        files = sorted(self.folder.glob(f"{self.prefix}_*_*.json"), key=_place)
        for file in files[: max(0, len(files) - self.max_batches)]:
            file.unlink()
            file.with_suffix(".safetensors").unlink(missing_ok=True)


def _place(file: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in file.stem.split("_")[-2:])


def _tensors(mini: TrainBatch) -> dict[str, Tensor]:
    own = {
        "tokens": mini.tokens,
        "lengths": mini.lengths,
        "prompt_lengths": mini.prompt_lengths,
        "action_mask": mini.action_mask,
        "model_versions": mini.model_versions,
        "rewards": mini.rewards,
    }
    return own | mini.values | mini.columns


def _row(mini: TrainBatch, index: int, tensors: dict[str, Tensor], computed: Iterable[str]) -> dict[str, Any]:
    """Return a summary of one row; `not_finite` names its bad tensors."""
    bad = [
        name
        for name, tensor in tensors.items()
        if name != "rewards" and tensor.is_floating_point() and not bool(tensor[index].isfinite().all())
    ]
    row: dict[str, Any] = {
        "uid": mini.uids[index],
        "reward": _number(float(mini.rewards[index])),
        "model_version": int(mini.model_versions[index]),
        "prompt_length": int(mini.prompt_lengths[index]),
        "length": int(mini.lengths[index]),
        "counted_tokens": int(mini.action_mask[index].sum()),
        "not_finite": bad,
    }
    for name in ("advantages", "old_logprob", "rollout_logprob", "ref_logprob", "values", *computed):
        if name in tensors:
            counted = tensors[name][index][mini.action_mask[index]]
            row[f"{name}_range"] = (
                [_number(float(f(counted))) for f in (Tensor.min, Tensor.max)] if len(counted) else []
            )
    return row


def _number(value: float) -> float | str:
    """Return a finite number unchanged and any other as text, for JSON."""
    return value if math.isfinite(value) else str(value)


def _replace(path: Path, data: bytes) -> None:
    """Replace `path` atomically, so that no reader sees a partial file."""
    aside = path.with_name(f".{path.name}.tmp")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
