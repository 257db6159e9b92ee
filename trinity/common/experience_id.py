"""Identity of an experience, and fields of it that a batch carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from trinity.common.errors import DataError

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool)
}


def tensor_of(values: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return values as a tensor of a type.

    Args:
        values: a tensor of any shape, or nested lists; what is of the type already is returned as it is.
        dtype: the type.

    Returns:
        The tensor, of the shape of `values`.
    """
    is_one = isinstance(values, torch.Tensor) and values.dtype is dtype
    return values if is_one else torch.as_tensor(values, dtype=dtype)


@dataclass(unsafe_hash=True)  # workflows of plugins write `eid.run` and `eid.step`
class EID:
    """Identity of an experience.

    Attributes:
        batch: explore step (1-based), or `<step>/<taskset>` in an evaluation.
        task: index of the task within the batch.
        run: number of the rollout of that task.
        step: turn within the rollout, 0-based.
        suffix: distinguishes experiences of one turn; without `/`.
    """

    batch: int | str = ""
    task: int | str = ""
    run: int = 0
    step: int = 0
    suffix: str = ""

    def __str__(self) -> str:
        return self.uid

    def to_dict(self) -> dict[str, Any]:
        """Return the five parts by name."""
        return asdict(self)

    @property
    def uid(self) -> str:
        """`batch/task/run/step/suffix`, unique within a run and stage."""
        return f"{self.batch}/{self.task}/{self.run}/{self.step}/{self.suffix}"

    @property
    def sid(self) -> str:
        """`batch/task/step`: the same turn of all rollouts of a task."""
        return f"{self.tid}/{self.step}"

    @property
    def rid(self) -> str:
        """`batch/task/run`: one rollout."""
        return f"{self.batch}/{self.task}/{self.run}"

    @property
    def tid(self) -> str:
        """`batch/task`: the group of all rollouts of a task."""
        return f"{self.batch}/{self.task}"

    @classmethod
    def from_uid(cls, uid: str) -> EID:
        """Return the identity that `uid` names; digits become numbers.

        Raises:
            DataError: not of the form `batch/task/run/step/suffix`.
        """
        parts = uid.rsplit("/", 4)
        if len(parts) != 5 or not (parts[2].isdigit() and parts[3].isdigit()):
            raise DataError(f"an experience id has the form batch/task/run/step/suffix, got {uid!r}", code="E5103")
        return cls(_number(parts[0]), _number(parts[1]), int(parts[2]), int(parts[3]), parts[4])


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() and str(int(text)) == text else text


@dataclass(frozen=True)
class CustomField:
    """Copies `info[source_field]` of every experience into a batch tensor.

    Attributes:
        source_field: key of `Experience.info`.
        destination_field: name in `Experiences.custom_tensors`.
        data_type: dtype of the tensor.
    """

    source_field: str
    destination_field: str
    data_type: torch.dtype = torch.float32

    @classmethod
    def of(cls, made: CustomField | Mapping[str, Any]) -> CustomField:
        """Return a field, made of what `to_dict` returns if it is none yet.

        Raises:
            DataError: a type that no tensor of a batch has (E5102).
        """
        if isinstance(made, CustomField):
            return made
        name = made["data_type"]
        if name not in DTYPES and name not in DTYPES.values():
            raise DataError(f"data_type of a custom field must be one of {', '.join(DTYPES)}, got {name}", code="E5102")
        return cls(made["source_field"], made["destination_field"], DTYPES.get(name, name))

    def to_dict(self) -> dict[str, str]:
        """Return the names of both fields and of the type."""
        dtype = str(self.data_type).removeprefix("torch.")
        return {"source_field": self.source_field, "destination_field": self.destination_field, "data_type": dtype}
