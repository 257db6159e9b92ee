"""The conversions of the table by their names, in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trinity.common.config.dialects import algorithms, releases, runs, tasks
from trinity.common.config.dialects.translation import Translation

CONVERSIONS: Mapping[str, Callable[[Translation], None]] = {
    "names": runs.names,
    "model": runs.model,
    "trust": runs.trust,
    "adapter": runs.adapter,
    "tasks": tasks.tasks,
    "reward_model": tasks.reward_model,
    "order": tasks.order,
    "images": tasks.images,
    "lengths": runs.lengths,
    "truncation": tasks.truncation,
    "advantage": algorithms.advantage,
    "policy_loss": algorithms.policy_loss,
    "entropy": algorithms.entropy,
    "kl_loss": algorithms.kl_loss,
    "kl_reward": algorithms.kl_reward,
    "correction": algorithms.correction,
    "old_logprobs": algorithms.old_logprobs,
    "warmup": algorithms.warmup,
    "schedule": algorithms.schedule,
    "sampling": runs.sampling,
    "batch": runs.batch,
    "mini_batch": runs.mini_batch,
    "micro_batches": runs.micro_batches,
    "token_budgets": runs.token_budgets,
    "steps": runs.steps,
    "engine": runs.engine,
    "engine_kwargs": runs.engine_kwargs,
    "devices": runs.devices,
    "compat": releases.compat,
    "intervals": runs.intervals,
    "logger": runs.logger,
}
