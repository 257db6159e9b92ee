"""`trinity rescore`: stored rollouts with another reward.

The tasks are read again from the run's taskset, since a reward function asks for their truth. Judges are asked again,
and so is the reward model. Operators of the experience pipeline that need nothing else are applied again. Advantages
that compare rollouts are computed again; those that the trainer computes are left to it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trinity.algorithm.advantage_fn.grpo import is_repeated
from trinity.buffer.operators import build_operators
from trinity.buffer.operators.experience_operator import ExperienceOperator, ExperienceOperatorV1
from trinity.buffer.pipelines.reward_model import NAME, RewardModelScores
from trinity.buffer.records import Records
from trinity.buffer.store import ExperienceStore
from trinity.common.config import Config
from trinity.common.errors import ConfigError, DataError, EnvironmentProblem
from trinity.common.experience import Experience, group_by
from trinity.common.rewards.reward_fn import RewardTimeoutError
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.explorer.advantage_inputs import COMPONENTS_KEY, needed_inputs
from trinity.explorer.assembly import build_advantage_fn, build_reward_model
from trinity.launch.reuse.past_run import PastRun, refuse_other_keys
from trinity.launch.reuse.past_tasks import PastTasks
from trinity.launch.reuse.scoring import Score, Scorers, Unscored
from trinity.runtime.event_loop import run_event_loop
from trinity.runtime.worker_thread import call_in_thread
from trinity.utils.deadline import bounded
from trinity.utils.log import get_logger, redact
from trinity.utils.plugin_loader import load_plugins

logger = get_logger("launch")

REWARD = "buffer.explorer_input.taskset.default_reward_fn_type"
REWARD_ARGS = "buffer.explorer_input.taskset.reward_fn_args"
OPERATORS = "data_processor.experience_pipeline.operators"
TIMEOUT = "explorer.max_timeout"
OF_JUDGES = ("explorer.auxiliary_models", "buffer.explorer_input.taskset.workflow_args")
OF_MODEL = "trainer.trainer_config.reward_model"
EFFECTIVE = (REWARD_ARGS, "algorithm.advantage_fn", "algorithm.advantage_fn_args", OPERATORS, TIMEOUT)
PROVENANCE = "rescored"
BASES = (ExperienceOperator, ExperienceOperatorV1)
UNREACHED = ("E5126", "E5300", "E5301", "E5730", "E5732", "E5733", RewardTimeoutError.default_code)
FUTILE = 32
"""Rollouts after which a judge that never answered is asked no more: each of them may take `explorer.max_timeout`."""


@dataclass
class Rescored:
    """What happened to stored rollouts with another reward.

    Attributes:
        run: name under which they are in the new database, `project/name`.
        rewards: old and new reward of each that is there.
        groups: of each task, whether its old and its new rewards differ among each other.
        unscored: those that could not be scored, by the error's code.
        gone: those whose payload was pruned.
        left_out: those that the advantage function drops.
        filtered: those that operators of the experience pipeline drop, by operator.
        unstored: rollouts of the run that never were in its store, by fate: `failed/<kind>`, `filtered/<operator>`.
    """

    run: str
    rewards: list[tuple[float | None, float]] = field(default_factory=list)
    groups: list[tuple[bool, bool]] = field(default_factory=list)
    unscored: Counter[str] = field(default_factory=Counter)
    gone: int = 0
    left_out: int = 0
    filtered: Counter[str] = field(default_factory=Counter)
    unstored: Mapping[str, int] = field(default_factory=dict)


def rescored(
    run: PastRun, output: str, *, reward: str | None = None, name: str | None = None, overrides: Sequence[str] = ()
) -> Rescored:
    """Score all stored rollouts again into another database.

    There they wait to be trained, in the order of the log, and no more will come.

    Args:
        run: the run.
        output: SQLAlchemy URL of the database.
        reward: name of the reward function; None: that of the run.
        name: `project/name` of the run that will train them; None: that of the run with `-rescored`.
        overrides: `a.b=c`: arguments of the reward function, other judges, another advantage function, or operators.

    Raises:
        ConfigError: a setting that has no effect here (E1923), or a workflow whose rewards do not follow from its
            responses, without `reward` (E1925).
        DataError: there is nothing to score, or no judge answers (E4070).
        EnvironmentProblem: the database has rollouts of that run already (E3606), or a model cannot be used.
        TrinityError: a judge is asked for and none is configured (E5124).
    """
    given = [] if reward is None else [f"{REWARD}={reward}", f"{REWARD_ARGS}={{}}"]
    config = run.config([*given, *overrides])
    load_plugins(run.all_plugin_dirs())
    tasks = PastTasks(config, run.fingerprints(), own=run.config())
    known = (*EFFECTIVE, *(OF_JUDGES if reward is None and tasks.has_judges() else ()))
    known += (OF_MODEL,) if reward is None else ()
    refuse_other_keys(overrides, known=known, without=(), what="stored rollouts")
    _check_inputs(config)
    found = Rescored(name or f"{config.project}/{config.name.replace('/', '-')}-rescored")
    buffer = run.buffer_of(config)
    with closing(Records(run.url)) as records, ExperienceStore(output, kept_bytes=None, setting="--output") as store:
        if (found.run, "") in store.runs(buffer):
            raise EnvironmentProblem(
                f"{redact(output)} has rollouts of {found.run} already, and none are ever replaced; name another "
                "database, or another run with --for",
                code="E3606",
            )
        fates = records.fates(run.name).get(buffer)
        ended = {} if fates is None else fates.ended
        found.unstored = {name: number for name, number in ended.items() if "/" in name and number}
        steps = run.explored(records, buffer=buffer)
        run_event_loop(_write(store, found, _Setting(config, tasks, reward is not None), steps, buffer=buffer))
    if not found.rewards:
        raise _nothing(run.name, found)
    return found


class _Setting(NamedTuple):
    """What scores: configuration, tasks, and whether a reward is named."""

    config: Config
    tasks: PastTasks
    is_reward_given: bool


async def _write(
    store: ExperienceStore,
    found: Rescored,
    setting: _Setting,
    steps: Iterator[list[ExperienceModel]],
    *,
    buffer: str,
) -> None:
    config = setting.config
    advantage, producers = build_advantage_fn(config), set()
    operators = _operators(setting)
    components = needed_inputs(config).components
    scorers = Scorers(config, setting.tasks, is_reward_given=setting.is_reward_given)
    try:
        for rows in steps:
            producer, step = rows[0].producer, rows[0].explore_step
            if producer not in producers:
                store.open_producer(buffer, producer, run=found.run)
                producers.add(producer)
            scored = await _scored(rows, scorers, found, components)
            for name, operator in operators:
                before = len(scored)
                scored = await _applied(name, operator, scored, config.explorer.max_timeout)
                found.filtered[name] += before - len(scored)
            found.groups += [_spreads(group) for group in group_by(scored).values()]
            kept = scored if advantage is None else advantage.process(scored)[0]
            found.left_out += len(scored) - len(kept)
            found.rewards += [(each.info[PROVENANCE]["reward"], float(each.reward or 0.0)) for each in kept]
            store.append(buffer, kept, run=found.run, producer=producer, explore_step=step)
            if not found.rewards and sum(found.unscored[code] for code in UNREACHED) >= FUTILE:
                raise _nothing(rows[0].run, found)
    finally:
        await scorers.close()
        for _, operator in operators:
            if isinstance(operator, RewardModelScores):
                operator.close()
    for producer in producers:
        store.close_producer(buffer, producer, run=found.run)


async def _scored(
    rows: Sequence[ExperienceModel], scorers: Scorers, found: Rescored, components: Sequence[str] | None
) -> list[Experience]:
    """Return the experiences of an explore step with their new rewards."""
    there = [row for row in rows if row.experience_bytes is not None]
    found.gone += len(rows) - len(there)
    experiences = [row.to_experience() for row in there]
    # What an advantage function has repeated it repeats again, if the new rewards are of that kind.
    own = [place for place, each in enumerate(experiences) if not is_repeated(each)]
    there, experiences = [there[place] for place in own], [experiences[place] for place in own]
    scored = []
    for row, experience, outcome in zip(there, experiences, await scorers.score(experiences), strict=True):
        if isinstance(outcome, Unscored):
            found.unscored[outcome.code] += 1
            continue
        scored.append(_with_score(row, experience, outcome, components))
    return scored


def _with_score(
    row: ExperienceModel, experience: Experience, score: Score, components: Sequence[str] | None
) -> Experience:
    """Return a row's experience with a reward, its old one in `info`."""
    old = {"run": row.run, "reward": experience.reward, "metrics": experience.metrics}
    old["model_version"] = experience.info.get("model_version")
    # The weights of another run have no number in the run that trains them.
    info = {k: v for k, v in experience.info.items() if k not in ("model_version", "model_versions")}
    experience.info = info | {PROVENANCE: old}
    experience.metrics, experience.reward = dict(score.metrics), score.reward
    experience.token_level_reward = experience.advantages = experience.returns = None
    if components is not None:
        experience.info[COMPONENTS_KEY] = [score.metrics.get(name, 0.0) for name in components]
    return experience


def _operators(setting: _Setting) -> list[tuple[str, Any]]:
    """Return what is applied to the rewards again.

    That is the reward model, unless a reward function is named in its place, and the operators of the run that need
    nothing but experiences.
    """
    config = setting.config
    found = build_operators(config.data_processor.experience_pipeline.operators)
    pure = [(name, each) for name, each in found if isinstance(each, BASES) and each.is_pure]
    others = ", ".join(name for name, _ in found if name not in {name for name, _ in pure})
    if others:
        logger.warning(
            "the operators %s are not applied again, because what they do does not follow from the experiences alone: "
            "rewards are those of the reward function%s",
            others,
            "".join(f", then {name}" for name, _ in pure),
        )
    model = build_reward_model(config)
    if model is None:
        return pure
    if setting.is_reward_given:
        model.close()
        logger.warning("the reward model of the run is not asked: the rewards are those of --reward")
        return pure
    return [(NAME, RewardModelScores(model)), *pure]


async def _applied(name: str, operator: Any, experiences: list[Experience], timeout_s: float) -> list[Experience]:
    async def call() -> list[Experience]:
        if isinstance(operator, RewardModelScores):
            return (await call_in_thread(operator.process, experiences))[0]
        result = operator.process(experiences)
        kept, _ = await result if inspect.isawaitable(result) else result
        return list(kept)

    return await bounded(call(), timeout_s, what=f"the operator {name}", setting=TIMEOUT)


def _check_inputs(config: Config) -> None:
    """Refuse what no stored rollout can give."""
    needs = needed_inputs(config)
    if needs.baseline:
        raise ConfigError(
            f"the advantage {config.algorithm.advantage_fn} compares with a greedy rollout, which is not stored; set "
            "another algorithm.advantage_fn",
            code="E1925",
        )


def _spreads(group: Sequence[Experience]) -> tuple[bool, bool]:
    old = {each.info[PROVENANCE]["reward"] for each in group}
    return len(old) > 1, len({each.reward for each in group}) > 1


def _nothing(run: str, found: Rescored) -> DataError:
    return DataError(f"no rollout of {run} could be scored: {_lacking(found)}", code="E4070")


def _lacking(found: Rescored) -> str:
    parts = [f"{found.gone} have no payload any more"] * bool(found.gone)
    parts += [f"{number} ended in {code}" for code, number in found.unscored.items()]
    parts += [f"{number} were dropped by the operator {name}" for name, number in found.filtered.items() if number]
    parts += [f"{found.left_out} were dropped by the advantage function"] * bool(found.left_out)
    parts += [f"{number} never were in the store ({fate})" for fate, number in found.unstored.items()]
    return ", ".join(parts) or "there are none"
