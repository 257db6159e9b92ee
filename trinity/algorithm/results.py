"""Checks of what the functions of an algorithm return.

The error for a mistake of a plugin names its class and file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trinity.common.errors import WorkflowError
from trinity.utils.source import named_with_file


def loss_and_metrics(what: str, function: Any, result: Any) -> tuple[Tensor, dict[str, float]]:
    """Return a loss and its metrics.

    Args:
        what: what the function is, such as `the policy loss`.
        function: what was called.
        result: what it returned.

    Raises:
        WorkflowError: it is not a scalar tensor and numbers by name (E5120).
    """
    value, metrics = _parts(what, function, result, ("loss", "metrics"))
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise _refused(what, function, f"(loss, metrics) with a tensor of one number as the loss, got {_said(value)}")
    return value if value.ndim == 0 else value.reshape(()), _numbers(what, function, metrics)


def advantages_and_returns(function: Any, result: Any, shape: torch.Size) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Return advantages, returns and metrics of an advantage function.

    Args:
        function: what was called.
        result: what it returned.
        shape: [rows, response tokens].

    Raises:
        WorkflowError: they are not two tensors of `shape` and numbers by name (E5120).
    """
    what = "the advantage function"
    *tensors, metrics = _parts(what, function, result, ("advantages", "returns", "metrics"))
    for name, tensor in zip(("advantages", "returns"), tensors, strict=True):
        if not isinstance(tensor, Tensor) or tensor.shape != shape:
            raise _refused(what, function, f"{name} of the shape {tuple(shape)}, got {_said(tensor)}")
    return tensors[0], tensors[1], _numbers(what, function, metrics)


def _parts(what: str, function: Any, result: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(result, tuple) or len(result) != len(names):
        number = f" of {len(result)}" if isinstance(result, tuple) else ""
        raise _refused(what, function, f"({', '.join(names)}), got {type(result).__name__}{number}")
    return result


def _numbers(what: str, function: Any, metrics: Any) -> dict[str, float]:
    if not isinstance(metrics, Mapping):
        raise _refused(what, function, f"metrics as a dict, got {type(metrics).__name__}")
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (TypeError, ValueError):
        raise _refused(what, function, f"metrics as numbers by name, got {dict(metrics)!r:.200}") from None


def _said(value: Any) -> str:
    return f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _refused(what: str, function: Any, wanted: str) -> WorkflowError:
    return WorkflowError(f"{what} {named_with_file(function)} of an algorithm must return {wanted}", code="E5120")
