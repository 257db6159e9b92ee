"""The gradient of a mini-batch's loss, summed over its micro-batches.

Dimension key: m = scored positions of this rank, d = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from jaxtyping import Float
from torch import Tensor

from trinity.trainer.batch import TrainBatch
from trinity.trainer.verl.decoder import FastPackedDecoder, PackedDecoder
from trinity.trainer.verl.divergence import Output
from trinity.trainer.verl.hf_attention import computing
from trinity.trainer.verl.packing import Packed
from trinity.trainer.verl.scorer import Scorer

S = TypeVar("S")


@dataclass(frozen=True)
class MicroStep(Generic[S]):
    """A micro-batch with its share of the loss; a filler adds nothing."""

    micro: TrainBatch
    share: S
    is_filler: bool


def accumulate(
    decoder: PackedDecoder,
    scorer: Scorer,
    steps: Iterable[MicroStep[S]],
    *,
    loss: Callable[[MicroStep[S], Tensor, Packed, Output | None], Tensor],
    reference_of: Callable[[Packed], Output | None] = lambda packed: None,
) -> None:
    """Add the gradient of all micro-batches to the parameters.

    Args:
        decoder: computes the hidden states; every rank that shares its layers or matrices calls this.
        scorer: packs a micro-batch.
        steps: the micro-batches; one at a time is held, unless stages share the layers.
        loss: makes the summand [] of one of them from its last hidden states [m, d], its packing and its reference.
        reference_of: the output with whose distributions the loss compares the policy's.
    """
    stages = decoder.stages
    if stages is None:
        for step in steps:
            packed = scorer.pack(step.micro)
            with computing(packed):
                hidden = decoder.hidden(packed)
                loss(step, hidden, packed, reference_of(packed)).backward()
        return
    assert isinstance(decoder, FastPackedDecoder), "only its layers are shared by stages"
    held = [(step, scorer.pack(step.micro)) for step in steps]
    references = [reference_of(packed) for _, packed in held]  # uses all stages, so it runs before the policy's passes

    def loss_of(number: int, hidden: Float[Tensor, "M d"]) -> Float[Tensor, ""]:
        step, packed = held[number]
        return loss(step, hidden, packed, references[number])

    stages.accumulate(decoder, [packed for _, packed in held], loss_of=loss_of)
