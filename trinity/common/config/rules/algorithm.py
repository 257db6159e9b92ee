"""Algorithm type, its functions and their arguments."""

from __future__ import annotations

from typing import Any, get_args

from trinity.common.config.algorithm import LossAggMode
from trinity.common.config.available import LATER_NAMES
from trinity.common.config.draft import Draft
from trinity.common.config.nearest import nearest
from trinity.common.config.rules.algorithm_type import check_type
from trinity.common.config.rules.arguments import merge_arguments, resolve_arguments
from trinity.common.config.rules.rollout_correction import check_correction, recompute, resolve_correction
from trinity.common.config.schema_index import default_at

FUNCTIONS = {
    "sample_strategy": "sample_strategy",
    "advantage_fn": "advantage_fn",
    "kl_penalty_fn": "kl_fn",
    "policy_loss_fn": "policy_loss_fn",
    "kl_loss_fn": "kl_fn",
    "entropy_loss_fn": "entropy_loss_fn",
}
# What a forward pass before the step gives beside the old log-probabilities.
OF_DISTRIBUTIONS = frozenset({"sum_pi_squared", "entropys", "necs"})
SHARED_AGG_MODES = get_args(LossAggMode)


def resolve_algorithm(draft: Draft) -> None:
    """Fill what the algorithm type decides, and check names and arguments."""
    algorithm = draft.get("algorithm.algorithm_type")
    known = check_name(draft, "algorithm.algorithm_type", "algorithm_type", algorithm, unknown="E1301")
    entry = draft.catalogue.entry("algorithm_type", algorithm)
    defaults = dict(entry.args) if entry is not None else {}
    if known:
        _fill_type(draft, algorithm, defaults)
    if entry is not None:
        check_type(draft, algorithm, entry)
    resolve_correction(draft, defaults.get("policy_loss_fn_args") or {})
    for name, registry in FUNCTIONS.items():
        _resolve_function(draft, name, registry, defaults)
    _resolve_aggregation(draft)
    _check_rollouts(draft, algorithm)
    check_correction(draft)
    _check_kl_penalty(draft)
    _resolve_optimizer(draft)


def check_name(draft: Draft, key: str, registry: str, name: str | None, *, unknown: str = "E1701") -> bool:
    """Return whether a name exists and can be used now; otherwise note why not."""
    catalogue = draft.catalogue
    available = list(catalogue.names(registry))
    if name is None or name in available:
        return True
    later = LATER_NAMES.get(registry, ())
    if name in later:
        draft.problem(
            "E1900",
            key,
            f"`{key}: {name}` is not available yet in this version",
            suggestion=f"available: {', '.join(available)}",
        )
        return False
    names = [*available, *later]
    if catalogue.has_unknown_plugins:
        draft.problem("W1701", key, f"`{key}: {name}` is not known here; a plugin may register it when the run starts")
        return False
    near = nearest(name, names)
    own = "a name of your own needs --plugin-dir (or `plugin_dirs`) with the folder of the file that registers it"
    hint = f"did you mean `{near}`? {own}" if near else f"known: {', '.join(available)}; {own}"
    draft.problem(
        unknown,
        key,
        f"unknown {registry} `{name}` in `{key}`; known: {', '.join(available)}",
        suggestion=hint,
        rule=f"a known {registry}",
    )
    return False


def _fill_type(draft: Draft, algorithm: str, defaults: dict[str, Any]) -> None:
    reason = f"default of algorithm_type {algorithm}"
    repeat = defaults.get("repeat_times", 1)
    if draft.get("algorithm.repeat_times") is None:
        draft.derive("algorithm.repeat_times", repeat, reason)
    for name in FUNCTIONS:
        if draft.get(f"algorithm.{name}") is None and name in defaults:
            draft.derive(f"algorithm.{name}", defaults[name], reason)


def _resolve_function(draft: Draft, name: str, registry: str, defaults: dict[str, Any]) -> None:
    key = f"algorithm.{name}"
    chosen = draft.get(key)
    if chosen is None:
        fallback = "default" if name == "sample_strategy" else "none"
        chosen = fallback if draft.catalogue.knows(registry, fallback) else None
        draft.derive(key, chosen, "not used by this algorithm")
    if chosen is None or (chosen == "none" and not draft.catalogue.knows(registry, chosen)):
        draft.derive(key, None, "not used by this algorithm")
        draft.derive(f"{key}_args", draft.get(f"{key}_args") or {}, "not used by this algorithm")
        return
    if not check_name(draft, key, registry, chosen):
        return
    entry = draft.catalogue.entry(registry, chosen)
    if entry is None:
        merge_arguments(draft, f"{key}_args", chosen, {})
        return
    if entry.reads & OF_DISTRIBUTIONS:
        recompute(draft, key, "reads whole distributions of the weights before the step")
    of_type = dict(defaults.get(f"{name}_args") or {}) if defaults.get(name) == chosen else {}
    resolve_arguments(draft, key, registry, chosen, entry=entry, of_type=of_type)


def _resolve_aggregation(draft: Draft) -> None:
    arguments = draft.get("algorithm.policy_loss_fn_args") or {}
    mode = draft.get("algorithm.loss_agg_mode")
    inner = draft.is_given("algorithm.policy_loss_fn_args.loss_agg_mode")
    own = arguments.get("loss_agg_mode")
    if mode is None:
        shared = own if own in SHARED_AGG_MODES else "token-mean"
        draft.derive("algorithm.loss_agg_mode", shared, "default of the policy loss")
    elif inner and own != mode:
        draft.problem(
            "E1815",
            "algorithm.loss_agg_mode",
            f"`algorithm.loss_agg_mode` is {mode}, but algorithm.policy_loss_fn_args.loss_agg_mode is {own}",
            suggestion="keep one of them",
        )
    elif "loss_agg_mode" in arguments and own != mode:
        draft.derive("algorithm.policy_loss_fn_args", {**arguments, "loss_agg_mode": mode}, "algorithm.loss_agg_mode")
    elif "loss_agg_mode" not in arguments and draft.is_own("algorithm.loss_agg_mode"):
        _note_fixed_aggregation(draft, mode)


def _note_fixed_aggregation(draft: Draft, mode: str) -> None:
    """Warn that a policy loss aggregates in its own way, whatever was written."""
    loss = draft.get("algorithm.policy_loss_fn")
    entry = draft.catalogue.entry("policy_loss_fn", loss)
    if entry is not None:
        draft.problem(
            "W1902",
            "algorithm.loss_agg_mode",
            f"`algorithm.loss_agg_mode: {mode}` has no effect on the policy loss {loss}, which is aggregated in "
            "its own way; only KL and entropy terms follow it",
            involves=("algorithm.policy_loss_fn",),
            suggestion="remove it",
        )


def _check_rollouts(draft: Draft, algorithm: str) -> None:
    repeat = draft.get("algorithm.repeat_times") or 1
    advantage = draft.get("algorithm.advantage_fn")
    of_advantage = draft.catalogue.entry("advantage_fn", advantage)
    if of_advantage is not None and of_advantage.compares and repeat < 2:
        draft.problem(
            "E1801",
            "algorithm.repeat_times",
            f"`algorithm.repeat_times` must be >= 2 for {algorithm}, got {repeat}: advantage_fn {advantage} compares "
            "the rollouts of a task with each other",
            rule=">= 2",
            suggestion="write `repeat_times: 8`",
        )
    of_type = draft.catalogue.entry("algorithm_type", algorithm)
    needs_operators = of_type is not None and of_type.needs_operators
    if needs_operators and draft.explores and not draft.get("data_processor.experience_pipeline.operators"):
        draft.problem(
            "E1832",
            "data_processor.experience_pipeline.operators",
            f"`data_processor.experience_pipeline.operators` is empty: {algorithm} fine-tunes on the rollouts that "
            "operators keep, and from all of its own rollouts it cannot learn",
            involves=("algorithm.algorithm_type",),
            suggestion="write `operators: [{name: reward_filter, args: {threshold: 1.0}}]`",
        )
    if draft.trains_on_dataset and draft.explores:
        draft.problem(
            "E1807",
            "mode",
            f"`mode: {draft.mode}` does not fit algorithm_type {algorithm}, which trains on a dataset",
            involves=("algorithm.algorithm_type",),
            suggestion="write `mode: train`",
        )
    if draft.trains_on_dataset and advantage is not None and draft.is_own("algorithm.advantage_fn"):
        draft.problem(
            "E1807",
            "algorithm.advantage_fn",
            f"`algorithm.advantage_fn: {advantage}` does not fit algorithm_type {algorithm}, which trains on a dataset "
            "without rewards",
            involves=("algorithm.algorithm_type",),
            suggestion="remove it",
        )
    if draft.schema == "dpo" and draft.is_given("algorithm.repeat_times") and repeat != 2:
        draft.problem(
            "E1807",
            "algorithm.repeat_times",
            f"`algorithm.repeat_times` must be 2 for {algorithm}, got {repeat}",
            rule="2",
            suggestion="remove it",
        )
    _check_pairs(draft, algorithm)


def _check_pairs(draft: Draft, algorithm: str) -> None:
    """Check that a loss over pairs gets pairs, and that pairs get one; of a plugin only its author knows."""
    loss, kl = draft.get("algorithm.policy_loss_fn"), draft.get("algorithm.kl_loss_fn")
    if draft.schema == "dpo" and kl != "none" and draft.is_own("algorithm.kl_loss_fn"):
        draft.problem(
            "W1835",
            "algorithm.kl_loss_fn",
            f"`algorithm.kl_loss_fn: {kl}` is a second pull to the reference on top of DPO's own, whose strength is "
            "policy_loss_fn_args.beta",
            involves=("algorithm.algorithm_type",),
            suggestion="write `kl_loss_fn: none`",
        )
    entry, is_of_pairs = draft.catalogue.entry("policy_loss_fn", loss), draft.schema == "dpo"
    is_built_in = draft.catalogue.is_built_in("policy_loss_fn", loss)
    if entry is None or entry.of_pairs == is_of_pairs or not (is_built_in or entry.of_pairs):
        return
    needs = "a loss over pairs" if is_of_pairs else "algorithm_type dpo, whose rows are pairs"
    draft.problem(
        "E1833",
        "algorithm.policy_loss_fn",
        f"`algorithm.policy_loss_fn: {loss}` does not fit algorithm_type {algorithm}: it needs {needs}",
        involves=("algorithm.algorithm_type",),
        suggestion="remove it",
    )


def _check_kl_penalty(draft: Draft) -> None:
    """Check that a KL penalty in the reward reaches an advantage that is computed from it."""
    if draft.get("algorithm.kl_penalty_fn") == "full":
        draft.problem(
            "E1854",
            "algorithm.kl_penalty_fn",
            "`algorithm.kl_penalty_fn: full` compares whole distributions, and a reward is lowered by the "
            "log-probability of its token",
            suggestion="write `kl_loss_fn: full`, or another kl_penalty_fn such as k3",
        )
    penalty, advantage = draft.get("algorithm.kl_penalty_fn"), draft.get("algorithm.advantage_fn")
    entry = draft.catalogue.entry("advantage_fn", advantage)
    is_known = entry is not None or advantage is None
    is_of_trainer = entry is not None and entry.scope == "trainer"
    reason = (
        "which reads no rewards of tokens"
        if is_of_trainer
        else "which is computed before the trainer knows log-probabilities"
    )
    reads_rewards = is_of_trainer and entry is not None and "token_level_rewards" in entry.reads
    if penalty not in (None, "none") and is_known and not reads_rewards:
        draft.problem(
            "E1831",
            "algorithm.kl_penalty_fn",
            f"`algorithm.kl_penalty_fn: {penalty}` has no effect with advantage_fn {advantage or 'none'}, {reason}",
            involves=("algorithm.advantage_fn", "algorithm.algorithm_type"),
            suggestion="use kl_loss_fn, or an advantage_fn of the trainer such as grpo_verl",
        )


def _resolve_optimizer(draft: Draft) -> None:
    section = "algorithm.optimizer"
    style = draft.get(f"{section}.warmup_style")
    if style is not None:
        if draft.is_given(f"{section}.lr_scheduler_type") and draft.get(f"{section}.lr_scheduler_type") != style:
            draft.problem(
                "E1815",
                f"{section}.warmup_style",
                f"`{section}.warmup_style` is {style}, but "
                f"lr_scheduler_type is {draft.get(f'{section}.lr_scheduler_type')}",
                suggestion="keep lr_scheduler_type",
            )
        else:
            draft.derive(f"{section}.lr_scheduler_type", style, "warmup_style, its older name")
    rate = draft.get(f"{section}.lr")
    if rate > 0.1:
        draft.problem(
            "W1303",
            f"{section}.lr",
            f"`{section}.lr` is {rate:g}, which is unusually high",
            suggestion="typical: 1e-6 to 1e-3",
        )
    if default_at(("algorithm", "optimizer", "min_lr_ratio"))[1] != draft.get(f"{section}.min_lr_ratio") and (
        draft.get(f"{section}.lr_scheduler_type") == "constant"
    ):
        draft.problem(
            "W1902",
            f"{section}.min_lr_ratio",
            f"`{section}.min_lr_ratio` has no effect with a constant schedule",
            suggestion="write `lr_scheduler_type: cosine`",
        )
