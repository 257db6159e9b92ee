"""Advantages computed in the trainer from the rewards of a whole batch.

Dimension key: B = rows (experiences), T = longest response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from trinity.algorithm import ADVANTAGE_FN, AdvantageFn, KLFn
from trinity.algorithm.building import build
from trinity.algorithm.results import advantages_and_returns
from trinity.common.config import Config
from trinity.common.config.resolved import repeat_times
from trinity.common.errors import ConfigError, DataError
from trinity.trainer.batch import TrainBatch, rows_of_policy
from trinity.trainer.metrics import spread_metrics
from trinity.utils.declaration import inputs_of

DIVERGENCE = "reward_divergence"
"""Column of the divergence over whole distributions by which rewards are lowered."""


class BatchAdvantage:
    """Computes token rewards, their KL penalty, and advantages of a batch.

    Args:
        function: called with the tensors that its parameters name; see `TokenAdvantage`.
        kl: divergence from the reference that lowers the rewards.
        group_size: rollouts of a task, to count incomplete groups.
    """

    def __init__(self, function: AdvantageFn, kl: KLFn, *, group_size: int) -> None:
        self.function = function
        self.kl = kl
        self.group_size = group_size
        inputs = inputs_of(type(function), kind="advantage_fn")
        self.names, self.required, self.passed = inputs.reads, inputs.required, inputs.passed

    @property
    def with_kl(self) -> bool:
        """Whether a KL penalty with a nonzero coefficient lowers the rewards."""
        return self.kl.is_in_force

    @property
    def with_full_kl(self) -> bool:
        """Whether that penalty compares whole distributions."""
        return self.with_kl and self.kl.of_distributions

    @property
    def reads_ref_logprob(self) -> bool:
        """Whether it reads the reference's log-probabilities of the tokens."""
        return "ref_logprob" in self.names or (self.with_kl and not self.with_full_kl)

    def __call__(self, batch: TrainBatch, groups: Sequence[str]) -> tuple[TrainBatch, dict[str, float]]:
        """Return the batch with `advantages` and `returns` [B, T], and metrics.

        An adaptive KL coefficient is updated. Expert rows, which have no reward, are left out and get 0 for both.

        Args:
            batch: rows with rewards; where there is a penalty, with `old_logprob` and `ref_logprob`, or with the
                divergence of whole distributions.
            groups: name of the task of each row.

        Raises:
            DataError: a row has no reward (E4601), or the function needs a tensor that the rows do not hold (E4604).
        """
        if "expert_mask" not in batch.values:
            return self._of_rows(batch, groups)
        rows = rows_of_policy(batch)
        made = {name: torch.zeros(batch.action_mask.shape) for name in ("advantages", "returns")}
        if not rows:
            return batch.with_columns(**made), {}
        part, metrics = self._of_rows(batch.select(rows), [groups[row] for row in rows])
        for name, column in made.items():
            column[rows, : part.action_mask.shape[1]] = part.columns[name]
        return batch.with_columns(**made), metrics

    def _of_rows(self, batch: TrainBatch, groups: Sequence[str]) -> tuple[TrainBatch, dict[str, float]]:
        mask = reward_mask(batch.action_mask, batch.lengths - batch.prompt_lengths)
        rewards = token_rewards(batch, mask)
        metrics: dict[str, float] = {}
        if self.with_kl:
            rewards, metrics = self._penalised(rewards, batch)
        # With a critic, rows are no baseline for each other: those that are not trained on stay out of the whitening.
        counted = batch.action_mask if "values" in batch.columns else mask
        known: dict[str, Any] = batch.columns | batch.values | {"action_mask": counted, "uid": list(groups)}
        known |= {"token_level_rewards": rewards, "response_mask": counted}
        missing = sorted(self.required - known.keys())
        if missing:
            raise DataError(
                f"the advantage function {type(self.function).__name__} needs {', '.join(missing)}, which the "
                "experiences do not hold; choose another algorithm.advantage_fn, or a workflow that sets them",
                code="E4604",
            )
        given = {name: known[name] for name in self.passed & known.keys()}
        made = _call_of(self.function)(**given)
        advantages, returns, values = advantages_and_returns(self.function, made, batch.action_mask.shape)
        if "uid" in self.names:
            sizes = Counter(groups)
            metrics["critic/incomplete_groups"] = float(sum(size < self.group_size for size in sizes.values()))
        metrics |= {f"critic/{name}": float(value) for name, value in values.items()}
        trained = batch.action_mask
        return batch.with_columns(advantages=advantages * trained, returns=returns * trained), metrics

    def _penalised(self, rewards: Tensor, batch: TrainBatch) -> tuple[Tensor, dict[str, float]]:
        reads = {DIVERGENCE} if self.kl.of_distributions else {"old_logprob", "ref_logprob"}
        missing = sorted(reads - batch.columns.keys())
        if missing:
            raise DataError(
                f"algorithm.kl_penalty_fn needs {', '.join(missing)}, which the experiences do not hold; set "
                "algorithm.bypass_old_logprobs: false, or kl_penalty_fn: none",
                code="E4604",
            )
        if self.kl.of_distributions:
            lowered, values = self.kl.lowered(rewards, batch.columns[DIVERGENCE], batch.action_mask)
        else:
            lowered, values = self.kl.apply_kl_penalty_to_reward(
                rewards,
                old_logprob=batch.columns["old_logprob"],
                ref_logprob=batch.columns["ref_logprob"],
                action_mask=batch.action_mask,
            )
        metrics = {"actor/reward_kl_penalty": values["kl"], "actor/reward_kl_penalty_coeff": values["kl_coef"]}
        # A row without counted tokens holds its reward outside the mask, where no penalty applies.
        result = torch.where(batch.action_mask, lowered, rewards)
        return result, metrics | spread_metrics("critic/rewards", result.sum(-1))


def _call_of(function: AdvantageFn) -> Any:
    return function.__call__


def reward_mask(action_mask: Bool[Tensor, "B T"], lengths: Tensor) -> Bool[Tensor, "B T"]:
    """Return `action_mask` plus the last token of rows that it leaves empty.

    Such a row is not trained on, but its reward counts in the baseline of its task, as in the pipeline. `lengths` [B]
    are the tokens of each response.
    """
    last = torch.zeros_like(action_mask)
    last[torch.arange(len(last)), lengths.clamp(min=1) - 1] = True
    return action_mask | (last & ~action_mask.any(-1, keepdim=True))


def token_rewards(batch: TrainBatch, mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return the workflow's token rewards, or else those of whole rows.

    The reward of a whole row lies on its last counted token. The token reward of a token that does not count, because
    the policy did not produce it or because it was rejected, moves to the counted token before it, or else to the first
    one, so that the sum over the response stays the same.

    Raises:
        DataError: a row has no reward (E4601).
    """
    if "token_level_reward" in batch.columns:
        places = torch.arange(mask.shape[1]).expand_as(mask)
        before = places.masked_fill(~mask, -1).cummax(-1).values
        target = torch.where(before < 0, mask.int().argmax(-1, keepdim=True), before)
        rewards = batch.columns["token_level_reward"]
        return torch.zeros_like(rewards).scatter_add(1, target, rewards)
    missing = torch.nonzero(~torch.isfinite(batch.rewards)).flatten().tolist()
    if missing:
        raise DataError(
            f"experience {batch.uids[missing[0]]}: the advantage needs a reward, got {batch.rewards[missing[0]]:g}; "
            f"{len(missing)} of {len(batch)} experiences have none",
            code="E4601",
        )
    places = torch.arange(mask.shape[1]).expand_as(mask)
    last = places.masked_fill(~mask, -1).max(-1, keepdim=True).values
    return torch.zeros(mask.shape).scatter(1, last, batch.rewards.unsqueeze(-1))


def batch_advantage_of(config: Config) -> BatchAdvantage | None:
    """Return the trainer's advantage computation, or None.

    None: the pipeline computes the advantages, or the algorithm has none.

    Raises:
        ConfigError: arguments that a function does not take (E1302), or a penalty that nothing would read (E1831).
    """
    algorithm = config.algorithm
    penalty = algorithm.kl_penalty_fn or "none"
    function = ADVANTAGE_FN.get(algorithm.advantage_fn)
    if function is None or not function.compute_in_trainer():
        if penalty != "none":
            raise ConfigError(
                f"algorithm.kl_penalty_fn {penalty} has no effect: the advantage {algorithm.advantage_fn} is computed "
                "before the trainer knows log-probabilities; use kl_loss_fn",
                code="E1831",
            )
        return None
    made = build(algorithm, "advantage_fn")
    kl = build(algorithm, "kl_penalty_fn", default="none")
    return BatchAdvantage(made, kl, group_size=repeat_times(config))
