"""Calls to stores with a deadline each, tried again where that may help."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from trinity.common.errors import ConfigError
from trinity.utils.log import get_logger
from trinity.utils.remote.errors import Changed, reason, refusal, system_cause, unreachable

T = TypeVar("T")

TIMEOUT_ENV_VAR = "TRINITY_REMOTE_TIMEOUT"
_logger = get_logger("remote")


def default_timeout_s() -> float:
    """Return how long one call may take, in seconds.

    Raises:
        ConfigError: the environment variable holds no positive number (E1302).
    """
    text = os.environ.get(TIMEOUT_ENV_VAR, "120")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(
            f"{TIMEOUT_ENV_VAR} must be a number of seconds above 0, got {text!r}; unset it for 120", code="E1302"
        )
    return value


@dataclass(frozen=True)
class Patience:
    """How long and how often a store is asked.

    Attributes:
        timeout_s: longest wait for one answer.
        attempts: tries without progress before it is given up.
        pause_s: pause before the second try; each further one is twice as long, at most 30 s.
    """

    timeout_s: float = field(default_factory=default_timeout_s)
    attempts: int = 5
    pause_s: float = 1.0

    def call(self, what: str, ask: Callable[[], T]) -> T:
        """Return what `ask` returns.

        Args:
            what: the address, as it is shown.
            ask: may be called several times.

        Raises:
            AddressError: it cannot be fetched, or does not answer.
        """
        for number in range(1, self.attempts + 1):
            try:
                return answered(ask, self.timeout_s)
            except Exception as error:  # noqa: BLE001 - the clients of stores have no common class of errors
                self.failed(what, error, number)
        raise AssertionError("the last failure is raised")

    def failed(self, what: str, error: Exception, number: int) -> None:
        """Pause after try `number` failed, from 1.

        Raises:
            AddressError: trying again does not help, or it was the last try.
        """
        if isinstance(error, Changed):
            raise error
        known = refusal(error, what)
        if known is not None:
            raise known from error
        if number >= self.attempts:
            raise unreachable(what, error, attempts=number) from error
        pause = min(self.pause_s * 2 ** (number - 1), 30.0)
        _logger.warning("%s: %s; trying again in %g s", what, reason(system_cause(error)), pause)
        time.sleep(pause)


def answered(ask: Callable[[], T], timeout_s: float) -> T:
    """Return what `ask` returns within `timeout_s`.

    It runs in a daemon thread, so that a client that never answers does not keep the process alive.

    Raises:
        TimeoutError: it did not return in time.
    """
    answer: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            answer.append(ask())
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True, name="remote")
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TimeoutError(f"no answer in {timeout_s:g} s ({TIMEOUT_ENV_VAR} says how long)")
    if failure:
        raise failure[0]
    return answer[0]
