"""Where a rollout spends its time.

VizTracer, if it is installed, writes a page with every call. Otherwise the stacks of all threads are looked at every
few milliseconds, and the part that belongs to the workflow is counted by function and line.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from trinity.utils.packages import is_installed

INTERVAL_S = 0.002
MAX_LINES = 40
PAGE = ".html"


def profile_file(place: Path) -> Path:
    """Return the file of a profile: a page with VizTracer, else a text.

    Args:
        place: the file without its ending.
    """
    return place.with_name(place.name + (PAGE if is_installed("viztracer") else ".txt"))


@contextmanager
def profiled(place: Path, classes: Iterable[Any]) -> Iterator[Path]:
    """Profile the block; give the file that is there afterwards.

    Args:
        place: the file without its ending.
        classes: workflow and reward function, whose calls count where VizTracer is not installed.
    """
    file = profile_file(place)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == PAGE:
        from viztracer import VizTracer

        with VizTracer(output_file=str(file), verbose=0):
            yield file
        return
    sampler = StackSampler(classes)
    sampler.start()
    try:
        yield file
    finally:
        file.write_text(sampler.stop(), encoding="utf-8")


class StackSampler:
    """Looks at the stacks of all threads.

    Args:
        classes: whose calls are counted; a stack without one of them is another's.
    """

    def __init__(self, classes: Iterable[Any]) -> None:
        self._codes = {code for each in classes for code in _codes(each)}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="stack-sampler", daemon=True)
        self._all = 0
        self._within: Counter[str] = Counter()
        self._at: Counter[str] = Counter()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> str:
        """End; return the counts as text."""
        self._stopped.set()
        self._thread.join()
        lines = [
            f"{self._all} samples of the running code of the workflow, one every {INTERVAL_S * 1000:g} ms; time in "
            "which it awaits something is not in them. Install viztracer for a page with every call.",
            "",
            "share of samples    function (with what it calls)",
            *self._table(self._within),
            "",
            "share of samples    line (alone)",
            *self._table(self._at),
        ]
        return "\n".join(lines) + "\n"

    def _table(self, counts: Counter[str]) -> list[str]:
        return [f"{count / max(self._all, 1):18.1%}  {place}" for place, count in counts.most_common(MAX_LINES)]

    def _look(self) -> None:
        own = threading.get_ident()
        while not self._stopped.wait(INTERVAL_S):
            for number, frame in sys._current_frames().items():
                if number != own:
                    self._count(frame)

    def _count(self, innermost: FrameType) -> None:
        frame: FrameType | None = innermost
        stack: list[FrameType] = []
        depth = 0
        while frame is not None:
            stack.append(frame)
            if frame.f_code in self._codes:
                depth = len(stack)
            frame = frame.f_back
        if not depth:
            return
        self._all += 1
        self._at[f"{innermost.f_code.co_filename}:{innermost.f_lineno} in {innermost.f_code.co_qualname}"] += 1
        named = {f"{each.f_code.co_qualname} ({each.f_code.co_filename})" for each in stack[:depth]}
        self._within.update(named)


def _codes(given: Any) -> Iterator[CodeType]:
    """Yield the code of a function, or of the methods of a class."""
    if inspect.isfunction(given):
        yield inspect.unwrap(given).__code__
    elif isinstance(given, type):
        for base in given.__mro__:
            yield from (value.__code__ for value in vars(base).values() if inspect.isfunction(value))
