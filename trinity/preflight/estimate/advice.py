"""What to change where a run does not fit, or holds more than it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trinity.common.config.keys import ACTOR, KEYS, REFERENCE, ROLLOUT_MODEL, value_of
from trinity.common.config.resolved import num_workers
from trinity.preflight.estimate.parts import HOST, PlacedMemory
from trinity.preflight.estimate.places import ENGINE_GPU, ONE_GPU, TRAINER_GPU, PlannedModels, placed, total_bytes
from trinity.preflight.estimate.work import explores, lengths_of, trains
from trinity.utils.memory import shown_bytes

if TYPE_CHECKING:
    from trinity.common.config import Config

LARGE = 7_000_000_000
"""Parameters from which a reference that waits in host memory is worth its transfers."""
DETAILED = KEYS.trainer.trainer_config.actor_rollout_ref
TOKENS, RECOMPUTE = ACTOR.ppo_max_token_len_per_gpu, DETAILED.model.enable_gradient_checkpointing
REFERENCE_OFFLOAD, POLICY_OFFLOAD = REFERENCE.fsdp_config.param_offload, ACTOR.fsdp_config.offload_policy
WORKERS, TENSOR = KEYS.trainer.num_workers, ROLLOUT_MODEL.tensor_parallel_size
LEAST_TOKENS, MOST_DEVICES = 512, 1024
Changes = dict[str, Any]


@dataclass(frozen=True)
class Recommendation:
    """A change of the configuration.

    Attributes:
        why: what is too large, or what the change saves.
        changes: values by key, for `--set`; empty: none of those that were tried helps.
    """

    why: str
    changes: Mapping[str, Any]

    @property
    def text(self) -> str:
        """It as one line."""
        sets = " ".join(f"--set {key}={str(value).lower()}" for key, value in self.changes.items())
        return f"{self.why}: {sets}" if sets else self.why


@dataclass(frozen=True)
class MemoryLimits:
    """The memory that there is.

    Attributes:
        host_bytes: of the machine; None: another machine's, which is not known.
        card_bytes: of a GPU; None: not known.
    """

    host_bytes: int | None
    card_bytes: int | None


def recommendations(config: Config, models: PlannedModels, limits: MemoryLimits) -> Iterator[Recommendation]:
    """Yield what to change, the most urgent first."""
    places = placed(config, models, card_bytes=limits.card_bytes)
    for place in (TRAINER_GPU, ONE_GPU, ENGINE_GPU):
        if limits.card_bytes:
            yield from _too_large(config, models, place, limits.card_bytes, limits=limits)
    in_host = total_bytes(places, is_host=True)
    if limits.host_bytes and in_host > limits.host_bytes:
        yield from _too_large(config, models, HOST, limits.host_bytes, limits=limits)
    if _has_large_reference(config, models):
        size = models.policy.num_parameters * 4 // num_workers(config)
        why = (
            f"a reference of more than {LARGE / 1e9:g} G parameters can wait in host memory, which saves "
            f"{shown_bytes(size)} on each GPU between its passes"
        )
        yield Recommendation(why, {str(REFERENCE_OFFLOAD): True})


def _has_large_reference(config: Config, models: PlannedModels) -> bool:
    is_offloaded = value_of(config, REFERENCE_OFFLOAD) or value_of(config, REFERENCE.fsdp_config.offload_policy)
    is_on_gpu = bool(config.cluster.trainer_gpu_num) and trains(config)
    is_own_model = not config.model.lora_configs or config.model.lora_configs[0].path is not None
    is_large = models.policy.num_parameters > LARGE
    return models.has_reference and is_large and is_on_gpu and is_own_model and not is_offloaded


def _too_large(
    config: Config, models: PlannedModels, place: str, have: int, *, limits: MemoryLimits
) -> Iterator[Recommendation]:
    def needed(of: Config) -> int:
        return _largest(placed(of, models, card_bytes=limits.card_bytes), place)

    now = needed(config)
    if now <= have:
        return
    why = f"{place}: {shown_bytes(now)} are needed and {shown_bytes(have)} are there"
    for changes in _ways(config, models, place):
        after = needed(changed(config, changes))
        if after <= have:
            yield Recommendation(f"{why}; {shown_bytes(after)} are needed with", changes)
            return
    yield Recommendation(
        f"{why}; neither smaller micro-batches nor more devices of this kind make it fit: use a smaller model, or "
        f"train an adapter (`{KEYS.model.lora_configs}`)",
        {},
    )


def _largest(places: list[PlacedMemory], place: str) -> int:
    if place == HOST:
        return total_bytes(places, is_host=True)
    return max((each.num_bytes for each in places if each.place == place), default=0)


def _ways(config: Config, models: PlannedModels, place: str) -> Iterator[Changes]:
    """Yield changes in the order in which they cost the least."""
    smaller = [*_fewer_tokens(config)] if trains(config) else []
    with_recompute = [{**changes, str(RECOMPUTE): True} for changes in [{}, *smaller]]
    reference: Changes = {str(REFERENCE_OFFLOAD): True} if place in (TRAINER_GPU, ONE_GPU) else {}
    of_trainer = [*smaller, *with_recompute] if place != ENGINE_GPU and trains(config) else []
    yield from of_trainer
    if reference and models.has_reference:
        yield reference
        yield from ({**changes, **reference} for changes in with_recompute)
    if place in (ENGINE_GPU, ONE_GPU) and explores(config):
        yield from _wider_engines(config, models)
    if place in (TRAINER_GPU, ONE_GPU) and trains(config):
        number = num_workers(config)
        while number < MOST_DEVICES:
            number *= 2
            yield {str(WORKERS): number}
            yield {str(WORKERS): number, **with_recompute[-1]}


def _fewer_tokens(config: Config) -> Iterator[Changes]:
    tokens = value_of(config, TOKENS) or 0
    least = max(LEAST_TOKENS, lengths_of(config).whole)
    while tokens // 2 >= least:
        tokens //= 2
        yield {str(TOKENS): tokens}


def _wider_engines(config: Config, models: PlannedModels) -> Iterator[Changes]:
    size = value_of(config, TENSOR)
    while size * 2 <= models.engine.heads and models.engine.heads % (size * 2) == 0:
        size *= 2
        yield {str(TENSOR): size}


def changed(config: Config, changes: Changes) -> Config:
    """Return a configuration with other values of some keys.

    Nothing is derived again but the trainer's GPUs.
    """
    for name, value in changes.items():
        config = _replaced(config, tuple(name.split(".")), value)
    if str(WORKERS) in changes and config.cluster.trainer_gpu_num:
        number = changes[str(WORKERS)]
        total = (config.cluster.total_gpu_num or 0) - config.cluster.trainer_gpu_num + number
        cluster = config.cluster.model_copy(update={"trainer_gpu_num": number, "total_gpu_num": total})
        config = config.model_copy(update={"cluster": cluster})
    return config


def _replaced(section: Any, path: tuple[str, ...], value: Any) -> Any:
    first, *rest = path
    inner = vars(section)[first]
    new = _replaced(inner, tuple(rest), value) if rest else value
    return section.model_copy(update={first: new})
