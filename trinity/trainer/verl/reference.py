"""The frozen reference model."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from trinity.trainer.batch import TrainBatch
from trinity.trainer.verl.decoder import Decoder
from trinity.trainer.verl.offload import Offload
from trinity.trainer.verl.scorer import ActorSettings, Scorer


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
        self.offload = Offload(device, model=self.model if is_offloaded else None, decoders=(decoder,))

    @torch.no_grad()
    def compute_log_prob(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return the log-probability (nats) of the counted response tokens, 0 elsewhere, on the CPU."""
        with self.offload.loaded():
            return self.scorer.compute_log_prob(batch)
