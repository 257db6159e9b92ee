"""The frozen reference model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from trinity.common.config import Config
from trinity.trainer.batch import TrainBatch
from trinity.trainer.verl.decoder import FastPackedDecoder, PackedDecoder, WithoutAdapter, make_decoder
from trinity.trainer.verl.divergence import Output
from trinity.trainer.verl.loading import attach_adapter, load_model, model_hash, move_buffers
from trinity.trainer.verl.offload import Offload, tell_idle_offload
from trinity.trainer.verl.packing import Packed
from trinity.trainer.verl.parallel.ranks import ALONE, Ranks
from trinity.trainer.verl.scorer import ActorSettings, Scorer
from trinity.trainer.verl.shard_settings import reference_options

if TYPE_CHECKING:
    from trinity.trainer.verl.lora import Adapter

SECTION = "trainer.trainer_config.actor_rollout_ref.ref.fsdp_config"


class Reference:
    """Log-probabilities of the policy as it was before the stage.

    Args:
        path: folder of the model, never changed by the run.
        decoder: computes its hidden states.
        settings: temperature and size of micro-batches.
        device: where it computes.
        fingerprint: hash of the model's files.
        model: its own parameters, frozen here; None if the decoder runs the policy without its adapter.
        is_offloaded: keep the model's parameters in host memory between two batches.
        ranks: the processes that score together.
    """

    def __init__(
        self,
        path: str,
        decoder: PackedDecoder,
        *,
        settings: ActorSettings,
        device: torch.device,
        fingerprint: str,
        model: PreTrainedModel | None,
        is_offloaded: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        self.path = path
        self.model = None if model is None else model.requires_grad_(False)
        self.fingerprint = fingerprint
        self.scorer = Scorer(decoder, settings=settings, device=device, ranks=ranks)
        held = self.model if ranks.is_alone or not isinstance(decoder, nn.Module) else decoder
        moved = [held] if self.model is not None and held is not None and is_offloaded else []
        self.offload = Offload(device, models=moved, decoders=[decoder])

    @torch.no_grad()
    def compute_log_prob(self, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return log-probabilities (nats) of counted tokens, 0 elsewhere, on CPU."""
        with self.offload.loaded():
            result = self.scorer.compute_log_prob(batch)
        if self.model is None:
            self.scorer.decoder.refresh()  # drops copies of weights that the policy's own decoder holds, too
        return result

    def divergence_of(self, policy: Scorer, batch: TrainBatch) -> Float[Tensor, "B T"]:
        """Return KL(policy, reference) (nats) of counted tokens, on CPU."""
        result = policy.compute_divergence(batch, self.output)
        if self.model is None:
            self.scorer.decoder.refresh()
        return result

    @torch.no_grad()
    def output(self, packed: Packed) -> Output:
        """Return hidden states and output layer for the scored positions."""
        with self.offload.loaded():
            hidden = self.scorer.decoder.hidden(packed)
            # Detached, the weight stays in device memory when the parameters go back to the host.
            return Output(hidden, self.scorer.decoder.head().detached())


def load_reference(
    config: Config,
    policy: PreTrainedModel,
    *,
    adapter: Adapter | None,
    settings: ActorSettings,
    device: torch.device,
    dtype: torch.dtype,
    ranks: Ranks = ALONE,
    decoder: PackedDecoder | None = None,
) -> Reference:
    """Load the reference: the policy as it is before the stage.

    Args:
        config: resolved configuration of the stage.
        policy: the trained model; without its adapter it is the reference, if the adapter starts at zero.
        adapter: the trained part of the policy, if that is an adapter.
        settings: temperature and size of micro-batches.
        device: where it computes.
        dtype: data type of the products.
        ranks: the processes that score together.
        decoder: of the policy; only it can read the sharded parameters.
    """
    path = str(config.model.model_path)
    fingerprint, model = model_hash(path), None
    made: PackedDecoder
    if adapter is not None and adapter.is_fresh and not ranks.is_alone and isinstance(decoder, FastPackedDecoder):
        made = WithoutAdapter(decoder)
    elif adapter is not None and adapter.is_fresh and ranks.is_alone:
        made = make_decoder(policy, dtype=dtype, recompute=False, without=adapter.disabled)
    else:
        model = load_model(path, ranks.loading_device(device), config=config)
        if adapter is not None and not adapter.is_fresh:
            attach_adapter(model, config)
            fingerprint += adapter.path_hash
        made = make_decoder(model.requires_grad_(False), dtype=dtype, recompute=False)
        ranks.shard(made, reference_options(config))
        move_buffers(model, device)
    wanted = config.trainer.trainer_config.actor_rollout_ref.ref.fsdp_config
    is_in_host = reference_options(config).offload_policy and not ranks.is_alone
    for key in (key for key in ("param_offload", "offload_policy") if vars(wanted)[key]):
        tell_idle_offload(f"{SECTION}.{key}", device, is_shared=model is None)
    return Reference(
        path,
        made,
        settings=settings,
        device=device,
        fingerprint=fingerprint,
        model=model,
        is_offloaded=wanted.param_offload and not is_in_host,
        ranks=ranks,
    )
