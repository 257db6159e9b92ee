"""The critic: whether there is one, and what its section leaves out."""

from __future__ import annotations

from typing import Any

from trinity.common.config.draft import Draft
from trinity.common.config.following import fill_defaults, note_overridden, override
from trinity.common.config.verl_critic import CriticConfig

TREE = "trainer.trainer_config"
ACTOR = f"{TREE}.actor_rollout_ref.actor"
CRITIC = f"{TREE}.critic"
PATH = "model.critic_model_path"
_BOTH = "a checkpoint holds policy and critic"


def reads_values(draft: Draft) -> bool:
    """Return whether the run has a critic: the advantage asks for `values`, or is a plugin beside `enable: true`."""
    name = draft.get("algorithm.advantage_fn")
    entry = draft.catalogue.entry("advantage_fn", name)
    if entry is None:
        return name is not None and draft.get(f"{CRITIC}.enable") is True
    return "values" in entry.reads


def may_read_values(draft: Draft) -> bool:
    """Return whether the run may have a critic: what the advantage of a plugin reads is known when the run starts."""
    name = draft.get("algorithm.advantage_fn")
    is_plugin = name is not None and draft.catalogue.entry("advantage_fn", name) is None
    return is_plugin or reads_values(draft)


def resolve_critic(draft: Draft) -> None:
    """Turn the critic on where the advantage reads values, and fill what its section leaves out from the actor."""
    _resolve_path(draft)
    name, is_on = draft.get("algorithm.advantage_fn"), reads_values(draft)
    written = draft.get(f"{CRITIC}.enable")
    if written is not None and written != is_on:
        draft.problem(
            "E1816",
            f"{CRITIC}.enable",
            f"`{CRITIC}.enable` is set from algorithm.advantage_fn: {name} {'reads' if is_on else 'reads no'} values",
            involves=("algorithm.advantage_fn", "algorithm.algorithm_type"),
            suggestion="remove it" if is_on else "write `algorithm.advantage_fn: ppo`, or remove it",
        )
    if not may_read_values(draft):
        return
    if draft.trains_on_dataset:
        return  # no advantage fits a dataset, and the algorithm's rules say so
    if is_on:
        draft.derive(f"{CRITIC}.enable", True, f"advantage_fn {name} reads values")
    _fill(draft)


def check_unused_critic(draft: Draft) -> None:
    """Warn about what was written for a critic that this run does not have."""
    if may_read_values(draft):
        return
    if draft.is_given(PATH) and draft.get(PATH) != draft.get("model.model_path"):
        draft.problem("W1813", PATH, f"`{PATH}` has no effect: this algorithm has no critic", suggestion="remove it")
    written = draft.typed.trainer.trainer_config.critic
    if draft.is_own(CRITIC) and written.model_copy(update={"enable": None}) != CriticConfig():
        draft.problem("W1902", CRITIC, f"`{CRITIC}` has no effect: this algorithm has no critic")
    for key in ("trainer.critic_warmup", f"{TREE}.trainer.critic_warmup"):
        if draft.is_own(key) and draft.get(key):
            draft.problem("W1902", key, f"`{key}` has no effect: this algorithm has no critic")


def _resolve_path(draft: Draft) -> None:
    other = f"{CRITIC}.model.path"
    path, theirs = draft.get(PATH), draft.get(other)
    if theirs is not None and path is not None and path != theirs:
        draft.problem(
            "E1815",
            other,
            f"`{other}` is {theirs}, but {PATH} is {path}",
            involves=(PATH,),
            suggestion=f"keep `{PATH}`",
        )
    elif theirs is not None and path is None:
        draft.derive(PATH, theirs, f"{other}, its veRL name")
    elif path is None:
        draft.derive(PATH, draft.get("model.model_path"), "model.model_path")


def _fill(draft: Draft) -> None:
    _resolve_schedule(draft)
    _resolve_places(draft)
    _resolve_retention(draft)
    longest = draft.get("model.max_model_len")
    override(draft, f"{CRITIC}.ppo_mini_batch_size", by="buffer.train_batch_size")
    _default(draft, "optim.lr", 1e-5, "default of the guide")
    budget = draft.get(f"{ACTOR}.ppo_max_token_len_per_gpu")
    _default(draft, "ppo_max_token_len_per_gpu", budget and 2 * budget, "twice the actor's")
    older = draft.get(f"{CRITIC}.ppo_micro_batch_size")
    _default(
        draft, "ppo_micro_batch_size_per_gpu", older or 8, "ppo_micro_batch_size" if older else "default of the guide"
    )
    older = draft.get(f"{CRITIC}.forward_micro_batch_size")
    _default(draft, "forward_micro_batch_size_per_gpu", older, f"{CRITIC}.forward_micro_batch_size")
    fill_defaults(draft, CRITIC, but=(_idle_place(draft),), also=(-1,))
    for key in (f"{CRITIC}.ppo_max_token_len_per_gpu", f"{CRITIC}.forward_max_token_len_per_gpu"):
        if longest and draft.get(key) is not None and draft.get(key) < longest:
            reason = f"raised from {draft.get(key)}: one sequence may have max_model_len ({longest}) tokens"
            draft.derive(key, longest, reason)


def _idle_place(draft: Draft) -> str:
    """Return the place of the number types that is not used."""
    return f"{CRITIC}.fsdp" if draft.get(f"{CRITIC}.fsdp") is None else f"{CRITIC}.model.fsdp_config"


def _default(draft: Draft, key: str, value: Any, reason: str) -> None:
    if draft.get(f"{CRITIC}.{key}") in (None, -1) and value is not None:
        draft.derive(f"{CRITIC}.{key}", value, reason)


def _resolve_schedule(draft: Draft) -> None:
    """Give the schedule one value, whichever of its names was written."""
    style, kind = f"{CRITIC}.optim.warmup_style", f"{CRITIC}.optim.lr_scheduler_type"
    if draft.get(style) is not None and draft.get(kind) is not None and draft.get(style) != draft.get(kind):
        draft.problem(
            "E1815", style, f"`{style}` is {draft.get(style)}, but lr_scheduler_type is {draft.get(kind)}",
            suggestion="keep lr_scheduler_type",
        )  # fmt: skip
    _default(draft, "optim.lr_scheduler_type", draft.get(style), "warmup_style, its older name")


def _resolve_retention(draft: Draft) -> None:
    """Keep the larger number where those of policies and critics differ: a checkpoint holds one of each."""
    key, own = "trainer.max_checkpoints_to_keep", f"{TREE}.trainer.max_critic_ckpt_to_keep"
    kept, asked = draft.get(key), draft.get(own)
    if asked is None or asked == draft.get(f"{TREE}.trainer.max_actor_ckpt_to_keep"):
        return
    if not draft.is_given(key) and 0 < kept < asked:
        policies = f"{TREE}.trainer.max_actor_ckpt_to_keep"
        note_overridden(draft, policies, f"overridden by {own} ({asked}): {_BOTH}", value=asked, involves=own)
        draft.derive(key, asked, f"{own}: {_BOTH}")
        return
    note_overridden(draft, own, f"overridden by {key} ({kept or 'all'}): {_BOTH}", value=kept, involves=key)


def _resolve_places(draft: Draft) -> None:
    """Refuse two places of the number types: `fsdp` is the newer one of `model.fsdp_config`."""
    newer, older = f"{CRITIC}.fsdp", f"{CRITIC}.model.fsdp_config"
    if draft.is_given(newer) and draft.is_given(older):
        draft.problem(
            "E1815", newer, f"`{newer}` and {older} are two places of one thing", involves=(older,),
            suggestion=f"keep `{older}`",
        )  # fmt: skip
