"""The trainer's settings under their two names: section `trainer` and the veRL tree hold one value each."""

from __future__ import annotations

from typing import Any

from trinity.common.config.draft import Draft
from trinity.common.config.following import fill_defaults, join_mirrors, mirrors, note_overridden
from trinity.common.config.schema_index import default_at, facts_at

TREE = "trainer.trainer_config"
ACTOR = f"{TREE}.actor_rollout_ref.actor"
MODEL = f"{TREE}.actor_rollout_ref.model"
REF = f"{TREE}.actor_rollout_ref.ref"


def resolve_trainer(draft: Draft) -> None:
    """Give each setting of the trainer one value, whichever of its names was written."""
    _resolve_clip(draft)
    _resolve_budget(draft)
    join_mirrors(draft, f"{TREE}.trainer")
    join_mirrors(draft, MODEL)
    join_mirrors(draft, ACTOR, but=(f"{ACTOR}.optim",))
    _raise_budget(draft)
    _resolve_optimizer(draft)
    older = draft.get(f"{ACTOR}.ppo_micro_batch_size")
    micro = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    if draft.get(micro) is None:
        draft.derive(micro, older or 4, "ppo_micro_batch_size over one worker" if older else "default of the guide")
    older = draft.get(f"{REF}.log_prob_micro_batch_size")
    if older and draft.get(f"{REF}.log_prob_micro_batch_size_per_gpu") is None:
        draft.derive(f"{REF}.log_prob_micro_batch_size_per_gpu", older, "log_prob_micro_batch_size over one worker")
    for section in (ACTOR, MODEL, REF):
        fill_defaults(draft, section)
    _fill_rest(draft)
    _resolve_retention(draft)


def _resolve_clip(draft: Draft) -> None:
    other = draft.get("algorithm.optimizer.clip_grad")
    if other is None:
        return
    if draft.is_given("trainer.grad_clip") and draft.get("trainer.grad_clip") != other:
        draft.problem(
            "E1815",
            "algorithm.optimizer.clip_grad",
            f"`algorithm.optimizer.clip_grad` is {other:g}, but trainer.grad_clip is {draft.get('trainer.grad_clip')}",
            suggestion="keep trainer.grad_clip",
        )
    else:
        draft.derive("trainer.grad_clip", other, "algorithm.optimizer.clip_grad, its other name")


def _resolve_budget(draft: Draft) -> None:
    longest = draft.get("model.max_model_len")
    parallel = draft.get("trainer.ulysses_sequence_parallel_size")
    key = "trainer.max_token_len_per_gpu"
    if draft.get(key) is None and draft.get(f"{ACTOR}.ppo_max_token_len_per_gpu") is None and longest:
        draft.derive(key, -(-2 * longest // parallel), "twice max_model_len over ulysses_sequence_parallel_size")


def _raise_budget(draft: Draft) -> None:
    longest = draft.get("model.max_model_len")
    if not longest:
        return
    is_pair = draft.schema == "dpo"
    least = -(-longest * (2 if is_pair else 1) // draft.get("trainer.ulysses_sequence_parallel_size"))
    why = "a pair may have twice" if is_pair else "one sequence may have"
    for key in (
        "trainer.max_token_len_per_gpu",
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        f"{REF}.log_prob_max_token_len_per_gpu",
    ):
        value = draft.get(key)
        if value is not None and value < least:
            draft.derive(key, least, f"raised from {value}: {why} max_model_len ({longest}) tokens")


def _resolve_optimizer(draft: Draft) -> None:
    optim = f"{ACTOR}.optim"
    style = draft.get(f"{optim}.warmup_style")
    if style is not None and draft.get(f"{optim}.lr_scheduler_type") is None:
        draft.derive(f"{optim}.lr_scheduler_type", style, "warmup_style, its older name")
    for theirs, ours in mirrors(optim):
        value, is_schedule = draft.get(theirs), theirs.endswith(".lr_scheduler_type")
        is_ours = draft.is_given(ours) or (is_schedule and draft.is_given("algorithm.optimizer.warmup_style"))
        if value is None:
            draft.derive(theirs, draft.get(ours), ours)
        elif not _equal(value, draft.get(ours)) and is_ours:
            where = f"{optim}.warmup_style" if is_schedule and style is not None else theirs
            draft.problem(
                "E1815",
                where,
                f"`{where}` is {value}, but {ours} is {draft.get(ours)}",
                involves=(ours,),
                suggestion=f"keep `{ours}`",
            )
        elif not _equal(value, draft.get(ours)):
            draft.derive(ours, value, theirs)


def _equal(left: Any, right: Any) -> bool:
    return bool(
        (list(left) if isinstance(left, tuple) else left) == (list(right) if isinstance(right, tuple) else right)
    )


def _fill_rest(draft: Draft) -> None:
    steps, key = draft.get("trainer.total_steps"), f"{ACTOR}.use_kl_loss"
    if draft.get(key) is None:
        draft.derive(key, draft.get("algorithm.kl_loss_fn") != "none", "algorithm.kl_loss_fn")
    if steps is not None and draft.get(f"{ACTOR}.optim.total_training_steps") in (-1, None):
        draft.derive(f"{ACTOR}.optim.total_training_steps", steps, "trainer.total_steps")


def _resolve_retention(draft: Draft) -> None:
    key, other = "trainer.max_checkpoints_to_keep", f"{TREE}.trainer.max_actor_ckpt_to_keep"
    if draft.get(f"{TREE}.trainer.remove_previous_ckpt_in_save") and not draft.is_given(key):
        draft.derive(key, 2, "remove_previous_ckpt_in_save; the newest two are kept")
    if draft.get(other) is not None:
        if draft.is_given(key) and draft.get(key) != 0:
            why = f"overridden by {key} ({draft.get(key)})"
            note_overridden(draft, other, why, value=draft.get(key), involves=key)
        else:
            draft.derive(key, draft.get(other), "max_actor_ckpt_to_keep, its veRL name")
    if draft.get(key) == 1:
        written = key if draft.is_given(key) else other
        draft.problem(
            "W7030",
            written,
            f"`{written}: 1` keeps 2 until a newer checkpoint is complete",
            suggestion="write 2 or more",
        )
        draft.derive(key, 2, "a checkpoint is removed only when two newer ones are complete")


def check_schedule(draft: Draft) -> None:
    """Refuse a learning rate that follows the number of all steps where nobody knows it: a queue trained alone."""
    buffer = draft.config.buffer.trainer_input.experience_buffer
    if (
        draft.mode != "train"
        or (buffer and buffer.storage_type == "file")
        or draft.get("trainer.total_steps") is not None
    ):
        return
    kind, ratio = (draft.get(f"algorithm.optimizer.{name}") for name in ("lr_scheduler_type", "lr_warmup_steps_ratio"))
    older = draft.get("algorithm.optimizer.warmup_style")
    kinds = (("warmup_style", older),) if older is not None else (("lr_scheduler_type", kind),)
    by_ratio = ratio if draft.get("algorithm.optimizer.lr_warmup_steps") < 0 else 0
    for name, value in (*kinds, ("lr_warmup_steps_ratio", by_ratio)):
        if value not in ("constant", 0):
            key = f"algorithm.optimizer.{name}"
            draft.problem(
                "E1873",
                key,
                f"`{key}: {value}` follows the number of all training steps, which nobody knows when a buffer of "
                "experiences is trained in mode train",
                involves=("trainer.total_steps", "buffer.total_steps", "mode"),
                suggestion="write `trainer.total_steps`",
            )


def check_derived_keys(draft: Draft) -> None:
    """Refuse veRL keys that are set from other keys, if they were written with another value."""
    for path in draft.tree.leaves():
        place, facts = facts_at(path)
        source = facts.set_from if place == path else None
        value = draft.tree.get(path)
        if source is None or value is None or value == default_at(path)[1] or value == -1:
            continue
        key = ".".join(str(part) for part in path)
        try:
            same = draft.get(source) == value
        except (KeyError, TypeError):
            same = False
        if not same:
            draft.problem("E1816", key, f"`{key}` is set from {source}", suggestion=f"write `{source}`")
