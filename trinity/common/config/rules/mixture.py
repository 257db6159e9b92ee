"""Batches of rollouts and demonstrations, and what sample strategies go with."""

from __future__ import annotations

from typing import Any

from trinity.common.config.draft import Draft
from trinity.common.config.mixture import DERIVED_ARGUMENTS, batch_size_for, num_expert_rows
from trinity.common.config.rules.ranks import is_world_known, num_workers

STRATEGY = "algorithm.sample_strategy"
LOSS = "algorithm.policy_loss_fn"
SIZE = "buffer.train_batch_size"
ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"


def expert_ratio(draft: Draft) -> float:
    """Return the share of expert rows in a training batch; 0 where the strategy mixes none, or the ratio is wrong."""
    if not is_built_in(draft, "mix"):
        return 0.0
    arguments: dict[str, Any] = draft.get(f"{STRATEGY}_args") or {}
    ratio: Any = arguments.get("expert_data_ratio")
    is_number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    return float(ratio) if is_number and 0 <= ratio < 1 else 0.0


def num_experts(draft: Draft) -> int:
    """Return the expert rows of a training batch."""
    try:
        return num_expert_rows(expert_ratio(draft), draft.get(SIZE))
    except ValueError:
        return 0


def train_batch_size(draft: Draft, num_rollouts: int) -> int:
    """Return the size of a training batch with that many rollouts."""
    return batch_size_for(num_rollouts, expert_ratio(draft))


def is_built_in(draft: Draft, name: str, registry: str = "sample_strategy") -> bool:
    """Return whether the algorithm uses the built-in component of that name, not a plugin's."""
    return draft.get(f"algorithm.{registry}") == name and name not in draft.catalogue.plugins.get(registry, ())


def check_sampling(draft: Draft) -> None:
    """Check the arguments of the built-in strategies, and that strategy, loss and algorithm fit together."""
    if is_built_in(draft, "warmup"):
        draft.problem(
            "W1301", STRATEGY, f"`{STRATEGY}: warmup` is deprecated", suggestion=f"write `{STRATEGY}: default`"
        )
    _check_arguments(draft)
    _check_parts(draft)


def _check_arguments(draft: Draft) -> None:
    arguments = draft.get(f"{STRATEGY}_args") or {}
    if is_built_in(draft, "mix"):
        ratio: Any = arguments.get("expert_data_ratio")
        try:
            num_expert_rows(ratio, draft.get(SIZE))
        except (TypeError, ValueError) as error:
            text = str(error) if isinstance(error, ValueError) else f"expert_data_ratio must be a number, got {ratio!r}"
            draft.problem(
                "E1844",
                f"{STRATEGY}_args.expert_data_ratio",
                f"`{STRATEGY}_args`: {text}",
                rule="0 <= ratio < 1, and at least one row of a batch is a rollout",
                involves=(SIZE, STRATEGY),
                suggestion="write `expert_data_ratio: 0.5`; to imitate only, use `algorithm_type: sft`",
            )
    if is_built_in(draft, "staleness_control"):
        limit = arguments.get("max_staleness")
        is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if limit is not None and not (is_number and limit >= 0):
            draft.problem(
                "E1844",
                f"{STRATEGY}_args.max_staleness",
                f"`{STRATEGY}_args.max_staleness` is an age in training steps, got {limit!r}",
                rule="a number >= 0, or null for any age",
                suggestion="write `max_staleness: 1`",
            )


def _check_parts(draft: Draft) -> None:
    algorithm, strategy = draft.get("algorithm.algorithm_type"), draft.get(STRATEGY)
    is_known = draft.catalogue.is_built_in("sample_strategy", strategy)
    if draft.trains_on_dataset and strategy in ("mix", "staleness_control"):
        _misfit(
            draft,
            STRATEGY,
            f"`{STRATEGY}: {strategy}` chooses among rollouts, and {algorithm} trains on a dataset",
            "remove it",
        )
        return
    for key, registry in ((LOSS, "policy_loss_fn"), ("algorithm.entropy_loss_fn", "entropy_loss_fn")):
        entry = draft.catalogue.entry(registry, draft.get(key))
        if entry is not None and "expert_mask" in entry.reads and is_known and strategy != "mix":
            _misfit(
                draft,
                key,
                f"`{key}: {draft.get(key)}` treats an expert's rows apart, and {STRATEGY} {strategy} has none",
                f"write `{STRATEGY.rpartition('.')[2]}: mix`",
            )
    if not is_built_in(draft, "mix"):
        return
    loss = draft.catalogue.entry("policy_loss_fn", draft.get(LOSS))
    if not draft.catalogue.is_built_in("policy_loss_fn", draft.get(LOSS)):
        loss = None  # of a plugin only its author knows what it does with rows of an expert
    if loss is not None and "advantages" in loss.needs and "expert_mask" not in loss.needs:
        _misfit(
            draft,
            STRATEGY,
            f"`{STRATEGY}: mix` has rows of an expert, which have no advantage, and policy_loss_fn {draft.get(LOSS)} "
            "would learn nothing from them",
            "write `policy_loss_fn: mix`",
        )
    advantage = draft.catalogue.entry("advantage_fn", draft.get("algorithm.advantage_fn"))
    if advantage is not None and "values" in advantage.reads:
        _misfit(
            draft,
            "algorithm.advantage_fn",
            f"`algorithm.advantage_fn: {draft.get('algorithm.advantage_fn')}` needs a critic, which cannot learn from "
            f"rows of an expert: they have no reward ({STRATEGY} mix)",
            "write `advantage_fn: grpo`",
        )


def _misfit(draft: Draft, key: str, message: str, suggestion: str) -> None:
    draft.problem("E1842", key, message, involves=(STRATEGY, "algorithm.algorithm_type"), suggestion=suggestion)


def resolve_mixed_loss(draft: Draft) -> None:
    """Fill the sizes that the mixed losses know as arguments; one that was written must be the true one."""
    loss = draft.catalogue.entry("policy_loss_fn", draft.get(LOSS))
    is_mixed = loss is not None and loss.args.keys() >= set(DERIVED_ARGUMENTS)
    if not is_mixed or draft.mode not in ("both", "train") or not is_world_known(draft):
        return
    size, num_expert, key = draft.get(SIZE), num_experts(draft), f"{LOSS}_args"
    arguments: dict[str, Any] = dict(draft.get(key) or {})
    micro = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    true: tuple[tuple[Any, str], ...] = (
        (draft.get(f"{ACTOR}.use_dynamic_bsz"), "trainer.use_dynamic_bsz"),
        (draft.get(f"{ACTOR}.ppo_mini_batch_size"), SIZE),
        (draft.get(micro), micro),
        (num_workers(draft), "the number of trainer workers"),
        (size - num_expert, f"{SIZE} ({size}) less the {num_expert} expert rows"),
        (num_expert, f"expert_data_ratio of {SIZE} ({size}), rounded up"),
    )
    for name, (value, source) in zip(DERIVED_ARGUMENTS, true, strict=True):
        same = arguments[name] == value and isinstance(arguments[name], bool) == isinstance(value, bool)
        if draft.is_given(f"{key}.{name}") and not same:
            draft.problem(
                "E1841",
                f"{key}.{name}",
                f"`{key}.{name}` is {arguments[name]}, but it follows from {source}: {value}",
                rule=f"{value}",
                involves=(SIZE, STRATEGY, f"{STRATEGY}_args", "algorithm.repeat_times", "trainer", "cluster"),
                suggestion="remove it",
            )
        arguments[name] = value
    draft.derive(key, arguments, f"sizes from {SIZE}, {STRATEGY}_args and section trainer")
