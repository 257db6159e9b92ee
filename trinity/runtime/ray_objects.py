"""Tensors that go from one process of a Ray cluster to another."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from trinity.runtime import cluster
from trinity.runtime.messages import reduced
from trinity.runtime.objects import TensorEntry, as_bytes, dropped, layout, views

if TYPE_CHECKING:
    from torch import Tensor

OBJECT_TIMEOUT_S = 300.0


class RayRef:
    """Tensors in Ray's object store; they live as long as a reference to them."""

    def __init__(self, ref: Any, entries: Mapping[str, TensorEntry]) -> None:
        self._ref = ref
        self._entries = entries

    def load(self) -> Mapping[str, Tensor]:
        """Return the tensors as views of the store, which must not be written."""
        if self._ref is None:
            raise dropped()
        try:
            parts = self._ref.future().result(OBJECT_TIMEOUT_S)  # ray.get warns in an actor with an event loop
        except (RayError, TimeoutError) as error:
            raise cluster.not_delivered(OBJECT_TIMEOUT_S, error) from error
        return views(self._entries, parts)

    def drop(self) -> None:
        """Let go of the tensors."""
        self._ref = None


class RayObjects:
    """Tensors handed over through Ray's object store."""

    is_local = False

    def put(self, tensors: Mapping[str, Tensor]) -> RayRef:
        """Keep a copy of `tensors` while the reference, or a copy of it, lives."""
        entries, parts, _ = layout(tensors)
        return RayRef(ray.put({offset: as_bytes(tensor) for offset, tensor in parts.items()}), entries)

    def get(self, ref: Any) -> Mapping[str, Tensor]:
        """Return the tensors of `ref`."""
        tensors: Mapping[str, Tensor] = ref.load()
        return tensors


def register_tensors() -> None:
    """Serialize tensors in arguments and results as `messages` does.

    Call it before each of them is written: a process without torch holds no tensor, and need not import it.
    """
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None:
        _register(tensor)


@functools.cache
def _register(tensor: type[Tensor]) -> None:
    ray.util.register_serializer(tensor, serializer=reduced, deserializer=_made)


def _made(parts: tuple[Any, ...]) -> Tensor:
    function, arguments = parts
    tensor: Tensor = function(*arguments)
    return tensor
