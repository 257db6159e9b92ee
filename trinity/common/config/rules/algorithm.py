"""Rules of the algorithm type, its claims, functions and arguments."""

from __future__ import annotations

from typing import Any

from trinity.common.config.following import fall_back, join_older_names, note_idle
from trinity.common.config.keys import KEYS, Key, args_of, part_of, path_of
from trinity.common.config.resolution import Resolution
from trinity.common.config.rules.registered import Chosen, check_name, resolve_arguments
from trinity.common.config.rules.rollout_correction import check_correction, recompute, resolve_correction
from trinity.common.config.schema_index import default_at
from trinity.common.constants import LOSS_AGG_MODES
from trinity.utils.entry import Entry
from trinity.utils.kinds import ROLES

ALGORITHM = KEYS.algorithm
TYPE = ALGORITHM.algorithm_type
BALANCE = (KEYS.trainer.balance_batch, KEYS.trainer.trainer_config.trainer.balance_batch)

# What a forward pass before the step gives beside the old log-probabilities.
OF_DISTRIBUTIONS = frozenset({"sum_pi_squared", "entropys", "necs"})


def resolve_algorithm(resolution: Resolution) -> None:
    """Fill keys that the algorithm type decides; check names and arguments."""
    algorithm = resolution.get(TYPE)
    known = check_name(resolution, TYPE, "algorithm_type", algorithm, unknown="E1301")
    entry = resolution.catalogue.entry("algorithm_type", algorithm)
    defaults = dict(entry.args) if entry is not None else {}
    if known:
        _fill_type(resolution, algorithm, defaults)
    if entry is not None:
        check_type(resolution, algorithm, entry)
    resolve_correction(resolution, defaults.get("policy_loss_fn_args") or {})
    for name in ROLES:
        _resolve_function(resolution, name, defaults)
    _resolve_aggregation(resolution)
    _check_rollouts(resolution, algorithm)
    check_correction(resolution)
    _check_kl_penalty(resolution)
    _resolve_optimizer(resolution)


def _fill_type(resolution: Resolution, algorithm: str, defaults: dict[str, Any]) -> None:
    reason = f"default of algorithm_type {algorithm}"
    repeat = defaults.get("repeat_times", 1)
    if resolution.config.algorithm.repeat_times is None:
        resolution.derive(ALGORITHM.repeat_times, repeat, reason)
    for name in ROLES:
        if resolution.get(part_of(ALGORITHM, name)) is None and name in defaults:
            resolution.derive(part_of(ALGORITHM, name), defaults[name], reason)


def _resolve_function(resolution: Resolution, name: str, defaults: dict[str, Any]) -> None:
    key, registry = part_of(ALGORITHM, name), ROLES[name]
    chosen = resolution.get(key)
    if chosen is None:
        fallback = "default" if name == "sample_strategy" else "none"
        chosen = fallback if resolution.catalogue.knows(registry, fallback) else None
        resolution.derive(key, chosen, "not used by this algorithm")
    if chosen is None or (chosen == "none" and not resolution.catalogue.knows(registry, chosen)):
        resolution.derive(key, None, "not used by this algorithm")
        resolution.derive(args_of(key), resolution.get(args_of(key)) or {}, "not used by this algorithm")
        return
    if not check_name(resolution, key, registry, chosen):
        return
    entry = resolution.catalogue.entry(registry, chosen)
    if entry is not None and entry.reads & OF_DISTRIBUTIONS:
        recompute(resolution, key, "reads whole distributions of the weights before the step")
    of_type = defaults.get(f"{name}_args") if defaults.get(name) == chosen else None
    resolve_arguments(resolution, Chosen(key, args_of(key), registry, chosen), of_type)


def _resolve_aggregation(resolution: Resolution) -> None:
    arguments = resolution.config.algorithm.policy_loss_fn_args or {}
    mode = resolution.config.algorithm.loss_agg_mode
    inner = resolution.is_given(args_of(ALGORITHM.policy_loss_fn)["loss_agg_mode"])
    own = arguments.get("loss_agg_mode")
    if mode is None:
        source = _aggregation_source(resolution, own)
        if own in LOSS_AGG_MODES:
            resolution.derive(ALGORITHM.loss_agg_mode, own, source)
        fall_back(resolution, ALGORITHM.loss_agg_mode, reason=source)
    elif inner and own != mode:
        resolution.problem(
            "E1815",
            ALGORITHM.loss_agg_mode,
            f"`algorithm.loss_agg_mode` is {mode}, but algorithm.policy_loss_fn_args.loss_agg_mode is {own}",
            suggestion="keep one of them",
        )
    elif "loss_agg_mode" in arguments and own != mode:
        arguments = {**arguments, "loss_agg_mode": mode}
        resolution.derive(ALGORITHM.policy_loss_fn_args, arguments, ALGORITHM.loss_agg_mode)
    elif "loss_agg_mode" not in arguments and resolution.is_own(ALGORITHM.loss_agg_mode):
        _note_fixed_aggregation(resolution, mode)


def _aggregation_source(resolution: Resolution, own: str | None) -> Key[object] | str:
    """Return where the shared aggregation comes from.

    Args:
        own: that of the policy loss's arguments, if it has one.
    """
    algorithm = resolution.config.algorithm
    loss, key = algorithm.policy_loss_fn, args_of(ALGORITHM.policy_loss_fn)["loss_agg_mode"]
    entry = resolution.catalogue.entry("policy_loss_fn", loss)
    if own is None:
        fixed = None if entry is None else entry.loss_agg_mode
        return "default" if fixed is None else f"default; the policy loss {loss} has its own, {fixed}"
    if own not in LOSS_AGG_MODES:
        return f"default; {own} of {key} is for a policy loss alone"
    if resolution.is_given(key):
        return key
    of_type = resolution.catalogue.entry("algorithm_type", algorithm.algorithm_type)
    given = {} if of_type is None or of_type.args.get("policy_loss_fn") != loss else of_type.args
    if "loss_agg_mode" in (given.get("policy_loss_fn_args") or {}):
        return f"default of algorithm_type {algorithm.algorithm_type}"
    return "default of the policy loss"


def _note_fixed_aggregation(resolution: Resolution, mode: str) -> None:
    """Warn that a policy loss ignores the written aggregation."""
    loss = resolution.config.algorithm.policy_loss_fn
    entry = resolution.catalogue.entry("policy_loss_fn", loss)
    if entry is not None:
        resolution.problem(
            "W1902",
            ALGORITHM.loss_agg_mode,
            f"`algorithm.loss_agg_mode: {mode}` has no effect on the policy loss {loss}, which is aggregated in "
            "its own way; only KL and entropy terms follow it",
            involves=(ALGORITHM.policy_loss_fn,),
            suggestion="remove it",
        )


def _check_rollouts(resolution: Resolution, algorithm: str) -> None:
    repeat = resolution.config.algorithm.repeat_times or 1
    advantage = resolution.config.algorithm.advantage_fn
    of_advantage = resolution.catalogue.entry("advantage_fn", advantage)
    if of_advantage is not None and of_advantage.compares and repeat < 2:
        resolution.problem(
            "E1801",
            ALGORITHM.repeat_times,
            f"`algorithm.repeat_times` must be >= 2 for {algorithm}, got {repeat}: advantage_fn {advantage} compares "
            "the rollouts of a task with each other",
            rule=">= 2",
            suggestion="write `repeat_times: 8`",
        )
    of_type = resolution.catalogue.entry("algorithm_type", algorithm)
    needs_operators = of_type is not None and of_type.needs_operators
    if needs_operators and resolution.explores and not resolution.config.data_processor.experience_pipeline.operators:
        resolution.problem(
            "W1832",
            KEYS.data_processor.experience_pipeline.operators,
            f"`data_processor.experience_pipeline.operators` is empty: {algorithm} fine-tunes on the rollouts that "
            "operators keep, and trains on all of its own rollouts, from which it learns nothing unless the workflow "
            "returns good ones only",
            involves=(TYPE,),
            suggestion="write `operators: [{name: reward_filter, args: {threshold: 1.0}}]`",
        )
    if resolution.trains_on_dataset and resolution.explores:
        resolution.problem(
            "E1807",
            KEYS.mode,
            f"`mode: {resolution.mode}` does not fit algorithm_type {algorithm}, which trains on a dataset",
            involves=(TYPE,),
            suggestion="write `mode: train`",
        )
    if resolution.trains_on_dataset and advantage is not None and resolution.is_own(ALGORITHM.advantage_fn):
        resolution.problem(
            "E1807",
            ALGORITHM.advantage_fn,
            f"`algorithm.advantage_fn: {advantage}` does not fit algorithm_type {algorithm}, which trains on a dataset "
            "without rewards",
            involves=(TYPE,),
            suggestion="remove it",
        )
    if resolution.schema == "dpo" and resolution.is_given(ALGORITHM.repeat_times) and repeat != 2:
        resolution.problem(
            "E1807",
            ALGORITHM.repeat_times,
            f"`algorithm.repeat_times` must be 2 for {algorithm}, got {repeat}",
            rule="2",
            suggestion="remove it",
        )
    _check_pairs(resolution, algorithm)


def _check_pairs(resolution: Resolution, algorithm: str) -> None:
    """Check that pairs and losses over pairs go together, except in plugins."""
    loss, kl = resolution.config.algorithm.policy_loss_fn, resolution.config.algorithm.kl_loss_fn
    if resolution.schema == "dpo" and kl != "none" and resolution.is_own(ALGORITHM.kl_loss_fn):
        resolution.problem(
            "W1835",
            ALGORITHM.kl_loss_fn,
            f"`algorithm.kl_loss_fn: {kl}` is a second pull to the reference on top of DPO's own, whose strength is "
            "policy_loss_fn_args.beta",
            involves=(TYPE,),
            suggestion="write `kl_loss_fn: none`",
        )
    entry, is_of_pairs = resolution.catalogue.entry("policy_loss_fn", loss), resolution.schema == "dpo"
    is_built_in = resolution.catalogue.is_built_in("policy_loss_fn", loss)
    if entry is None or entry.of_pairs == is_of_pairs or not (is_built_in or entry.of_pairs):
        return
    needs = "a loss over pairs" if is_of_pairs else "algorithm_type dpo, whose rows are pairs"
    resolution.problem(
        "E1833",
        ALGORITHM.policy_loss_fn,
        f"`algorithm.policy_loss_fn: {loss}` does not fit algorithm_type {algorithm}: it needs {needs}",
        involves=(TYPE,),
        suggestion="remove it",
    )


def _check_kl_penalty(resolution: Resolution) -> None:
    """Check that a KL penalty in the reward reaches the advantage."""
    penalty, advantage = resolution.config.algorithm.kl_penalty_fn, resolution.config.algorithm.advantage_fn
    entry = resolution.catalogue.entry("advantage_fn", advantage)
    is_known = entry is not None or advantage is None
    is_of_trainer = entry is not None and entry.scope == "trainer"
    reason = (
        "which reads no rewards of tokens"
        if is_of_trainer
        else "which is computed before the trainer knows log-probabilities"
    )
    reads_rewards = is_of_trainer and entry is not None and "token_level_rewards" in entry.reads
    if penalty not in (None, "none") and is_known and not reads_rewards:
        resolution.problem(
            "E1831",
            ALGORITHM.kl_penalty_fn,
            f"`algorithm.kl_penalty_fn: {penalty}` has no effect with advantage_fn {advantage or 'none'}, {reason}",
            involves=(ALGORITHM.advantage_fn, TYPE),
            suggestion="use kl_loss_fn, or an advantage_fn of the trainer such as grpo_verl",
        )


def _resolve_optimizer(resolution: Resolution) -> None:
    optimizer, values = ALGORITHM.optimizer, resolution.config.algorithm.optimizer
    join_older_names(resolution, optimizer)
    if values.lr > 0.1:
        resolution.problem(
            "W1303",
            optimizer.lr,
            f"`{optimizer.lr}` is {values.lr:g}, which is unusually high",
            suggestion="typical: 1e-6 to 1e-3",
        )
    note_idle(resolution, optimizer, is_written=lambda key: resolution.get(key) != default_at(path_of(key))[1])


def check_type(resolution: Resolution, algorithm: str, entry: Entry) -> None:
    """Check the claims of an algorithm type; keep its rows in order if asked."""
    for name, claimed in entry.claims.items():
        holds = _holds(resolution, name, entry)
        if holds is None or holds == claimed:
            continue
        if name == "use_reference" and claimed:
            resolution.problem(
                "W3909",
                TYPE,
                f"`use_reference = True` of algorithm_type {algorithm} has no effect: none of its functions reads "
                "`ref_logprob`, and no reference model is loaded",
                suggestion="remove it",
            )
            continue
        resolution.problem(
            "E3908",
            TYPE,
            f"algorithm_type {algorithm} declares `{name} = {claimed}`, but {_why(name, entry)}",
            rule=f"{name} = {holds}",
            suggestion=f"write `{name} = {holds}` in its class, or choose other functions in `default_config`",
        )
    if not entry.can_balance_batch and entry.schema != "dpo":  # pairs stay together without it
        _keep_order(resolution, algorithm)


def _holds(resolution: Resolution, name: str, entry: Entry) -> bool | None:
    """Return whether a claim holds for the functions of the type.

    Returns None if one of them declares nothing.
    """
    if name == "use_rollout":
        return entry.schema == "experience"
    chosen = {role: entry.args.get(role) for role in ("advantage_fn", "policy_loss_fn", "kl_loss_fn", "kl_penalty_fn")}
    found = {role: resolution.catalogue.entry(ROLES[role], each) for role, each in chosen.items()}
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
        return (
            f"policy_loss_fn {args.get('policy_loss_fn')} or kl_loss_fn {args.get('kl_loss_fn')} reads `ref_logprob`, "
            f"or kl_penalty_fn {args.get('kl_penalty_fn')} does"
        )
    reads = "read values" if name == "use_critic" else "run in the trainer"
    return f"its advantage_fn {args.get('advantage_fn')} does {'not ' * entry.claims[name]}{reads}"


def _keep_order(resolution: Resolution, algorithm: str) -> None:
    for key in BALANCE:
        if resolution.is_own(key) and resolution.get(key):
            resolution.problem(
                "E1888",
                key,
                f"`{key}: true` moves rows between workers, and algorithm_type {algorithm} declares "
                "`can_balance_batch = False`",
                rule="false",
                involves=(TYPE,),
                suggestion="remove it",
            )
        else:
            resolution.derive(key, False, f"algorithm_type {algorithm}: can_balance_batch is False")
