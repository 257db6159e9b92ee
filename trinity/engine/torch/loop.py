"""The engine's thread: admission, steps, and other work between steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from trinity.common.errors import EngineError, OutOfMemoryError
from trinity.engine.torch.admission import SlotAdmission
from trinity.engine.torch.batch import RunningBatch
from trinity.engine.torch.memory import explained
from trinity.engine.torch.request import Request
from trinity.utils.log import get_logger

_IDLE_WAIT_S = 1.0
_STOP_WAIT_S = 30.0
_Job = tuple[Callable[[], Any], "Future[Any]"]


class EngineLoop:
    """One daemon thread over one batch; all methods are thread-safe.

    Each turn runs the jobs for between steps, then does one of the following:

        a slot is free and a row is admitted   --> prefill it and draw its first token
        else a row is active                   --> step: one token for each active row
        else (idle)                            --> run the jobs of `when_idle`, which hold back new work until then
    """

    def __init__(self, batch: RunningBatch, admission: SlotAdmission) -> None:
        self.batch = batch
        self.admission = admission
        self.model_version = 0
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        self._open: dict[Request, None] = {}
        self._jobs: deque[_Job] = deque()
        self._idle_jobs: deque[_Job] = deque()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="torch-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def check(self) -> None:
        """Raise if the thread takes no work any more.

        Raises:
            EngineError: it has failed or ended (E5601), or was shut down (E5607).
            OutOfMemoryError: it has failed for lack of memory.
        """
        error = self._refusal()
        if error is None and not self._thread.is_alive():
            error = EngineError("the engine has failed: its thread has ended", code="E5601")
        if error is not None:
            raise error

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; their futures get the samples or an error."""
        with self._changed:
            error = self._refusal()
            if error is None:
                waited_for = [request for request in requests if not request.is_cancelled]
                self._open |= dict.fromkeys(waited_for)
                self.admission.add(waited_for)
                self._changed.notify()
        if error is not None:
            for request in requests:
                request.fail(error)

    def between_steps(self, work: Callable[[], Any]) -> Future[Any]:
        """Run `work` in the thread before the next step; return its future."""
        return self._add_job(self._jobs, work)

    def when_idle(self, work: Callable[[], Any]) -> Future[Any]:
        """Run `work` once no slot holds a row; admit no new work before."""
        return self._add_job(self._idle_jobs, work)

    def join_round(self, participant: str) -> None:
        """Make every deterministic round wait for `participant`."""
        with self._changed:
            self.admission.join(participant)

    def leave_round(self, participant: str) -> None:
        """Stop deterministic rounds from waiting for `participant`."""
        with self._changed:
            self.admission.leave(participant)
            self._changed.notify()

    def waits_in_round(self, participant: str) -> bool:
        """Return whether `participant` has an open request in a round."""
        with self._changed:
            return self.admission.has_open(participant)

    def cancel(self, request: Request) -> None:
        """Drop a request whose caller no longer waits."""
        with self._changed:
            request.is_cancelled = True
            if self._open.pop(request, "absent") is None:
                self.admission.close(request)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread; unfinished requests get an error.

        Raises:
            EngineError: the thread did not end within 30 seconds (E5606).
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_WAIT_S)
            if self._thread.is_alive():
                raise EngineError(f"the engine's thread did not end within {_STOP_WAIT_S:g} s", code="E5606")

    def _add_job(self, jobs: deque[_Job], work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            error = self._refusal()
            if error is None:
                jobs.append((work, future))
                self._changed.notify()
        if error is not None:
            future.set_exception(error)
        return future

    def _refusal(self) -> EngineError | OutOfMemoryError | None:
        if isinstance(self.failure, OutOfMemoryError):
            return OutOfMemoryError(str(self.failure.args[0]))
        if self.failure is not None:
            return EngineError(f"the engine has failed: {self.failure}", code="E5601")
        return EngineError("the engine is shut down", code="E5607") if self._is_stopping else None

    def _run(self) -> None:
        try:
            with torch.no_grad():
                while self._wait_for_work():
                    self._turn()
        # The thread's only catch: every caller must get the error instead of waiting for ever.
        except Exception as error:  # noqa: BLE001
            self._fail(error)
        else:
            self._fail_open(EngineError("the engine was shut down before the request was finished", code="E5607"))
        finally:
            self.batch.clear()

    def _wait_for_work(self) -> bool:
        """Wait for work; return False once the engine is to stop."""
        with self._changed:
            while not self._is_stopping and not self._has_work():
                self._changed.wait(_IDLE_WAIT_S)
            return not self._is_stopping

    def _has_work(self) -> bool:
        active = self.batch.num_active
        return bool(active or self._jobs or self._idle_jobs or self.admission.is_ready(num_active=active))

    def _turn(self) -> None:
        self._run_jobs(self._jobs)
        self.batch.drop_cancelled()
        with self._changed:
            rows = self.admission.take(
                self.batch.num_free, num_active=self.batch.num_active, is_held=bool(self._idle_jobs)
            )
        if rows:
            self.batch.admit(rows, model_version=self.model_version)
        elif self.batch.num_active:
            self.batch.step()
        else:
            self._run_jobs(self._idle_jobs)
        with self._changed:
            for request in [request for request in self._open if request.is_finished]:
                del self._open[request]
                self.admission.close(request)

    def _run_jobs(self, jobs: deque[_Job]) -> None:
        while jobs:
            work, future = jobs.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            # Only the caller knows what a failed job means.
            except Exception as error:  # noqa: BLE001
                future.set_exception(self._explained(error))

    def _fail(self, error: Exception) -> None:
        failure = self._explained(error)
        get_logger("explorer").error("the engine has failed: %s", failure, exc_info=error)
        with self._changed:
            self.failure = failure
        told = failure
        if not isinstance(failure, (EngineError, OutOfMemoryError)):
            told = EngineError(f"the engine has failed: {type(error).__name__}: {error}", code="E5601")
            told.__cause__ = error
        self._fail_open(told)

    def _explained(self, error: Exception) -> Exception:
        batch = self.batch
        return explained(error, batch.decoder, num_slots=batch.num_slots, max_length=batch.max_length)

    def _fail_open(self, error: Exception) -> None:
        with self._changed:
            requests = list(dict.fromkeys([*self._open, *self.admission.drain()]))
            self._open.clear()
            jobs = [*self._jobs, *self._idle_jobs]
            self._jobs.clear()
            self._idle_jobs.clear()
        for request in requests:
            request.fail(error)
        for _, future in jobs:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
