"""Source is parsed in many threads at once."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trinity.utils import syntax
from trinity.utils.syntax import parsed, parsed_expression

SOURCE = Path(syntax.__file__).read_text() * 4


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads that are switched from within the parser: by a garbage collection that runs Python code."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()

    def collected(*_: Any) -> None:
        sum(range(500))

    gc.callbacks.append(collected)
    gc.set_threshold(50)
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


def _fails(parse: Callable[[str], Any], calls: int) -> int:
    """Return how many calls fail, in four threads of unequal depth."""

    def at(depth: int) -> int:
        if depth:
            return at(depth - 1)
        failed = 0
        for _ in range(calls):
            try:
                parse(SOURCE)
            except SystemError:
                failed += 1
        return failed

    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(at, (0, 5, 10, 15)))


@pytest.mark.usefixtures("switching")
def test_threads_parse_at_once() -> None:
    assert _fails(parsed, 40) == 0


@pytest.mark.usefixtures("switching")
def test_it_meets_parsers_elsewhere() -> None:
    """A library in another thread may parse by itself, without the lock."""
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(_fails, lambda source: ast.parse(source), 40)
        assert _fails(parsed, 10) == 0
        other.result()


def test_an_expression_is_one() -> None:
    assert ast.unparse(parsed_expression("1+2*3")) == "1 + 2 * 3"
    for text in ("", "1;2", "a = 1", "pass", "1\n2"):
        with pytest.raises(SyntaxError):
            parsed_expression(text)
