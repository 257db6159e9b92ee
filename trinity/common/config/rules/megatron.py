"""Strategy megatron: the groups of processes that divide layers and matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trinity.common.config.draft import Draft, path_of
from trinity.common.config.schema_index import default_at

STRATEGY = "trainer.trainer_strategy"
MEGATRON = "megatron"
SECTION = "trainer.megatron"
SEQUENCE = "trainer.ulysses_sequence_parallel_size"
WORKERS = "trainer.num_workers"
TREE = "trainer.trainer_config"
ACTOR = f"{TREE}.actor_rollout_ref.actor"
REF = f"{TREE}.actor_rollout_ref.ref"
CRITIC = f"{TREE}.critic"
TENSOR = "tensor_model_parallel_size"
PIPELINE = "pipeline_model_parallel_size"
SIZES = (
    TENSOR, PIPELINE, "virtual_pipeline_model_parallel_size", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "context_parallel_size",
)  # fmt: skip
OFFLOADS = ("param_offload", "optimizer_offload")
_PLACES = {ACTOR: f"{ACTOR}.megatron", REF: f"{REF}.megatron", CRITIC: f"{CRITIC}.megatron"}

# Entries of override_transformer_config that ask for what is done here anyway, or for the recomputation of every layer.
_TRANSFORMER: dict[str, tuple[Any, ...]] = {
    "recompute_granularity": (None, "full"),
    "recompute_method": (None, "uniform"),
    "recompute_num_layers": (None, 1),
    "recompute_modules": (None, ["core_attn"]),
    "attention_backend": ("flash", "auto"),
    "variable_seq_lengths": (True,),
    "moe_token_dispatcher_type": ("alltoall",),
}
_RECOMPUTES = {
    ACTOR: f"{TREE}.actor_rollout_ref.model.enable_gradient_checkpointing",
    CRITIC: f"{CRITIC}.model.enable_gradient_checkpointing",
}


def model_parallel_size(draft: Draft) -> int:
    """Return how many processes hold one copy of the model before its weights are sharded."""
    if draft.get(STRATEGY) != MEGATRON:
        return 1
    return int(draft.get(f"{SECTION}.{TENSOR}") * draft.get(f"{SECTION}.{PIPELINE}"))


def resolve_megatron(draft: Draft) -> None:
    """Give each size one value, whichever of its names was written, and check what goes together."""
    _check_strategies(draft)
    if draft.get(STRATEGY) != MEGATRON:
        _refuse_without_effect(draft)
        return
    _join(draft)
    for key in _written(draft):
        if key.endswith(".override_transformer_config"):
            _check_transformer(draft, key)
    if model_parallel_size(draft) > 1:
        _check_company(draft)


def resolve_megatron_offload(draft: Draft) -> None:
    """Give the policy's offload switches the value of Megatron's section, before others are filled from them."""
    if MEGATRON in (draft.get(STRATEGY), draft.get(f"{ACTOR}.strategy")):
        for name in OFFLOADS:
            _join_offload(draft, f"{_PLACES[ACTOR]}.{name}", f"{ACTOR}.fsdp_config.{name}", f"trainer.{name}")


def _join_offload(draft: Draft, key: str, *others: str) -> None:
    """Give `others` the value of `key`; a different one that was written is an error."""
    if not draft.is_given(key):
        return
    for other in others:
        is_other = draft.get(other) != draft.get(key)
        # A switch that is off cannot take back what was filled in from the policy.
        if is_other and (draft.is_given(other) or not draft.get(key)):
            draft.problem(
                "E1815",
                key,
                f"`{key}` is {draft.get(key)}, but {other} is {draft.get(other)}",
                involves=(other,),
                suggestion=f"keep `{other}`",
            )
        elif is_other:
            draft.derive(other, draft.get(key), key)


def _refuse_without_effect(draft: Draft) -> None:
    for key in _written(draft):
        if draft.is_own(key) and draft.get(key) != default_at(path_of(key))[1]:
            draft.problem(
                "E1859",
                key,
                f"`{key}` has no effect with {STRATEGY} {draft.get(STRATEGY)}",
                involves=(STRATEGY,),
                suggestion=f"write `{STRATEGY}: megatron`, or remove it",
            )


def _written(draft: Draft) -> Iterator[str]:
    """Yield the keys of Megatron's sections that were written; below a free mapping, the mapping."""
    for section in (SECTION, *_PLACES.values()):
        if draft.is_given(section) and isinstance(draft.tree.get(path_of(section)), dict):
            yield from (f"{section}.{name}" for name, _ in draft.get(section) if draft.is_given(f"{section}.{name}"))


def _check_strategies(draft: Draft) -> None:
    for section in (REF, CRITIC):
        key = f"{section}.strategy"
        written = draft.get(key)
        if written is not None and (written == MEGATRON) != (draft.get(STRATEGY) == MEGATRON):
            _differs(draft, key, STRATEGY)


def _differs(draft: Draft, key: str, other: str) -> None:
    draft.problem(
        "E1858",
        key,
        f"`{key}` is {draft.get(key)}, but {other} is {draft.get(other)}: all models of a run are divided alike",
        rule=f"{draft.get(other)}",
        involves=(other,),
        suggestion="remove it",
    )


def _join(draft: Draft) -> None:
    """What the policy's section says wins; the others may only repeat it."""
    for name in (*SIZES, "sequence_parallel"):
        plain = f"{SECTION}.{name}"
        if draft.is_given(f"{_PLACES[ACTOR]}.{name}"):
            draft.derive(plain, draft.get(f"{_PLACES[ACTOR]}.{name}"), f"{_PLACES[ACTOR]}.{name} wins")
        for section in (REF, CRITIC):
            key = f"{_PLACES[section]}.{name}"
            if draft.is_given(key) and draft.get(key) != draft.get(plain):
                _differs(draft, key, plain)
    place = f"{CRITIC}.fsdp" if draft.get(f"{CRITIC}.fsdp") is not None else f"{CRITIC}.model.fsdp_config"
    _join_offload(draft, f"{_PLACES[REF]}.param_offload", f"{REF}.fsdp_config.param_offload")
    for name in OFFLOADS:
        _join_offload(draft, f"{_PLACES[CRITIC]}.{name}", f"{place}.{name}")


def _check_transformer(draft: Draft, key: str) -> None:
    """Take what means the recomputation of every layer, which has a key of its own; refuse what is not done."""
    values = draft.get(key)
    for name, value in values.items():
        if value not in _TRANSFORMER.get(name, ()):
            draft.problem(
                "E1857",
                f"{key}.{name}",
                f"`{key}.{name}: {value}` is not done here: layers are computed by this trainer, not by Megatron's "
                "transformer",
                rule="; ".join(str(v) for v in _TRANSFORMER.get(name, ())) or "not written",
                suggestion=f"remove it; `{_RECOMPUTES[ACTOR]}` recomputes every layer",
            )
    other = next((own for section, own in _RECOMPUTES.items() if key.startswith(f"{_PLACES[section]}.")), None)
    if other is None or values.get("recompute_granularity") != "full":
        return
    if draft.is_given(other) and not draft.get(other):
        draft.problem(
            "E1815",
            f"{key}.recompute_granularity",
            f"`{key}.recompute_granularity` is full, but {other} is false",
            involves=(other,),
            suggestion=f"keep `{other}`",
        )
    else:
        draft.derive(other, True, f"{key}.recompute_granularity is full")


def check_model_parallel(draft: Draft, world: int) -> None:
    """Check that the processes that train the model are whole copies of it."""
    size = model_parallel_size(draft)
    if world % size == 0:
        return
    name = TENSOR if draft.get(f"{SECTION}.{TENSOR}") > 1 else PIPELINE
    written = f"{_PLACES[ACTOR]}.{name}"
    key = written if draft.is_given(written) else f"{SECTION}.{name}"
    draft.problem(
        "E1848",
        key,
        f"`{key}` ({draft.get(key)}): {TENSOR} times {PIPELINE} is {size}, which does not divide the {world} processes "
        "that train the model",
        rule=f"a divisor of {world}",
        involves=(WORKERS,),
        suggestion=f"write `{WORKERS}: {size}`, or a multiple of it",
    )


def _check_company(draft: Draft) -> None:
    """What does not go with divided layers or matrices."""
    if draft.get(SEQUENCE) > 1:
        draft.problem(
            "E1857",
            SEQUENCE,
            f"`{SEQUENCE}` ({draft.get(SEQUENCE)}) is not done together with {SECTION}: one of them divides the heads",
            involves=(f"{SECTION}.{TENSOR}", f"{SECTION}.{PIPELINE}"),
            suggestion="keep one of the two",
        )
    if draft.get("model.lora_configs"):
        draft.problem(
            "E1857",
            "model.lora_configs",
            f"`model.lora_configs` is not done together with {SECTION}: adapters of divided matrices are not trained",
            involves=(f"{SECTION}.{TENSOR}", f"{SECTION}.{PIPELINE}"),
            suggestion="write `trainer.trainer_strategy: fsdp2`, which trains adapters on any number of workers",
        )
