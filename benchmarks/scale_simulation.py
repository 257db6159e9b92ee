"""A run on many engines as discrete events: which engine answers, who waits for whom, how old what is trained is.

The decisions are the product's own functions (`choose_engine`, `PrefixTable`, `OverRollout`, `FixedSchedule`,
`DynamicSchedule`, `UntrainedRollouts`, `OpenTasks`); only time is simulated. A runner does all rollouts of one task as
one request of `repeat_times` samples, each of which takes as long as a draw from the latency distribution. A sample
waits on its engine while all of the engine's slots are taken.

What is measured is the time between two training steps in the middle of the run: `start` steps before and `end` after
are left out.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from trinity.buffer.store.staleness import StalenessBound, UntrainedRollouts
from trinity.common.constants import SyncStyle
from trinity.engine.router.policy import PrefixTable, choose_engine
from trinity.explorer.open_tasks import Name, OpenTasks
from trinity.explorer.pacing import OverRollout
from trinity.synchronizer.schedule import DynamicSchedule, FixedSchedule


@dataclass(frozen=True)
class Plan:
    """What is simulated.

    Attributes:
        style: of `synchronizer.sync_style`; in `fully_async` several batches are under way at once.
        engines: number of engines.
        slots: samples that an engine computes at once.
        runners_per_engine: `explorer.runner_per_model`.
        batch_size: tasks of an explore step.
        repeat_times: rollouts of a task.
        start: training steps before those that are measured.
        steps: training steps that are measured.
        end: explore steps after those.
        train_s: seconds of a training step.
        sync_s: seconds in which the engines take new weights and begin nothing; samples under way stand still where
            `in_flight`.
        offset: `synchronizer.sync_offset` of style fixed.
        interval: explore steps between two questions of style dynamic_by_explorer.
        max_staleness: bound of the styles dynamic_by_trainer and fully_async.
        max_inflight: batches under way in style fully_async.
        in_flight: `synchronizer.update_in_flight`: tasks begin one by one, samples continue across updates.
        over_rollout: which tasks of a batch are not waited for.
        seed: of the draws.
    """

    style: str = "fixed"
    engines: int = 1024
    slots: int = 8
    runners_per_engine: int = 2
    batch_size: int = 2048
    repeat_times: int = 8
    start: int = 10
    steps: int = 50
    end: int = 5
    train_s: float = 60.0
    sync_s: float = 5.0
    offset: int = 0
    interval: int = 1
    max_staleness: int = 1
    max_inflight: int = 2
    in_flight: bool = False
    over_rollout: OverRollout = OverRollout(0.0, 0.0)
    seed: int = 1

    @property
    def explore_steps(self) -> int:
        """Explore steps of the whole run."""
        return self.start + self.steps + self.end


@dataclass
class Outcome:
    """What came of the steps that are measured.

    Attributes:
        wall_s: simulated seconds.
        engine_frac: share of the engines' slots that computed samples which were kept.
        wasted_frac: share that computed samples which were abandoned.
        weights_frac: share of the time in which the engines took weights.
        trainer_frac: share of the time in which the trainer trained.
        staleness: of every trained task: training steps between the weights that it began with and those that were
            trained.
        tasks_lost: tasks that were abandoned.
    """

    wall_s: float = 0.0
    engine_frac: float = 0.0
    wasted_frac: float = 0.0
    weights_frac: float = 0.0
    trainer_frac: float = 0.0
    staleness: list[int] = field(default_factory=list)
    tasks_lost: int = 0


@dataclass
class _Batch:
    step: int
    version: int
    open: dict[int, int]
    done: int = 0
    is_over: bool = False
    given_out: set[int] = field(default_factory=set)
    samples: list[_Sample] = field(default_factory=list)


@dataclass
class _Sample:
    batch: _Batch
    task: int
    engine: int
    seconds: float
    began: float | None = None
    paused_s: float = 0.0
    is_ended: bool = False


class Simulation:
    """One run.

    Args:
        plan: what is simulated.
        draw: returns the seconds of a sample.
    """

    def __init__(self, plan: Plan, draw: Callable[[random.Random], float]) -> None:
        self.plan = plan
        self._draw = draw
        self._random = random.Random(plan.seed)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._loads = dict.fromkeys(range(plan.engines), 0.0)
        self._busy = [0] * plan.engines
        self._computing = 0
        self._waiting: list[deque[_Sample]] = [deque() for _ in range(plan.engines)]
        self._prefixes = PrefixTable()
        self._tasks: deque[tuple[_Batch, int]] = deque()
        self._free_runners = plan.engines * plan.runners_per_engine
        self._paused_until = self._all_pauses_s = 0.0
        self._explored = self._begun = 0
        self._version = self._trained = self._published = 0
        self._is_training = self._is_asked = False
        self._answered = 0
        self._ready: deque[list[int]] = deque()  # the version of each task of a finished batch
        self._finished: dict[int, list[int]] = {}
        self._inflight = 0
        self._open = OpenTasks()
        self._versions: dict[Name, int] = {}
        self._schedule = FixedSchedule(offset=plan.offset)
        self._asking = DynamicSchedule(SyncStyle.DYNAMIC_BY_EXPLORER, explorer_interval=plan.interval)
        self._computed_s = self._wasted_s = self._trained_s = self._paused_s = self._measured_s = 0.0
        self.outcome = Outcome()

    @property
    def _is_measured(self) -> bool:
        return 0 <= self._trained - self.plan.start < self.plan.steps

    def run(self) -> Outcome:
        """Simulate to the last training step that is measured; return what came of it."""
        self._explore()
        while self._events and self._trained < self.plan.start + self.plan.steps:
            when, _, event = heapq.heappop(self._events)
            if self._is_measured:
                self._measure(when - self._now)
            self._now = when
            event()
        result, wall_s = self.outcome, self._measured_s
        capacity = wall_s * self.plan.engines * self.plan.slots
        result.wall_s, result.trainer_frac = wall_s, self._trained_s / wall_s
        result.wasted_frac, result.weights_frac = self._wasted_s / capacity, self._paused_s / wall_s
        result.engine_frac = self._computed_s / capacity - result.wasted_frac
        return result

    def _measure(self, seconds: float) -> None:
        """Count who is at work until the next event."""
        is_paused = self._now < self._paused_until
        self._measured_s += seconds
        self._computed_s += seconds * self._computing * (not (is_paused and self.plan.in_flight))
        self._paused_s += seconds * is_paused
        self._trained_s += seconds * self._is_training

    def _at(self, when: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, event))

    # ------------------------------------------------------------------ explorer
    def _explore(self) -> None:
        """Begin the next explore step if the style lets it."""
        plan, step = self.plan, self._begun + 1
        if plan.in_flight:
            self._begin_tasks()
            return
        limit = plan.max_inflight if plan.style == "fully_async" else 1
        if self._inflight >= limit or self._begun >= plan.explore_steps:
            return
        version = self._version_for(step)
        if version is None:
            return
        self._take(version)
        self._begun, self._inflight = step, self._inflight + 1
        batch = _Batch(step, self._version, dict.fromkeys(range(plan.batch_size), plan.repeat_times))
        self._tasks.extend((batch, task) for task in range(plan.batch_size))
        self._give_out()
        self._explore()

    def _begin_tasks(self) -> None:
        """Begin tasks one by one, as far as runners and the bound go."""
        plan, tasks = self.plan, self._open
        self._take(self._published)
        bound = StalenessBound(plan.max_staleness, 1, plan.batch_size, plan.max_inflight * plan.batch_size)
        while self._free_runners:
            if not tasks.waiting:
                if tasks.last_number >= plan.explore_steps:
                    return
                tasks.add(plan.batch_size, before={})
            unlogged = len(tasks.running) + len(tasks.done)
            room = self._untrained().room(bound, version=self._version, in_flight=unlogged)
            room = min(room, bound.max_batches - unlogged, self._free_runners, len(tasks.waiting))
            if room <= 0:
                return
            for number, place in (tasks.begin() for _ in range(room)):
                self._tasks.append((_Batch(number, self._version, {place: plan.repeat_times}), place))
            self._give_out()

    def _take(self, version: int) -> None:
        """Let the engines take the weights of `version`, unless they serve it."""
        if version > self._version:
            self._version = version
            self._all_pauses_s += self.plan.sync_s - max(0.0, self._paused_until - self._now)
            self._paused_until = self._now + self.plan.sync_s
            self._at(self._paused_until, self._fill_all)

    def _untrained(self) -> UntrainedRollouts:
        ready = sum(len(versions) for versions in self._ready)
        return UntrainedRollouts(self._trained, claimed=self.plan.batch_size * self._is_training, ready=ready, busy=0)

    def _version_for(self, step: int) -> int | None:
        """Return the version that serves an explore step, or None while it cannot begin."""
        plan = self.plan
        if plan.style == "fixed":
            wanted = self._schedule.version_for(step)
            return wanted if self._published >= wanted else None
        if plan.style == "dynamic_by_explorer":
            if self._answered == step or not self._asking.is_requested_before(step):
                return self._published if self._answered == step else self._version
            self._is_asked = True
            if self._is_training:
                return None
            self._answer(step)
            return self._published
        bound = StalenessBound(plan.max_staleness, plan.batch_size, plan.batch_size, plan.max_inflight)
        required = self._untrained().required_version(bound, in_flight=self._inflight)
        return self._published if self._published >= required else None

    def _answer(self, step: int) -> None:
        """Publish what is trained, as the explorer asked for before `step`."""
        self._published, self._is_asked, self._answered = self._trained, False, step

    def _give_out(self) -> None:
        while self._free_runners and self._tasks:
            batch, task = self._tasks.popleft()
            if batch.is_over:
                continue
            self._free_runners -= 1
            group = f"{batch.step}/{task}"
            engine = choose_engine(self._loads, home=self._prefixes.home(group))
            self._prefixes.note(group, engine)
            batch.given_out.add(task)
            self._loads[engine] += self.plan.repeat_times
            for _ in range(self.plan.repeat_times):
                sample = _Sample(batch, task, engine, self._draw(self._random))
                batch.samples.append(sample)
                self._waiting[engine].append(sample)
            self._fill(engine)

    def _fill_all(self) -> None:
        for engine in range(self.plan.engines):
            self._fill(engine)

    def _fill(self, engine: int) -> None:
        """Let the engine compute what waits, as far as its slots go; it answers nothing while it takes weights."""
        queue = self._waiting[engine]
        while queue and self._busy[engine] < self.plan.slots and self._now >= self._paused_until:
            sample = queue.popleft()
            if sample.is_ended:
                continue
            self._busy[engine] += 1
            self._computing += 1
            sample.began, sample.paused_s = self._now, self._all_pauses_s
            self._at(self._now + sample.seconds, lambda sample=sample: self._end(sample))  # type: ignore[misc]

    def _end(self, sample: _Sample) -> None:
        """Take a finished sample; one of an abandoned task was ended when its batch was."""
        batch = sample.batch
        if sample.is_ended:
            return
        stood_s = self._all_pauses_s - sample.paused_s
        if stood_s and self.plan.in_flight:
            sample.paused_s = self._all_pauses_s
            self._at(self._now + stood_s, lambda: self._end(sample))
            return
        sample.is_ended = True
        self._busy[sample.engine] -= 1
        self._computing -= 1
        self._loads[sample.engine] -= 1
        batch.open[sample.task] -= 1
        if not batch.open[sample.task]:
            del batch.open[sample.task]
            batch.done += 1
            self._free_runners += 1
            if self.plan.in_flight:
                self._end_task((batch.step, sample.task), batch.version)
            else:
                self._give_out()
                self._check(batch)
        self._fill(sample.engine)

    def _end_task(self, name: Name, version: int) -> None:
        """Put a task into the next step, which may then be complete."""
        self._open.end(name)
        self._versions[name] = version
        if self._open.has_step:
            self._ready.append([self._versions.pop(each) for each in self._open.take_step()])
            self._train()
        self._explore()

    def _check(self, batch: _Batch) -> None:
        rule, size = self.plan.over_rollout, self.plan.batch_size
        if not batch.open:
            self._finish(batch)
        elif batch.done == rule.needed(size):
            self._at(self._now + rule.wait_after_min, lambda: self._finish(batch))

    def _finish(self, batch: _Batch) -> None:
        if batch.is_over:
            return
        batch.is_over = True
        self._abandon(batch)
        self._finished[batch.step] = [batch.version] * batch.done
        while self._explored + 1 in self._finished:  # in their order, as the explorer does
            self._explored, self._inflight = self._explored + 1, self._inflight - 1
            self._ready.append(self._finished.pop(self._explored))
        self._train()
        self._explore()

    def _abandon(self, batch: _Batch) -> None:
        """End the samples of tasks that are not waited for, on every engine."""
        touched = set()
        for sample in batch.samples:
            if sample.task not in batch.open:
                continue
            if sample.began is not None and self._is_measured:
                self._wasted_s += min(self._now - sample.began, sample.seconds, self._measured_s)
            if not sample.is_ended:
                sample.is_ended = True
                self._loads[sample.engine] -= 1
                self._busy[sample.engine] -= sample.began is not None
                self._computing -= sample.began is not None
                touched.add(sample.engine)
        self._free_runners += len(batch.given_out & batch.open.keys())
        self.outcome.tasks_lost += len(batch.open) * self._is_measured
        batch.samples.clear()
        self._give_out()
        for engine in touched:
            self._fill(engine)

    # ------------------------------------------------------------------- trainer
    def _train(self) -> None:
        if self._is_training or not self._ready:
            return
        versions = self._ready.popleft()
        self._is_training = True
        if self._is_measured:
            self.outcome.staleness += [self._trained - version for version in versions]
        self._at(self._now + self.plan.train_s, self._trained_step)

    def _trained_step(self) -> None:
        self._is_training = False
        self._trained += 1
        if self.plan.style != "dynamic_by_explorer":
            self._published = self._trained
        elif self._is_asked:
            self._answer(self._begun + 1)
        self._explore()
        self._train()
