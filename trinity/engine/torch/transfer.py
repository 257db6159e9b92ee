"""Small transfers between host and device, without a wait for queued work."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor


def upload(values: Sequence[int | float | bool], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Return `values` as a 1-D tensor [N]; on CUDA the copy is only queued."""
    tensor = torch.tensor(values, dtype=dtype)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class Download:
    """A transfer of tensors of any shapes to the host.

    On CUDA the copy is queued, and `result` waits for it alone.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensors[0].device.type != "cuda":
            self._tensors = [tensor.cpu() for tensor in tensors]
            return
        self._tensors = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
        for host, tensor in zip(self._tensors, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def result(self) -> list[Shaped[Tensor, "..."]]:
        """Return the tensors on the host, in the order and shapes given."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return self._tensors
