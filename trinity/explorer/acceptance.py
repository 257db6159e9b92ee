"""Checks of what a workflow returned: ids, rewards and metrics.

User code meets the pipeline here.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any

from trinity.common.errors import WorkflowError
from trinity.common.experience import EID, Experience
from trinity.common.models.whole import Whole, unfolded
from trinity.common.rewards.reward_fn import RewardError
from trinity.common.workflows.task import Task
from trinity.explorer.outcome import Completed, Failed, Outcome, Rejected, unscored

MAX_ABS_REWARD = 1e9  # squares of larger rewards leave the range of float32
MAX_TRUTH_CHARS = 4096  # a longer one, such as a file of test cases, stays in the dataset alone


def accept(
    returned: Any, task: Task, *, runs: range, can_repeat: bool, model_version: int, dropped: Sequence[RewardError] = ()
) -> list[Outcome]:
    """Return the outcome of each run in `runs`.

    Ids, model version, task index and a short truth are set on the experiences of each run.

    Args:
        returned: what the workflow's run returned.
        task: the task, with `batch_id` and `task_id`.
        runs: numbers of the runs that the call did.
        can_repeat: whether the call did all of `runs`; otherwise `runs` is one.
        model_version: version of the weights, for experiences that do not say theirs.
        dropped: errors of the reward function, for the runs that the workflow left out.

    Raises:
        WorkflowError: not a list of experiences, or experiences that cannot be told apart.
    """
    name = task.workflow.__name__
    if not isinstance(returned, list) or not all(isinstance(e, Experience) for e in returned):
        raise WorkflowError(f"{name} must return a list of Experience, got {_describe(returned)}", code="E5121")
    by_run: dict[int, list[Experience]] = {run: [] for run in runs}
    for experience, run in zip(returned, _run_numbers(returned, runs, can_repeat=can_repeat, name=name), strict=True):
        by_run[run].append(experience)
    return [_outcome(by_run[run], task, run=run, model_version=model_version, dropped=dropped) for run in runs]


def _describe(returned: Any) -> str:
    if not isinstance(returned, list):
        return type(returned).__name__
    return "a list with " + ", ".join(sorted({type(e).__name__ for e in returned}))


def _run_numbers(returned: list[Experience], runs: range, *, can_repeat: bool, name: str) -> list[int]:
    """Return the run number of each experience.

    A repeating workflow sets `eid.run`; one that sets nothing and returns one experience a run is numbered by position.
    """
    if not can_repeat:
        return [runs[0]] * len(returned)
    own = [e.eid.run for e in returned]
    ids = {(e.eid.run, e.eid.step, e.eid.suffix) for e in returned}
    if all(run in runs for run in own) and len(ids) == len(returned):
        return own
    if len(returned) == len(runs):
        return list(runs)
    raise WorkflowError(
        f"{name} makes {len(runs)} rollouts of a task in one call and returned {len(returned)} experiences "
        f"whose eid.run is not in {runs.start}..{runs.stop - 1} or not unique; set eid.run from run_id_base on, and "
        "eid.step by turn",
        code="E5122",
    )


def _outcome(
    experiences: list[Experience], task: Task, *, run: int, model_version: int, dropped: Sequence[RewardError]
) -> Outcome:
    if not experiences:
        if dropped:
            return unscored(dropped[0])
        return Failed(f"{task.workflow.__name__} returned no experience for the rollout")
    steps = _steps(experiences, task.workflow.__name__)
    if any(isinstance(each, Whole) for each in experiences):
        by_step = sorted(zip(steps, experiences, strict=True), key=lambda pair: (pair[0], pair[1].eid.suffix))
        experiences = unfolded([experience for _, experience in by_step])
        steps = list(range(len(experiences)))
    for experience, step in zip(experiences, steps, strict=True):
        experience.eid = EID(task.batch_id, task.task_id, run, step, experience.eid.suffix)
        experience.info.setdefault("model_version", model_version)
        experience.info["task_index"] = task.index
        if isinstance(task.truth, str | int | float) and len(str(task.truth)) <= MAX_TRUTH_CHARS:
            experience.info.setdefault("truth", task.truth)
        reason = _bad_number(experience)
        if reason:
            return Rejected(f"{task.workflow.__name__}: {reason}")
        experience.reward = float(experience.reward)  # type: ignore[arg-type]
        experience.metrics = {key: float(value) for key, value in experience.metrics.items()}
    return Completed(sorted(experiences, key=lambda e: (e.eid.step, e.eid.suffix)))


def _steps(experiences: list[Experience], name: str) -> list[int]:
    """Return the turn of each experience.

    Where none is set, the turns follow the order in which the experiences were returned.
    """
    own = [e.eid.step for e in experiences]
    if len({(e.eid.step, e.eid.suffix) for e in experiences}) == len(own):
        return own
    if not any(own):
        return list(range(len(own)))
    raise WorkflowError(f"{name} returned two experiences of one turn (eid.step {own}); number them", code="E5122")


def _bad_number(experience: Experience) -> str:
    """Return what is wrong with the reward or a metric; empty if nothing is."""
    reward = experience.reward
    if reward is None and experience.token_level_reward is not None:
        reward = experience.reward = float(experience.token_level_reward.sum())
    if not is_finite_number(reward) or abs(float(reward)) > MAX_ABS_REWARD:  # type: ignore[arg-type]
        return f"reward must be a finite number of at most {MAX_ABS_REWARD:g}, got {reward!r} ({type(reward).__name__})"
    tokens = experience.token_level_reward
    if tokens is not None and not bool(tokens.isfinite().all()):
        return "token_level_reward must be finite"
    for key, value in experience.metrics.items():
        if not isinstance(value, bool) and not is_finite_number(value):
            return f"metric {key!r} must be a finite number, got {value!r} ({type(value).__name__})"
    return ""


def is_finite_number(value: Any) -> bool:
    """Return whether `value` is a finite real number and not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def of_batch(task: Task, *, batch: int | str, index: int) -> Task:
    """Return the task as number `index` of `batch`."""
    return dataclasses.replace(task, batch_id=batch, task_id=index)
