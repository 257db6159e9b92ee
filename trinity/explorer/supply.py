"""What an advantage function asks for beyond tokens and rewards, added to the experiences of a completed run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trinity.common.errors import ConfigError
from trinity.common.experience import CustomField, Experience
from trinity.common.workflows.task import Task, read_option
from trinity.explorer.needs import Needs
from trinity.explorer.outcome import Completed, Outcome, Rejected

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.models.model import ModelWrapper

COMPONENTS_KEY = "reward_components"
COMPONENTS = CustomField(COMPONENTS_KEY, COMPONENTS_KEY)


class Supply:
    """Adds the teacher's log-probabilities, and the components of the reward as one row.

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
        """Return the outcome with what is asked for on its experiences; rejected where a workflow set it wrongly.

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


def supply_of(config: Config, needs: Needs, *, student: ModelWrapper, others: Sequence[ModelWrapper]) -> Supply | None:
    """Return what adds the tensors that `needs` names; None where there is nothing to add.

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
    return Supply(teacher, temperature=student.temperature, components=needs.components)


def check_vocabulary(student: ModelWrapper, teacher: ModelWrapper) -> None:
    """Check that every token has one id in both models, without which a teacher would score other tokens.

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
