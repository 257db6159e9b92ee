"""New rewards of stored rollouts, by reward functions and judges.

A score that fails or takes too long is none: it is counted by the code of its error, and never becomes a reward of 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from trinity.common.config import Config
from trinity.common.errors import DeadlineError, EngineError, EnginesLostError, TrinityError, WorkflowError
from trinity.common.experience import Experience
from trinity.common.models.inference_model import InferenceModel
from trinity.common.models.model import ModelWrapper
from trinity.common.rewards.reward_fn import RewardError, RewardTimeoutError
from trinity.common.workflows.judge import ask, judge_of, listed_scores
from trinity.common.workflows.math_ruler_workflow import Ruler
from trinity.common.workflows.rubric_judge_workflow import RubricJudgeWorkflow
from trinity.common.workflows.workflow import SimpleWorkflow
from trinity.engine.create import create_auxiliary_models
from trinity.explorer.api.endpoint import Endpoint
from trinity.explorer.api.limits import EndpointLimits
from trinity.explorer.assembly import num_runners
from trinity.explorer.wrappers import auxiliary_wrappers
from trinity.launch.process import prepare_process
from trinity.launch.reuse.past_tasks import PastTasks
from trinity.launch.side import close_all
from trinity.runtime.worker_thread import call_in_thread
from trinity.utils.deadline import within
from trinity.utils.log import get_logger

logger = get_logger("launch")

T = TypeVar("T")

NO_JUDGE = "E5124"


@dataclass(frozen=True)
class Score:
    """A response's new reward.

    Attributes:
        reward: the number.
        metrics: its parts, and what else the scorer says of the response.
    """

    reward: float
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Unscored:
    """A response whose scorer failed, or was stopped at its deadline.

    Attributes:
        code: of the error.
    """

    code: str


class Scorers:
    """Scores stored rollouts as the workflows of their tasks do.

    Tasks are scored beside each other, as many as a run has runners; the responses to a task one after the other. Each
    score has `explorer.max_timeout` seconds. The auxiliary models start with the first task whose workflow asks them.

    Args:
        config: of the run.
        tasks: its tasks.
        is_reward_given: the user names a reward function, which scores in place of judges.
    """

    def __init__(self, config: Config, tasks: PastTasks, *, is_reward_given: bool) -> None:
        self.config, self.tasks = config, tasks
        self.is_reward_given = is_reward_given
        self.timeout_s = config.explorer.max_timeout
        self._slots = asyncio.Semaphore(num_runners(config))
        self._starting = asyncio.Lock()
        self._engines: list[InferenceModel] = []
        self._models: list[ModelWrapper] | None = None
        self._endpoint = Endpoint(limits=EndpointLimits.of(config))
        self._told: set[str] = set()

    async def score(self, experiences: Sequence[Experience]) -> list[Score | Unscored]:
        """Return what happened to each experience, in their order.

        Raises:
            ConfigError: rewards of a workflow do not follow from its responses (E1925).
            DataError: an experience names no row of the tasksets (E4073).
            TrinityError: a model cannot be used, or a judge is asked for and none is configured (E5124).
        """
        groups: dict[str, list[int]] = {}
        for place, experience in enumerate(experiences):
            groups.setdefault(experience.eid.tid, []).append(place)
        found: dict[int, Score | Unscored] = {}

        async def score(places: list[int]) -> None:
            async with self._slots:
                outcomes = await self._group([experiences[place] for place in places])
            found.update(zip(places, outcomes, strict=True))

        scoring = [asyncio.ensure_future(score(places)) for places in groups.values()]
        try:
            await asyncio.gather(*scoring)
        finally:
            for each in scoring:
                each.cancel()
        return [found[place] for place in range(len(experiences))]

    async def close(self) -> None:
        """Close the endpoint and the auxiliary models."""
        await call_in_thread(self._endpoint.close)
        await close_all(engine.shutdown for engine in self._engines)

    async def _group(self, group: list[Experience]) -> list[Score | Unscored]:
        """Return what happened to the responses to a task."""
        first = group[0]
        kind, compares = self.tasks.scorer(first, is_reward_given=self.is_reward_given)
        has_own = kind.scores not in (SimpleWorkflow.scores, RubricJudgeWorkflow.scores)
        asks = has_own or "auxiliary_model" in kind.needs
        models = [each.for_run(first.eid.batch, first.eid.task, first.eid.run) for each in await self._asked(asks)]

        def make() -> SimpleWorkflow:
            return self.tasks.made(first, kind, models)

        if compares:
            compared = await self._outcome(first, lambda: _compared(make(), group))
            return [compared] * len(group) if isinstance(compared, Unscored) else compared
        outcomes, workflow = list[Score | Unscored](), None
        for experience in group:
            held = workflow
            outcome = await self._outcome(experience, lambda: _rated(held or make(), experience))  # noqa: B023 - awaited
            # Who was stopped may still be at work on its workflow, so the next one has its own.
            workflow = outcome[0] if isinstance(outcome, tuple) else None
            outcomes.append(outcome[1] if isinstance(outcome, tuple) else outcome)
        return _with_shares(outcomes) if issubclass(kind, RubricJudgeWorkflow) else outcomes

    async def _asked(self, is_needed: bool) -> list[ModelWrapper]:
        """Return the handles of the auxiliary models; start them if needed."""
        if not is_needed or not self.config.explorer.auxiliary_models:
            return []
        async with self._starting:
            if self._models is None:
                prepare_process(self.config.model.model_path, deterministic=self.config.deterministic)
                self._engines = create_auxiliary_models(self.config)
                for engine in self._engines:
                    await engine.prepare()
                self._models = auxiliary_wrappers(self.config, self._engines, self._endpoint)
        return self._models

    async def _outcome(self, experience: Experience, score: Callable[[], T]) -> T | Unscored:
        try:
            return await within(call_in_thread(score), self.timeout_s)
        except TimeoutError:
            limit = f"no score within {self.timeout_s:g} s (explorer.max_timeout)"
            return self._unscored(experience, RewardTimeoutError.default_code, limit)
        except (WorkflowError, DeadlineError, EngineError) as error:
            if error.code == NO_JUDGE or isinstance(error, EnginesLostError):
                raise
            return self._unscored(experience, error.code, str(error))
        except TrinityError:
            raise
        except Exception as error:  # noqa: BLE001 - user code that scores: a broken score is data
            return self._unscored(experience, RewardError.default_code, f"{type(error).__name__}: {error}")

    def _unscored(self, experience: Experience, code: str, reason: str) -> Unscored:
        if code not in self._told:
            self._told.add(code)
            logger.warning("%s has no score: %s; others with %s are counted", experience.eid.uid, reason, code)
        return Unscored(code)


def _rated(workflow: SimpleWorkflow, experience: Experience) -> tuple[SimpleWorkflow, Score]:
    """Return the workflow, to be used again, and the score of a response."""
    scores = workflow.scores(experience)
    more = workflow.gold(experience) if isinstance(workflow, RubricJudgeWorkflow) else {}
    return workflow, Score(float(sum(scores.values())), {**scores, **more})


def _with_shares(outcomes: list[Score | Unscored]) -> list[Score | Unscored]:
    """Return the ratings with `judge_success`, the share that there is."""
    share = sum(isinstance(each, Score) for each in outcomes) / len(outcomes)
    more = {"judge_success": share}
    return [Score(each.reward, each.metrics | more) if isinstance(each, Score) else each for each in outcomes]


def _compared(workflow: SimpleWorkflow, group: list[Experience]) -> list[Score | Unscored]:
    """Return the scores that a judge gives responses in comparison.

    Those that the reward function cannot score are not compared.

    Raises:
        RewardError: the verdict cannot be read (E5125).
        WorkflowError: there is no judge (E5124).
    """
    assert isinstance(workflow, Ruler), "only these compare"
    judge = judge_of(workflow.auxiliary_model_wrappers, type(workflow))
    outcomes, gold = list[Score | Unscored](), dict[int, dict[str, float]]()
    for place, experience in enumerate(group):
        outcomes.append(Unscored(""))
        try:
            gold[place] = dict(workflow.scores(experience))
        except RewardError as error:
            outcomes[place] = Unscored(error.code)
    if gold:
        verdict = ask(judge, workflow.comparison([group[place] for place in gold]))
        for (place, metrics), score in zip(gold.items(), listed_scores(verdict, len(gold)), strict=True):
            more = {"gold_reward": float(sum(metrics.values())), "judge_success": 1.0}
            outcomes[place] = Score(score, metrics | more)
    return outcomes
