"""The checks of a workflow, with policies in place of its model."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity.launch.env_check.comparison import differences
from trinity.launch.env_check.findings import CheckFinding
from trinity.launch.env_check.policies import Named, all_policies
from trinity.launch.env_check.resources import HeldResources, leaks
from trinity.launch.env_check.rewards import reward_findings
from trinity.launch.side import close_all
from trinity.launch.trial.rollouts import FAILED, REJECTED, TIMED_OUT, Rollout
from trinity.launch.trial.session import attempts, first_tasks

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.models.inference_model import InferenceModel
    from trinity.common.workflows.task import Task
    from trinity.explorer.policy_model import PolicyModel

Make = Callable[[Sequence["Task"]], Awaitable[list[Rollout]]]

TOO_LONG = "leaves no room for a response"  # what an engine says of a conversation that outgrew it (E5608)
PROMPT_CUT = "prompt_truncated"
MAX_SHOWN = 3


@dataclass(frozen=True)
class CheckOptions:
    """How much is looked at.

    Attributes:
        tasks: number of tasks, the first ones of a run.
        repetitions: passes over them in which leaks are looked for, at least 2.
        timeout_s: deadline of a rollout, in seconds; that of the file if it is shorter.
    """

    tasks: int = 4
    repetitions: int = 5
    timeout_s: float = 60.0


async def check_environment(config: Config, options: CheckOptions) -> list[CheckFinding]:
    """Return what is to be said of the workflow, errors first.

    Args:
        config: of the stage, as `trial_stage` returned it.
        options: how much is looked at.

    Raises:
        TrinityError: the tokenizer, the tasks or an auxiliary model cannot be used.
    """
    timeout_s = min(options.timeout_s, config.explorer.max_timeout)
    tasks = first_tasks(config, options.tasks)
    checker = Checker(_with(config, max_timeout=timeout_s), tasks, options)
    found = await checker.findings()
    return sorted(found, key=lambda finding: ("error", "warning", "ok").index(finding.level))


def _with(config: Config, **values: object) -> Config:
    return config.model_copy(update={"explorer": config.explorer.model_copy(update=values)})


class Checker:
    """Attempts the tasks with every policy, and checks the rollouts.

    Args:
        config: of the stage.
        tasks: to attempt.
        options: how much is looked at.
    """

    def __init__(self, config: Config, tasks: Sequence[Task], options: CheckOptions) -> None:
        self._config, self._tasks, self._options = config, tasks, options
        self._policies = all_policies(tasks)
        self._found: list[CheckFinding] = []
        self._seen: dict[str, list[Rollout]] = {}

    async def findings(self) -> list[CheckFinding]:
        """Return all findings, in the order in which they were made."""
        async with self._engines() as (model, engines):
            await self._look(model, engines)
        return self._found

    @asynccontextmanager
    async def _engines(self) -> AsyncIterator[tuple[PolicyModel, list[InferenceModel]]]:
        """Give the stand-in of the rollout model, and all engines."""
        from trinity.engine.create import create_auxiliary_models
        from trinity.engine.settings import shared_settings
        from trinity.explorer.policy_model import PolicyModel

        model = PolicyModel(shared_settings(self._config), self._policies[0].policy)
        engines: list[InferenceModel] = [model, *create_auxiliary_models(self._config)]
        try:
            for engine in engines:
                await engine.prepare()
            yield model, engines
        finally:
            await close_all(engine.shutdown for engine in engines)

    async def _look(self, model: PolicyModel, engines: Sequence[InferenceModel]) -> None:
        # One after another: what several at once do is compared with this.
        async with attempts(_with(self._config, runner_per_model=1), engines) as make:
            for policy in self._policies:
                if not await self._attempt(model, policy, make):
                    return
            self._found += reward_findings(self._policies, self._seen)
            self._found += self._times()
            alone = await self._repeat(model, make)
            self._found += await self._leaks(make)
        async with attempts(_with(self._config, runner_per_model=2 * len(self._tasks)), engines) as make:
            at_once = await make(self._twice())
        apart = list(differences(alone, at_once))
        way_out = "rollouts that run at the same time share state; give each its own, or guard it with a lock"
        said = f"{len(at_once)} rollouts at once have the same results as one at a time"
        self._found += _compared("concurrency", apart, of=len(alone), way_out=way_out, ok=said)

    async def _attempt(self, model: PolicyModel, policy: Named, make: Make) -> bool:
        """Run the tasks with a policy; return whether to continue."""
        model.policy = policy.policy
        rollouts = self._seen[policy.name] = await make(self._tasks)
        bad = [rollout for rollout in rollouts if not rollout.is_completed]
        for reason in list(dict.fromkeys(rollout.reason for rollout in bad))[:MAX_SHOWN]:
            self._found.append(_failure(policy, reason, [each for each in bad if each.reason == reason], len(rollouts)))
        cut = sum(any(each.truncate_status == PROMPT_CUT for each in rollout.experiences) for rollout in rollouts)
        if cut:
            text = f"{policy.name}: in {cut} of {len(rollouts)} rollouts a prompt was cut to model.max_prompt_tokens"
            self._found.append(CheckFinding("rollouts", "warning", f"{text}: such a rollout is not trained"))
        elif not bad:
            self._found.append(CheckFinding("rollouts", "ok", f"{policy.name}: {len(rollouts)} completed"))
        if all(rollout.outcome == TIMED_OUT for rollout in rollouts):
            text = f"{policy.name}: every rollout reaches its deadline; no further checks were made"
            self._found.append(CheckFinding("timeouts", "error", text))
            return False
        return True

    async def _repeat(self, model: PolicyModel, make: Make) -> list[Rollout]:
        """Look for differences between passes; return the rollouts of the last."""
        chosen = next(policy for policy in self._policies if policy.name == "random")
        model.policy = chosen.policy
        first, second = await make(self._twice()), await make(self._twice())
        apart = list(differences(first, second))
        way_out = "the same task and responses must give the same results: take randomness from the task, not the clock"
        said = f"{len(first)} rollouts give the same prompts and rewards twice"
        self._found += _compared("determinism", apart, of=len(first), way_out=way_out, ok=said)
        return second

    async def _leaks(self, make: Make) -> Iterator[CheckFinding]:
        held = []
        for _ in range(max(self._options.repetitions, 2)):
            await make(self._tasks)
            held.append(HeldResources.now())
        return leaks(held, rollouts=len(self._tasks))

    def _times(self) -> Iterator[CheckFinding]:
        own = [each.seconds - each.model_seconds for rollouts in self._seen.values() for each in rollouts]
        longest_s, limit_s = max(own), self._config.explorer.max_timeout
        said = f"the longest rollout took {longest_s:.3g} s without the model, its deadline is {limit_s:g} s"
        is_long = longest_s > limit_s / 2
        way_out = "; raise explorer.max_timeout or --timeout, or make the environment faster"
        yield CheckFinding("timeouts", "warning" if is_long else "ok", said + way_out * is_long)

    def _twice(self) -> list[Task]:
        return [dataclasses.replace(task, repeat_times=2) for task in self._tasks]


def _failure(policy: Named, reason: str, rollouts: Sequence[Rollout], count: int) -> CheckFinding:
    outcome = rollouts[0].outcome
    names: Mapping[str, str] = {FAILED: "rollouts", TIMED_OUT: "timeouts", REJECTED: "rewards"}
    # A scorer that says that it cannot score is counted in a run, and a conversation may outgrow a model.
    is_mild = reason.startswith("reward:") or TOO_LONG in reason
    text = f"{policy.name}: {len(rollouts)} of {count} {outcome}: {reason}"
    return CheckFinding(names[outcome], "warning" if is_mild else "error", text)


def _compared(check: str, apart: Sequence[str], *, of: int, way_out: str, ok: str) -> list[CheckFinding]:
    if not apart:
        return [CheckFinding(check, "ok", ok)]
    return [CheckFinding(check, "error", f"{len(apart)} of {of} rollouts differ; first: {apart[0]}; {way_out}")]
