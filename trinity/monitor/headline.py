"""The few metrics that a person follows.

They are loss, reward, held-out accuracy and tokens per second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

LOSS_NAMES = ("actor/sft_loss", "actor/final_loss", "actor/loss", "actor/pg_loss")
REWARD_NAMES = ("rollout/accuracy/mean", "rollout/reward/mean", "experience_pipeline/group_advantages/reward_mean/mean")
NUM_TOKENS = "perf/total_num_tokens"
STEP_TIME_NAMES = ("perf/time_per_step", "time/train_step", "time/step")
ROLLOUT_SPEED = "perf/rollout_tokens_per_s"
STALENESS = "sample/staleness/mean"
MISMATCH = "training/rollout_logprobs_diff_mean"
# What a side tells the listener of its metrics alone: its planned steps, and that a checkpoint is there.
TOTAL_STEPS = "total_steps"
CHECKPOINT = "checkpoint"
_EVAL = re.compile(r"eval/(?P<taskset>.+)/(?P<metric>[^/]+)/mean@\d+")
_SCORE = re.compile(r"(?:eval|bench)/(?P<taskset>.+)/(?P<metric>[^/]+)/mean@\d+")
_PREFERRED = ("accuracy", "reward")

Metrics = Mapping[str, Any]


def _first(data: Metrics, names: tuple[str, ...]) -> float | None:
    for name in names:
        value = data.get(name)
        if value is not None and math.isfinite(value):
            return float(value)
    return None


def loss(data: Metrics) -> float | None:
    """Return the training loss among `data`, if it is there."""
    return _first(data, LOSS_NAMES)


def reward(data: Metrics) -> float | None:
    """Return the mean reward of a rollout, if it was recorded.

    Accuracy takes precedence if the workflow reports one.
    """
    return _first(data, REWARD_NAMES)


def accuracy(data: Metrics) -> float | None:
    """Return the mean accuracy of the first evaluation in `data`.

    Without an accuracy it is the mean reward.
    """
    found = [(match["metric"], data[key]) for key in data if (match := _EVAL.fullmatch(key))]
    for metric in _PREFERRED:
        for name, value in found:
            if name == metric and value is not None:
                return float(value)
    return None


def scores(data: Metrics) -> dict[str, float]:
    """Return the means of an evaluation, or of mode bench, by name."""
    found = {name: data[name] for name in data if name.startswith(("eval/", "bench/")) and _SCORE.fullmatch(name)}
    return {name: float(value) for name, value in found.items() if value is not None}


def main_score(names: Iterable[str]) -> str | None:
    """Return the one of `scores` that a person follows: accuracy, or reward.

    Of several tasksets it is that of the first; None for no names.
    """
    by_metric: dict[str, str] = {}
    for name in names:
        by_metric.setdefault(name.split("/")[-2], name)
    return next((by_metric[metric] for metric in (*_PREFERRED, *by_metric) if metric in by_metric), None)


def num_tokens(data: Metrics) -> float | None:
    """Return the number of tokens that a training step used, if recorded."""
    return _first(data, (NUM_TOKENS,))


def rollout_tokens_per_second(data: Metrics) -> float | None:
    """Return the tokens per second that an explore step sampled."""
    return _first(data, (ROLLOUT_SPEED,))


def staleness(data: Metrics) -> float | None:
    """Return the training steps between sampling and training weights.

    It is the mean over the experiences of a training step; 0: the same weights.
    """
    return _first(data, (STALENESS,))


def mismatch(data: Metrics) -> float | None:
    """Return the mean difference of log-probabilities, engine to trainer.

    It is in nats per token, of tokens that the same weights sampled; None where no weights were the same.
    """
    return _first(data, (MISMATCH,))


def text(data: Metrics) -> str:
    """Return the headline metrics of `data` as text.

    The text is empty if there are none.
    """
    parts = [
        ("loss {:.4f}", loss(data)),
        ("reward {:.3f}", reward(data)),
        ("eval {:.3f}", accuracy(data)),
        ("{:.0f} tok/s", tokens_per_second(data)),
    ]
    return "  ".join(words.format(value) for words, value in parts if value is not None)


def tokens_per_second(data: Metrics) -> float | None:
    """Return the tokens per second of a training step.

    None unless both its tokens and its duration were recorded.
    """
    tokens, seconds = num_tokens(data), _first(data, STEP_TIME_NAMES)
    if tokens is None or not seconds:
        return None
    return tokens / seconds
