"""Health checks of vLLM's processes, which detect lack of progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from trinity.utils.log import get_logger

if TYPE_CHECKING:
    from trinity.engine.vllm.state import Started

logger = get_logger("explorer")

PROBE_KEY = "explorer.engine_probe_timeout"
LOOKS = 5
"""Checks of the processes within `answer_s`: if this process itself was suspended, a single check means nothing."""
STILL_FRAC = 0.01
"""Share of a processor below which a sleeping process makes no progress."""


@dataclass(frozen=True)
class ProbeTimes:
    """Interval and deadlines of the probes, in seconds.

    Attributes:
        interval_s: time between two probes.
        answer_s: longest wait for a process that makes no progress, and time between two log lines about one that
            computes.
        step_s: longest wait for a process that computes.
    """

    interval_s: float = 5.0
    answer_s: float = 10.0
    step_s: float = 1800.0


class GiveUp(Protocol):
    """Marks an engine as unusable."""

    def __call__(self, message: str, *, code: str, cause: BaseException | None) -> None:
        """Fail all waiting calls with a message, an error code and the cause."""


class CoreWatch:
    """Probes vLLM's processes until a probe fails.

    A process answers between two steps and after a weight update, so a late answer may mean that it computes. A process
    that uses no processor time and waits for no disk has no step in progress that could end.

        probe -- answer in time --> wait `interval_s` --> probe
          |-- no progress for `answer_s` -----> give up
          |-- computes for `step_s` ----------> give up (a warning every `answer_s` until then)
          +-- error, or a process has ended --> give up

    Args:
        ask: returns the answers of all processes that compute.
        pids: ids of these processes, and of those that started them.
        times: interval and deadlines.
        waiting: describes what waits for vLLM.
        give_up: called once with the reason after a failed probe.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[object]],
        pids: Iterable[int],
        times: ProbeTimes,
        *,
        waiting: Callable[[], str],
        give_up: GiveUp,
    ) -> None:
        own = {each.pid: each for each in psutil.Process().children(recursive=True)}
        self._processes = [own[pid] for pid in sorted(set(pids)) if pid in own]
        self._ask = ask
        self._times = times
        self._waiting = waiting
        self._give_up = give_up

    async def run(self) -> None:
        """Probe until a probe fails."""
        reason: str | None = None
        code = "E5663"
        cause: BaseException | None = None
        while reason is None:
            await asyncio.sleep(self._times.interval_s)
            asked = asyncio.ensure_future(self._ask())
            try:
                reason = await self._late(asked)
            # Any error of the probe means that the process has failed.
            except Exception as error:  # noqa: BLE001
                reason, code, cause = f"vLLM's process has ended or failed: {error}", "E5660", error
            finally:
                asked.cancel()
        self._give_up(reason, code=code, cause=cause)

    async def _late(self, asked: asyncio.Future[object]) -> str | None:
        """Return why no answer will come, or None once it has come."""
        look_s, looks, still = self._times.answer_s / LOOKS, 0, dict.fromkeys(self._processes, 0)
        used_s = _used(self._processes)
        while True:
            done, _ = await asyncio.wait((asked,), timeout=look_s)
            if done:
                asked.result()
                return None
            looks, now_s = looks + 1, _used(self._processes)
            for each in still:
                stands = now_s[each] - used_s[each] < STILL_FRAC * look_s and _sleeps(each)
                still[each] = still[each] + 1 if stands else 0
            used_s, late_s = now_s, looks * look_s
            stuck = [str(each.pid) for each, count in still.items() if count >= LOOKS]
            if self._processes and stuck:
                return self._told(late_s, f"process {', '.join(stuck)} stands still")
            if late_s >= self._times.step_s:
                return self._told(late_s, f"that is longer than a request may take ({self._times.step_s:g} s)")
            if looks % LOOKS == 0:
                logger.warning("%s", self._told(late_s, f"it computes; given up after {self._times.step_s:g} s"))

    def _told(self, late_s: float, why: str) -> str:
        limit = f"{PROBE_KEY} is {self._times.answer_s:g} s"
        return f"vLLM has not answered for {late_s:g} s ({limit}), {self._waiting()}: {why}"


def watch_over(started: Started, workers: Iterable[Mapping[str, Any]], times: ProbeTimes, give_up: GiveUp) -> None:
    """Begin to watch the processes of a running vLLM, on its loop.

    Args:
        started: the running vLLM.
        workers: facts that its workers reported.
        times: interval and deadlines of the probes.
        give_up: marks its engine as unusable.
    """
    pids = [worker[name] for worker in workers for name in ("pid", "starter")]
    watch = CoreWatch(
        lambda: started.llm.collective_rpc("trinity_answer"), pids, times, waiting=started.waiting, give_up=give_up
    )
    started.watch = started.loop.create_task(watch.run())


def _used(processes: Sequence[psutil.Process]) -> dict[psutil.Process, float]:
    """Return processor seconds by process, descendants included; 0 if ended."""
    return {each: _seconds(each) for each in processes}


def _seconds(process: psutil.Process) -> float:
    total = 0.0
    try:
        for each in (process, *process.children(recursive=True)):
            times = each.cpu_times()
            total += times.user + times.system
    except psutil.Error:
        return total
    return total


def _sleeps(process: psutil.Process) -> bool:
    """Return whether a process is idle: not running or waiting for a disk."""
    try:
        return process.status() not in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
    except psutil.Error:
        return False  # it has ended, which makes the probe fail
