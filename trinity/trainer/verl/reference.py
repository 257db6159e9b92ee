"""The frozen reference model."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from trinity.common.checkpoint import hash_tree
from trinity.trainer.batch import TrainBatch
from trinity.trainer.verl.decoder import Decoder
from trinity.trainer.verl.divergence import Output
from trinity.trainer.verl.packing import Packed
from trinity.trainer.verl.scorer import ActorSettings, Scorer


class Reference:
    """Log-probabilities of the policy as it was before the stage.

    Args:
        path: folder of the model, never changed by the run.
        model: its parameters, frozen here.
        decoder: computes its hidden states.
        settings: temperature and size of micro-batches.
    """

    def __init__(self, path: str, model: PreTrainedModel, decoder: Decoder, *, settings: ActorSettings) -> None:
        self.path = path
        self.model = model.requires_grad_(False)
        self.fingerprint = hash_tree(Path(path)) if Path(path).is_dir() else ""
        self.scorer = Scorer(decoder, settings=settings, device=next(model.parameters()).device)

    @torch.no_grad()
    def compute_log_prob(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return the log-probability (nats) of the counted response tokens, 0 elsewhere, on the CPU."""
        return self.scorer.compute_log_prob(batch)

    @torch.no_grad()
    def output(self, packed: Packed) -> Output:
        """Return what gives the reference's logits at the scored positions."""
        hidden = self.scorer.decoder.hidden(packed)
        weight, bias, _ = self.scorer.decoder.head()
        return Output(hidden, weight, bias)
