"""What is told of the standard error of a process that has ended: written by real processes that end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from tests.runtime.test_contract import started
from trinity.runtime.base import ActorDiedError
from trinity.runtime.last_words import told_by
from trinity.runtime.process import ProcessRuntime

TOLD = "; its last line on stderr: "
WARNS_LATER = """
import atexit, sys, warnings
atexit.register(lambda: warnings.warn("resource_tracker: there appear to be 2 leaked objects"))
atexit.register(lambda: print("[W1122 ProcessGroup.cpp:1] destroyed without a word", file=sys.stderr))
"""


class Ends:
    """Ends its process as a program does whose text it is given."""

    def end(self, text: str) -> None:
        done = subprocess.run([sys.executable, "-c", text], stderr=subprocess.PIPE, text=True, timeout=60)
        sys.stderr.write(done.stderr)
        sys.stderr.flush()
        os._exit(3)


PROGRAMS = {
    "KeyError: 'the cause'": WARNS_LATER + "raise KeyError('the cause')",
    "ValueError: outer": WARNS_LATER + "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('outer')",
    "Fatal Python error: Aborted": "import faulthandler, os; faulthandler.enable(); os.abort()",
    "no room": WARNS_LATER + "sys.exit('no room')",
    "terminate called": "import os, sys; print('terminate called', file=sys.stderr, flush=True); os._exit(1)",
}


@pytest.mark.parametrize("line", PROGRAMS)
def test_the_error_is_told_whatever_libraries_write_after_it(line: str) -> None:
    async def main() -> None:
        async with started(ProcessRuntime()) as runtime:
            part = await runtime.start(Ends, name="part")
            with pytest.raises(ActorDiedError) as dead:
                await part.end(PROGRAMS[line])
            assert str(dead.value).endswith(f"{TOLD}{line}"), dead.value

    asyncio.run(main())


def test_a_traceback_behind_the_words_of_a_logger_is_found() -> None:
    prefix = "(EngineCore pid=12) ERROR 11-22 09:00:00 [core.py:7] "
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    g()", "OSError: no space", ""]
    text = [*(prefix + line for line in lines), "a.py:3: UserWarning: leaked", "  warnings.warn(", "INFO it ends"]
    assert told_by(text) == f"{TOLD}OSError: no space"


def test_where_all_is_warnings_the_last_one_is_told_and_nothing_of_nothing() -> None:
    assert (
        told_by(["a.py:1: UserWarning: one", "", "a.py:2: FutureWarning: two"]) == f"{TOLD}a.py:2: FutureWarning: two"
    )
    assert told_by(["it begins", "a.py:1: UserWarning: one", "  warnings.warn('one')"]) == f"{TOLD}it begins"
    assert told_by([]) == told_by(["", " "]) == ""
