"""What an algorithm type says about its functions, against what they say of themselves."""

from __future__ import annotations

from typing import Any

from trinity.common.config.draft import Draft
from trinity.utils.entry import Entry

KEY = "algorithm.algorithm_type"
BALANCE = ("trainer.balance_batch", "trainer.trainer_config.trainer.balance_batch")


def check_type(draft: Draft, algorithm: str, entry: Entry) -> None:
    """Check that what an algorithm type claims holds, and keep its rows in order where it asks for that."""
    for name, claimed in entry.claims.items():
        holds = _holds(draft, name, entry)
        if holds is None or holds == claimed:
            continue
        if name == "use_reference" and claimed:
            draft.problem(
                "W3909",
                KEY,
                f"`use_reference = True` of algorithm_type {algorithm} has no effect: none of its functions reads "
                "`ref_logprob`, and no reference model is loaded",
                suggestion="remove it",
            )
            continue
        draft.problem(
            "E3908",
            KEY,
            f"algorithm_type {algorithm} declares `{name} = {claimed}`, but {_why(name, entry)}",
            rule=f"{name} = {holds}",
            suggestion=f"write `{name} = {holds}` in its class, or choose other functions in `default_config`",
        )
    if not entry.can_balance_batch and entry.schema != "dpo":  # pairs stay together without it
        _keep_order(draft, algorithm)


def _holds(draft: Draft, name: str, entry: Entry) -> bool | None:
    """Return whether a claim holds for the functions of the type; None where one of them says nothing of itself."""
    if name == "use_rollout":
        return entry.schema == "experience"
    chosen = {role: entry.args.get(role) for role in ("advantage_fn", "policy_loss_fn", "kl_loss_fn", "kl_penalty_fn")}
    registries = {"kl_loss_fn": "kl_fn", "kl_penalty_fn": "kl_fn"}
    found = {role: draft.catalogue.entry(registries.get(role, role), each) for role, each in chosen.items()}
    roles = ("advantage_fn",) if name != "use_reference" else ("policy_loss_fn", "kl_loss_fn", "kl_penalty_fn")
    if any(chosen[role] is not None and found[role] is None for role in roles):
        return None
    advantage = found["advantage_fn"]
    if name == "use_critic":
        return advantage is not None and "values" in advantage.reads
    if name == "compute_advantage_in_trainer":
        return advantage is not None and advantage.scope == "trainer"
    tensors: frozenset[str] = frozenset().union(*(each.reads for role in roles if (each := found[role]) is not None))
    return bool(tensors & {"ref_logprob", "full_ref_logprob"})


def _why(name: str, entry: Entry) -> str:
    args: dict[str, Any] = dict(entry.args)
    if name == "use_rollout":
        return f"its schema is {entry.schema}"
    if name == "use_reference":
        return f"policy_loss_fn {args.get('policy_loss_fn')} or kl_loss_fn {args.get('kl_loss_fn')} reads `ref_logprob`"
    reads = "values" if name == "use_critic" else "tensors in the trainer"
    return f"whether its advantage_fn {args.get('advantage_fn')} reads {reads} says otherwise"


def _keep_order(draft: Draft, algorithm: str) -> None:
    for key in BALANCE:
        if draft.is_own(key) and draft.get(key):
            draft.problem(
                "E1888",
                key,
                f"`{key}: true` moves rows between workers, and algorithm_type {algorithm} declares "
                "`can_balance_batch = False`",
                rule="false",
                involves=(KEY,),
                suggestion="remove it",
            )
        else:
            draft.derive(key, False, f"algorithm_type {algorithm}: can_balance_batch is False")
