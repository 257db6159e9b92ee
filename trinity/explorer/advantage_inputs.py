"""Inputs of advantage functions beyond tokens and rewards.

The classes here add them to the experiences.

There are three such inputs: the reward of a greedy run of the task (ReMax), the teacher's log-probabilities, and the
components of the reward as one row. `needed_inputs` says which of them a run needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trinity.algorithm import ADVANTAGE_FN
from trinity.common.errors import ConfigError
from trinity.common.experience import CustomField, Experience
from trinity.common.workflows.task import Task, read_option
from trinity.explorer.metrics import mean, summary
from trinity.explorer.outcome import BatchResult, Completed, Outcome, Rejected

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.models.model import ModelWrapper

BASELINE_KEY = "reward_baseline"
BASELINE = CustomField(BASELINE_KEY, "reward_baselines")
COMPONENTS_KEY = "reward_components"
COMPONENTS = CustomField(COMPONENTS_KEY, COMPONENTS_KEY)


@dataclass(frozen=True)
class NeededInputs:
    """Which tensors the explorer has to make possible.

    Attributes:
        baseline: `reward_baselines`: a greedy run of each task.
        teacher: `teacher_logprobs`: the log-probabilities of the first auxiliary model.
        components: `reward_components`: names of the metrics that are the columns; None where it is not asked for.
    """

    baseline: bool = False
    teacher: bool = False
    components: tuple[str, ...] | None = None


def needed_inputs(config: Config) -> NeededInputs:
    """Return the inputs that the advantage function names in its call.

    Empty where the experience pipeline computes the advantage.

    Raises:
        ConfigError: an unknown advantage function.
    """
    function = ADVANTAGE_FN.get(config.algorithm.advantage_fn)
    if function is None or not function.compute_in_trainer():
        return NeededInputs()
    names = ADVANTAGE_FN.contents[str(config.algorithm.advantage_fn)].reads
    keys = tuple((config.algorithm.advantage_fn_args or {}).get("gdpo_reward_keys") or ())
    return NeededInputs(
        baseline="reward_baselines" in names,
        teacher="teacher_logprobs" in names,
        components=keys if "reward_components" in names else None,
    )


class InputCompleter:
    """Adds the teacher's log-probabilities and the reward's components.

    The components become one row.

    Args:
        teacher: scores the responses whose workflow did not; None where nobody reads it.
        temperature: of the log-probabilities where a task has none of its own, > 0.
        components: metrics that are the columns of `reward_components`; None where nobody reads them.
    """

    def __init__(
        self,
        teacher: ModelWrapper | None = None,
        *,
        temperature: float = 1.0,
        components: Sequence[str] | None = None,
    ) -> None:
        self.teacher = teacher
        self.temperature = temperature
        self.components = components

    async def complete(self, outcome: Outcome, task: Task) -> Outcome:
        """Return the outcome with the requested inputs on its experiences.

        The outcome is rejected if a workflow set an input wrongly.

        Raises:
            EngineError: the teacher cannot score a response.
        """
        if not isinstance(outcome, Completed):
            return outcome
        for experience in outcome.experiences:
            reason = self._add_components(experience) if self.components is not None else ""
            if self.teacher is not None and not reason:
                reason = await self._add_teacher(experience, task, self.teacher)
            if reason:
                return Rejected(f"{task.workflow.__name__}: {reason}")
        return outcome

    def _add_components(self, experience: Experience) -> str:
        assert self.components is not None, "asked for by the caller"
        missing = [name for name in self.components if name not in experience.metrics]
        if missing:
            known = ", ".join(sorted(experience.metrics)) or "none"
            return f"no reward component {missing[0]!r} (gdpo_reward_keys) among its metrics: {known}"
        experience.info[COMPONENTS_KEY] = [float(experience.metrics[name]) for name in self.components]
        experience.custom_fields = [*experience.custom_fields, COMPONENTS]
        return ""

    async def _add_teacher(self, experience: Experience, task: Task, teacher: ModelWrapper) -> str:
        if experience.teacher_logprobs is None:
            chosen = read_option(task.rollout_args, "temperature")
            temperature = (self.temperature if chosen is None else float(chosen)) or 1.0
            scored = await teacher.logprobs_async(experience.tokens.tolist(), temperature)
            experience.teacher_logprobs = scored[experience.prompt_length - 1 :]
        values = experience.teacher_logprobs
        if values.shape != (experience.response_length,) or not bool(torch.isfinite(values).all()):
            return f"teacher_logprobs must be {experience.response_length} finite numbers, one a response token"
        if experience.logprobs is not None and experience.action_mask is not None:
            divergence = ((experience.logprobs - values) * experience.action_mask).sum()
            experience.metrics.setdefault("kl_divergence", float(divergence))
        return ""


def input_completer(
    config: Config, needs: NeededInputs, *, student: ModelWrapper, others: Sequence[ModelWrapper]
) -> InputCompleter | None:
    """Return what adds the tensors that `needs` names, or None.

    None means that there is nothing to add.

    Raises:
        ConfigError: no auxiliary model is there to be the teacher (E1880), its vocabulary is not the student's (E1882),
            or no component is named (E1883).
    """
    if needs.components is not None and not needs.components:
        raise ConfigError(
            f"algorithm.advantage_fn {config.algorithm.advantage_fn} needs the names of the reward's components, got "
            "none; write algorithm.advantage_fn_args.gdpo_reward_keys: [<metric>, ...]",
            code="E1883",
        )
    if needs.teacher and not others:
        raise ConfigError(
            f"algorithm.advantage_fn {config.algorithm.advantage_fn} needs a teacher, the first of "
            "explorer.auxiliary_models, got none; write explorer.auxiliary_models: [{model_path: <folder>}]",
            code="E1880",
        )
    if not needs.teacher and needs.components is None:
        return None
    if needs.teacher:
        check_vocabulary(student, others[0])
    teacher = others[0] if needs.teacher else None
    return InputCompleter(teacher, temperature=student.temperature, components=needs.components)


def check_vocabulary(student: ModelWrapper, teacher: ModelWrapper) -> None:
    """Check that every token has the same id in both models.

    Otherwise the teacher would score other tokens.

    Raises:
        ConfigError: the vocabularies differ (E1882).
    """
    own, other = student.model.vocabulary(), teacher.model.vocabulary()
    if own == other:
        return
    differing = min(token for token in own.keys() | other.keys() if own.get(token) != other.get(token))
    raise ConfigError(
        f"explorer.auxiliary_models[0]: the vocabulary of the teacher {teacher.model_path} ({len(other)} tokens) must "
        f"be that of the student {student.model_path} ({len(own)} tokens); they differ in {differing!r} (teacher "
        f"{other.get(differing)}, student {own.get(differing)}); use a teacher of the same family",
        code="E1882",
    )


def attach_baselines(result: BatchResult) -> dict[str, float]:
    """Set the reward of the task's greedy run on sampled experiences.

    Its name in the batch is `reward_baselines`.

    Returns:
        `rollout/baseline_reward/{mean,max,min}` over the tasks, and `rollout/failed_baseline_count`; nothing where the
        batch was run without greedy runs.
    """
    if result.baselines is None:
        return {}
    rewards = {task: run_reward(experiences) for task, experiences in result.completed_baselines.items()}
    for run, experiences in result.completed:
        for experience in experiences:
            experience.info[BASELINE_KEY] = rewards[run.task]
            experience.custom_fields = [*experience.custom_fields, BASELINE]
    failed = float(len(result.baselines) - len(rewards))
    return summary("rollout/baseline_reward", list(rewards.values())) | {"rollout/failed_baseline_count": failed}


def run_reward(experiences: Sequence[Experience]) -> float:
    """Return the reward of a run: the mean over its experiences.

    An experience with token rewards counts with their sum.
    """
    return mean([_reward(experience) for experience in experiences])


def _reward(experience: Experience) -> float:
    if experience.token_level_reward is not None:
        return float(experience.token_level_reward.sum())
    assert experience.reward is not None, "a completed run has rewards"
    return float(experience.reward)
