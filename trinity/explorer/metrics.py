"""Metrics of a batch of rollouts: `rollout/`, lengths, and failures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from trinity.common.constants import RETOKENISED
from trinity.common.experience import Experience
from trinity.explorer.outcome import (
    DROPPED_CALLS,
    FOREIGN_TURNS,
    BatchResult,
    Failed,
    OverMemory,
    Rejected,
    RewardFailed,
    RewardTimedOut,
    TimedOut,
)


def run_metrics(experiences: Sequence[Experience]) -> dict[str, float]:
    """Return the metrics of one run.

    They are means over its experiences of `reward` and of each metric present.
    """
    values: dict[str, list[float]] = {}
    for experience in experiences:
        named = dict(experience.metrics)
        if experience.reward is not None:
            named["reward"] = experience.reward
        for name, value in named.items():
            values.setdefault(name, []).append(float(value))
    return {name: mean(v) for name, v in values.items()}


def values_by_task(result: BatchResult) -> dict[str, dict[int, list[float]]]:
    """Return metric -> task index -> values of the completed runs.

    The values are in the order of the runs, one for each.
    """
    values: dict[str, dict[int, list[float]]] = {}
    for run, experiences in result.completed:
        for name, value in run_metrics(experiences).items():
            values.setdefault(name, {}).setdefault(run.task, []).append(value)
    return values


def rollout_metrics(result: BatchResult, *, is_detailed: bool = False) -> dict[str, float]:
    """Return the metrics of an explore step.

    `rollout/<metric>/{mean,max,min}` are over the tasks, each with the mean of its runs; lengths are in tokens,
    times in seconds.

    Args:
        result: of the step.
        is_detailed: with the `distribution` of metrics and lengths.
    """
    metrics: dict[str, float] = {}
    summarize = detailed_summary if is_detailed else summary
    for name, by_task in sorted(values_by_task(result).items()):
        metrics |= summarize(f"rollout/{name}", [mean(runs) for _, runs in sorted(by_task.items())])
    metrics |= tie_metrics(result)
    experiences = result.experiences
    metrics |= outcome_counts(result, "rollout")
    metrics |= truncation_counts(experiences, "rollout")
    for name in (FOREIGN_TURNS, DROPPED_CALLS, RETOKENISED):
        metrics[f"rollout/{name.removesuffix('s')}_count"] = sum(int(e.info.get(name, 0)) for e in experiences)
    metrics |= summarize("response_length", [e.response_length for e in experiences])
    metrics |= summarize("prompt_length", [e.prompt_length for e in experiences])
    if experiences:
        cut = sum(e.truncate_status == "response_truncated" for e in experiences)
        metrics["response_length/clip_ratio"] = cut / len(experiences)
    metrics |= time_metrics(result, "rollout/time")
    generated = sum(int(e.action_mask.sum()) for e in experiences if e.action_mask is not None)
    if result.wall_s > 0:
        metrics["perf/rollout_tokens_per_s"] = generated / result.wall_s
    return metrics


def tie_metrics(result: BatchResult) -> dict[str, float]:
    """Return `rollout/frac_reward_zero_std`.

    It is the share of the tasks with several completed runs whose rewards are all equal; nothing without such tasks.
    """
    groups = [runs for runs in values_by_task(result).get("reward", {}).values() if len(runs) > 1]
    if not groups:
        return {}
    return {"rollout/frac_reward_zero_std": mean([float(max(runs) == min(runs)) for runs in groups])}


def taskset_metrics(result: BatchResult, names: Mapping[int, str], *, is_detailed: bool = False) -> dict[str, float]:
    """Return what came of the tasks of each of several tasksets.

    `rollout/<taskset>/finished_task_count`, and over its tasks `rollout/<taskset>/<metric>/{mean,max,min}`.

    Args:
        result: of the step.
        names: of the tasksets, by number.
        is_detailed: with the `distribution` of metrics.
    """
    summarize = detailed_summary if is_detailed else summary
    of_task = {run.task: each[0].info["task_index"]["taskset_id"] for run, each in result.completed}
    metrics: dict[str, float] = {}
    values = values_by_task(result)
    for number, name in sorted(names.items()):
        metrics[f"rollout/{name}/finished_task_count"] = sum(of == number for of in of_task.values())
        for metric, by_task in sorted(values.items()):
            means = [mean(runs) for task, runs in sorted(by_task.items()) if of_task[task] == number]
            metrics |= summarize(f"rollout/{name}/{metric}", means)
    return metrics


def outcome_counts(result: BatchResult, prefix: str) -> dict[str, float]:
    """Return the counts of tasks, of runs by outcome, and of retries.

    Tasks are counted as finished, dropped and unfinished. Runs that took too much memory are failed ones, too,
    and runs whose reward function failed or was stopped are rejected ones.
    """
    finished = len(result.finished_tasks)
    return {
        f"{prefix}/finished_task_count": finished,
        f"{prefix}/dropped_group_count": result.task_count - finished,
        f"{prefix}/failed_run_count": result.count(Failed),
        f"{prefix}/over_memory_run_count": result.count(OverMemory),
        f"{prefix}/timeout_run_count": result.count(TimedOut),
        f"{prefix}/rejected_run_count": result.count(Rejected),
        f"{prefix}/reward_error_count": result.count(RewardFailed),
        f"{prefix}/reward_timeout_count": result.count(RewardTimedOut),
        f"{prefix}/retry_count": result.retry_count,
        f"{prefix}/abandoned_thread_count": result.abandoned_count,
        f"{prefix}/runner_restart_count": result.restart_count,
        f"{prefix}/unfinished_task_count": result.unfinished_task_count,
        f"{prefix}/unfinished_run_count": result.unfinished_run_count,
    }


def truncation_counts(experiences: Iterable[Experience], prefix: str) -> dict[str, float]:
    """Return the number of experiences with a cut prompt or response.

    The two are counted apart.
    """
    states = [e.truncate_status for e in experiences]
    return {
        f"{prefix}/prompt_truncated_count": states.count("prompt_truncated"),
        f"{prefix}/response_truncated_count": states.count("response_truncated"),
    }


def time_metrics(result: BatchResult, prefix: str) -> dict[str, float]:
    """Return the durations of completed runs and of tasks in seconds.

    A task lasts as long as its longest run.
    """
    by_task: dict[int, float] = {}
    for run, _ in result.completed:
        by_task[run.task] = max(by_task.get(run.task, 0.0), run.time_s)
    runs = [run.time_s for run, _ in result.completed]
    tasks = summary(f"{prefix}/task_execution", list(by_task.values()))
    return tasks | summary(f"{prefix}/run_execution", runs)


def summary(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return `<name>/{mean,max,min}` of the values; nothing of none."""
    if not values:
        return {}
    return {f"{name}/mean": mean(values), f"{name}/max": float(max(values)), f"{name}/min": float(min(values))}


def detailed_summary(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return `summary` and `distribution` of the values."""
    return summary(name, values) | distribution(name, values)


def distribution(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return `<name>/{std,p10,p50,p90}` of the values; nothing of none.

    The standard deviation is of the population; percentiles lie between two values by their distance.
    """
    if not values:
        return {}
    array = np.asarray(values, dtype=np.float64)
    shares = dict(zip(("p10", "p50", "p90"), np.percentile(array, (10, 50, 90)), strict=True))
    return {f"{name}/{what}": float(value) for what, value in {"std": array.std(), **shares}.items()}


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of at least one value."""
    return float(sum(values)) / len(values)


def prefixed(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics under `<prefix>/`."""
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
