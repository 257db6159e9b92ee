"""The frozen reference model."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from trinity.trainer.batch import TrainBatch
from trinity.trainer.verl.decoder import Decoder
from trinity.trainer.verl.scorer import ActorSettings, Scorer

CPU = torch.device("cpu")


class Reference:
    """Log-probabilities of the policy as it was before the stage.

    Args:
        path: folder of the model, never changed by the run.
        decoder: computes its hidden states.
        settings: temperature and size of micro-batches.
        device: where it is computed.
        fingerprint: hash of the model's files.
        model: parameters of its own, frozen here; None where the decoder leaves out the policy's adapter.
        is_offloaded: keep the model's parameters in host memory between two batches.
    """

    def __init__(
        self,
        path: str,
        decoder: Decoder,
        *,
        settings: ActorSettings,
        device: torch.device,
        fingerprint: str,
        model: PreTrainedModel | None,
        is_offloaded: bool = False,
    ) -> None:
        self.path = path
        self.model = None if model is None else model.requires_grad_(False)
        self.fingerprint = fingerprint
        self.scorer = Scorer(decoder, settings=settings, device=device)
        self.is_offloaded = is_offloaded and model is not None and device.type != "cpu"
        self._move(CPU)

    @torch.no_grad()
    def compute_log_prob(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return the log-probability (nats) of the counted response tokens, 0 elsewhere, on the CPU."""
        self._move(self.scorer.device)
        try:
            return self.scorer.compute_log_prob(batch)
        finally:
            self._move(CPU)

    def _move(self, device: torch.device) -> None:
        """Move the parameters, where they are offloaded; copies that the decoder made are dropped with them."""
        if self.is_offloaded and self.model is not None:
            nn.Module.to(self.model, device)
            self.scorer.decoder.refresh()
