"""Parameters and optimizer state that wait in host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trinity.trainer.verl.decoder import PackedDecoder
from trinity.utils.log import get_logger

logger = get_logger("trainer")

HOST = torch.device("cpu")


class Offload:
    """Moves tensors to the device for a computation, and back afterwards.

    On a CPU it does nothing.

    Args:
        device: where the computation runs.
        models: their parameters are moved.
        optimizers: their state is moved.
        decoders: their copies of the parameters are dropped when these are moved.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        models: Sequence[nn.Module] = (),
        optimizers: Sequence[torch.optim.Optimizer] = (),
        decoders: Sequence[PackedDecoder] = (),
    ) -> None:
        self.device = device
        self.is_active = device.type != HOST.type and bool(models or optimizers)
        self._models = tuple(models)
        self._optimizers = tuple(optimizers)
        self._decoders = tuple(decoders)
        self.park()

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Hold the tensors on the device inside the context."""
        self._move(self.device)
        try:
            yield
        finally:
            self.park()

    def park(self) -> None:
        """Move the tensors to host memory, where they stay until `loaded`."""
        self._move(HOST)

    def _move(self, device: torch.device) -> None:
        if not self.is_active:
            return
        for model in self._models:
            nn.Module.to(model, device)
        for decoder in self._decoders if self._models else ():
            decoder.refresh()
        for optimizer in self._optimizers:
            for values in optimizer.state.values():
                moved = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
                values.update(moved)


def tell_idle_offload(key: str, device: torch.device, *, is_shared: bool = False) -> None:
    """Warn if an offload switch that is on has no effect.

    Args:
        key: the switch.
        device: where the computation runs.
        is_shared: the parameters are those of another model.
    """
    if is_shared:
        logger.warning("%s has no effect: the reference is the policy's model without its adapter", key)
    elif device.type == HOST.type:
        logger.warning("%s has no effect: the trainer computes on the CPU", key)
