"""Log-probabilities of a batch, micro-batch by micro-batch.

Dimension key: B = rows, T = response positions, M = scored positions, m = those of this rank, d = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from trinity.common.errors import DataError
from trinity.common.models.families import VISION
from trinity.trainer.batch import TrainBatch, counted_rows
from trinity.trainer.prefixes import Sharing
from trinity.trainer.verl.attention import BLOCKWISE_MAX_LENGTH
from trinity.trainer.verl.decoder import PackedDecoder
from trinity.trainer.verl.divergence import Output, full_divergence
from trinity.trainer.verl.flex import forest_works
from trinity.trainer.verl.hf_attention import computing
from trinity.trainer.verl.logprob import distribution_statistics, logprob_and_entropy
from trinity.trainer.verl.loss import spread_to_rows
from trinity.trainer.verl.packing import Packed, pack
from trinity.trainer.verl.parallel.balance import Work
from trinity.trainer.verl.parallel.ranks import ALONE, Ranks


@dataclass(frozen=True)
class ActorSettings:
    """How a batch is split and stepped.

    Attributes:
        temperature: divides the logits, as in the engine.
        mini_batch_size: experiences per optimizer step; None means the whole batch.
        max_tokens: most tokens of a micro-batch; None means no bound.
        max_rows: most rows of a micro-batch; None means no bound.
        epochs: passes over a batch.
        shuffle_seed: seed of the shuffle of each pass; None keeps the order.
        grad_clip: largest gradient norm; None or 0 means no clipping.
        normalizer: divisor of seq-mean-token-sum-norm (`model.max_response_tokens`).
        averages_micro_batches: the loss is the mean over micro-batches of consecutive rows, each normalised by itself
            (`algorithm.loss_agg_scope: micro_batch`).
    """

    temperature: float = 1.0
    mini_batch_size: int | None = None
    max_tokens: int | None = None
    max_rows: int | None = None
    epochs: int = 1
    shuffle_seed: int | None = None
    grad_clip: float | None = 1.0
    normalizer: float = 1.0
    averages_micro_batches: bool = False


class Scorer:
    """Scores response tokens with a decoder.

    Args:
        decoder: computes the model's hidden states.
        settings: temperature and size of micro-batches.
        device: where the model is.
        ranks: the processes that score a batch together.
    """

    def __init__(
        self, decoder: PackedDecoder, *, settings: ActorSettings, device: torch.device, ranks: Ranks = ALONE
    ) -> None:
        self.decoder = decoder
        self.settings = settings
        self.device = device
        self.ranks = ranks
        self._num_shared = 0

    @property
    def sharing(self) -> Sharing:
        """What the decoder computes once here.

        Equal prompts of short rows are on a CPU only; elsewhere they are prefixes like others.
        """
        if self.device.type != "cpu":
            return Sharing(0, self.decoder.can_share_prefixes and forest_works(self.device))
        prompts_up_to = BLOCKWISE_MAX_LENGTH if self.decoder.can_share_prompts else 0
        return Sharing(prompts_up_to, self.decoder.can_share_prefixes)

    def split(self, batch: TrainBatch, rows: Iterable[int], settings: ActorSettings) -> list[Work]:
        """Return this rank's micro-batches of `rows`."""
        return self.ranks.split(
            batch,
            rows,
            max_tokens=settings.max_tokens,
            max_rows=settings.max_rows,
            sharing=self.sharing,
            is_in_order=settings.averages_micro_batches,
        )

    def pack(self, micro: TrainBatch) -> Packed:
        """Return the packed form of a micro-batch on the device."""
        sharing = self.sharing
        is_short = int(micro.lengths.max()) <= sharing.prompts_up_to
        packed = pack(micro, share_prompts=is_short, share_prefixes=sharing.prefixes)
        if packed.images is not None and not self.decoder.reads_images:
            raise DataError(
                "a training batch has images, and this model reads none; train a model of one of these families: "
                + ", ".join(VISION),
                code="E4034",
            )
        self._num_shared += int((micro.lengths - 1).sum()) - len(packed.tokens)
        return self.ranks.cut(packed.to(self.device))

    def take_num_shared(self) -> int:
        """Return how many tokens sharing saved, and start again from 0."""
        found, self._num_shared = self._num_shared, 0
        return found

    def score(self, packed: Packed, *, with_entropy: bool) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"]]:
        """Return log-probability and entropy (nats) of the scored tokens."""
        return self.score_hidden(self.decoder.hidden(packed), packed, with_entropy=with_entropy)

    def divergence(self, hidden: Float[Tensor, "m d"], reference: Output, packed: Packed) -> Float[Tensor, "M"]:
        """Return KL(policy, reference) (nats) at the scored tokens.

        `hidden` are this rank's states of them.
        """
        policy = Output(hidden, self.decoder.head())
        divergence = full_divergence(policy, reference, temperature=self.settings.temperature)
        return packed.collect(divergence)

    def score_hidden(
        self, hidden: Float[Tensor, "m d"], packed: Packed, *, with_entropy: bool
    ) -> tuple[Float[Tensor, "M"], Float[Tensor, "M"]]:
        """Return what `score` returns, from the decoder's hidden states."""
        logprob, entropy = logprob_and_entropy(
            hidden,
            self.decoder.head(),
            packed.own_labels,
            temperature=self.settings.temperature,
            with_entropy=with_entropy,
        )
        return packed.collect(logprob), packed.collect(entropy)

    def compute_log_prob(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return log-probabilities (nats) of counted tokens, 0 elsewhere, on CPU."""
        return self.compute(batch, lambda packed: self.score(packed, with_entropy=False)[0])

    def compute(self, batch: TrainBatch, function: Callable[[Packed], Float[Tensor, "M"]]) -> Float[Tensor, "B T"]:
        """Return `function` of counted tokens, 0 elsewhere, on CPU, no gradient."""
        return self._compute_all(batch, lambda packed: {"": function(packed)})[""]

    def compute_statistics(self, batch: TrainBatch, names: Iterable[str]) -> dict[str, Float[Tensor, "B T"]]:
        """Return `logprob` (nats) and the `STATISTICS` in `names`; see `compute`."""
        wanted = sorted(names)

        def of(packed: Packed) -> dict[str, Tensor]:
            hidden = self.decoder.hidden(packed)
            temperature = self.settings.temperature
            found = distribution_statistics(hidden, self.decoder.head(), wanted, temperature=temperature)
            return {name: packed.collect(values) for name, values in found.items()} | {
                "logprob": self.score_hidden(hidden, packed, with_entropy=False)[0]
            }

        return self._compute_all(batch, of, names=("logprob", *wanted))

    def compute_divergence(self, batch: TrainBatch, reference_of: Callable[[Packed], Output]) -> Float[Tensor, "B T"]:
        """Return KL(policy, reference) (nats) of counted tokens; see `compute`."""

        def of(packed: Packed) -> dict[str, Tensor]:
            reference = reference_of(packed)
            return {"": self.divergence(self.decoder.hidden(packed), reference, packed)}

        return self._compute_all(batch, of, before=reference_of)[""]

    @torch.no_grad()
    def _compute_all(
        self,
        batch: TrainBatch,
        function: Callable[[Packed], dict[str, Tensor]],
        *,
        names: Iterable[str] = ("",),
        before: Callable[[Packed], Any] = lambda packed: None,
    ) -> dict[str, Float[Tensor, "B T"]]:
        result = {name: torch.zeros(batch.action_mask.shape) for name in names}
        counted = counted_rows(batch, batch.action_mask)
        settings, stages = self.settings, self.decoder.stages
        for work in self.split(batch, counted, settings):
            packed = self.pack(batch.select(work.rows))
            if stages is not None and not stages.is_last:
                before(packed)  # of every stage, as in `function`
                self.decoder.hidden(packed)  # sends the stream on; only the last stage has the output layer
                continue
            with computing(packed):
                found = function(packed)
            if work.is_filler:
                continue
            for name, values in found.items():
                part = spread_to_rows(values, packed.targets, num_rows=packed.num_rows, width=packed.width)
                result[name][torch.tensor(work.rows), : packed.width] = part.cpu()
        self.ranks.add_up(result.values())
        return result
