"""Tickets: where the weights of a version are, and how to verify them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from torch import Tensor

BYTES = "xxh3:"
LAYOUT = "layout:"


@dataclass(frozen=True)
class Ticket:
    """How an engine in any process gets a version's weights and checks them.

    Small and serialisable.

    Attributes:
        version: number of the training step that produced the weights.
        method: transport: `memory`, `checkpoint` or `nccl`.
        fingerprint: expected fingerprint of the received weights; see `fingerprint`.
        num_bytes: size of the tensors in bytes.
        place: where the transport finds them, as plain values.
    """

    version: int
    method: str
    fingerprint: str
    num_bytes: int
    place: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the ticket as JSON text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Ticket:
        """Return the ticket in a JSON text.

        Raises:
            ValueError, KeyError, TypeError: the text holds no ticket.
        """
        values = json.loads(text)
        return cls(**{each.name: values[each.name] for each in fields(cls)})


def tensor_digest(tensor: Tensor) -> str:
    """Return the xxh3 of the bytes of a tensor of any shape, in hexadecimal."""
    import torch  # a synchronizer keeps tickets, and has no tensors

    plain = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return xxhash.xxh3_128_hexdigest(plain.numpy().data)


def fingerprint(weights: Mapping[str, Tensor], digests: Mapping[str, str] | None = None) -> str:
    """Return the xxh3 over names, data types, shapes and bytes of tensors.

    It does not depend on their order or device.

    Args:
        weights: tensors by name.
        digests: `tensor_digest` by name, if known already.
    """
    return BYTES + _over(weights, digests if digests is not None else {n: tensor_digest(t) for n, t in weights.items()})


def layout_fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return the xxh3 over names, data types and shapes of tensors.

    For tensors handed over inside one device, whose bytes are not hashed.
    """
    return LAYOUT + _over(weights, {})


def matches(ticket: Ticket, weights: Mapping[str, Tensor]) -> bool:
    """Return whether `weights` have the ticket's fingerprint."""
    is_layout = ticket.fingerprint.startswith(LAYOUT)
    return ticket.fingerprint == (layout_fingerprint(weights) if is_layout else fingerprint(weights))


def num_bytes(weights: Mapping[str, Tensor]) -> int:
    """Return the size of all tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


def _over(weights: Mapping[str, Tensor], digests: Mapping[str, str]) -> str:
    total = xxhash.xxh3_128()
    for name in sorted(weights):
        tensor = weights[name]
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)} {digests.get(name, '')}\n".encode())
    return total.hexdigest()
