"""Parameters and optimizer state in host memory while nothing is computed with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trinity.trainer.verl.decoder import Decoder

HOST = torch.device("cpu")


class Offload:
    """Brings tensors to the device for a computation and back to host memory after it; on a CPU it does nothing.

    Args:
        device: where is computed.
        model: its parameters are moved; None leaves them where they are.
        optimizer: its state is moved; None leaves it where it is.
        decoders: their copies of the parameters are dropped with them.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        decoders: Iterable[Decoder] = (),
    ) -> None:
        self.device = device
        self.is_active = device.type != HOST.type and not (model is None and optimizer is None)
        self._model = model
        self._optimizer = optimizer
        self._decoders = tuple(decoders)
        self.park()

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Hold the tensors on the device inside of the context."""
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
        if self._model is not None:
            nn.Module.to(self._model, device)
            for decoder in self._decoders:
                decoder.refresh()
        for values in self._optimizer.state.values() if self._optimizer is not None else ():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    values[name] = value.to(device)
