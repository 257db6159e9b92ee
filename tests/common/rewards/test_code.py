"""Programs of a model: what they may not do is refused, what happens to them is typed, and their tests are rewards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.common.rewards.test_sandbox import LATEST_KILL_S
from tests.explorer.test_isolation import is_alive
from trinity.common.rewards import REWARD_FUNCTIONS, RewardError, RewardTimeoutError
from trinity.common.rewards.code_sandbox import MAX_OUTPUT_BYTES, Ran, run_code
from trinity.common.rewards.sandbox import CallFailed, CallTimedOut

ALLOWED = {
    "reads and writes": ("print(int(input()) + 1)", "42\n"),
    "threads": ("import threading as t; x = [t.Thread(target=print) for _ in '12']\nfor y in x: y.start()", "\n\n"),
    "an event loop": ("import asyncio; asyncio.run(asyncio.sleep(0)); print('ok')", "ok\n"),
    "the library": ("import re, math, heapq, random, decimal, datetime, json; print(math.comb(5, 2))", "10\n"),
    "no variables": ("import os; print(sorted(os.environ))", "['HOME', 'LANG', 'PATH', 'TMPDIR']\n"),
}
REFUSED = {
    "a fork": ("import os; os.fork()", "BlockingIOError"),
    "a command": ("import subprocess; subprocess.run(['/bin/ls'])", "BlockingIOError"),
    "a program in its place": ("import os; os.execv('/bin/ls', ['ls'])", "PermissionError"),
    "memory": ("x = bytearray(1 << 40)", "MemoryError"),
    "the network": ("import socket; socket.create_connection(('127.0.0.1', 9))", "PermissionError"),
    "a file of others": ("print(open('/etc/passwd').read())", "PermissionError"),
    "a folder of others": ("import os; print(os.listdir(OUT))", "PermissionError"),
    "what others run": ("print(open('/proc/self/environ').read())", "PermissionError"),
    "to write": ("open(OUT + '/escaped', 'w')", "PermissionError"),
    "to write where it is": ("open('own', 'w')", "PermissionError"),
    "a folder": ("import os; os.mkdir(OUT + '/escaped')", "PermissionError"),
    "a link": ("import os; os.symlink('/etc', OUT + '/escaped')", "PermissionError"),
    "to remove": ("import os; os.remove(OUT + '/kept')", "PermissionError"),
    "rights": ("import os; os.chmod(OUT + '/kept', 0o777)", "PermissionError"),
    "to kill its parent": ("import os; os.kill(os.getppid(), 9)", "PermissionError"),
    "to kill all": ("import os; os.kill(-1, 9)", "PermissionError"),
    "its limits": ("import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))", "Error"),
}


@pytest.mark.parametrize(("code", "written"), ALLOWED.values(), ids=ALLOWED)
def test_a_program_may_compute(code: str, written: str) -> None:
    outcome = run_code(code, stdin="41\n", timeout_s=60)
    assert outcome == Ran(written, "", 0, is_complete=True)


@pytest.mark.parametrize(("code", "error"), REFUSED.values(), ids=REFUSED)
def test_a_program_may_not_reach_what_is_not_its_own(tmp_path: Path, code: str, error: str) -> None:
    (tmp_path / "kept").write_text("x")
    mode = (tmp_path / "kept").stat().st_mode
    outcome = run_code(f"OUT = {str(tmp_path)!r}\n{code}", timeout_s=60)
    assert isinstance(outcome, Ran) and outcome.status == 1 and not outcome.is_complete
    assert error in outcome.stderr.splitlines()[-1] and not outcome.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["kept"] and (tmp_path / "kept").stat().st_mode == mode


ENDLESS = [
    "while True: pass",
    "sum(range(10**15))",
    "import time; time.sleep(600)",
    "import os\nwhile True: os.write(1, b'x'), sum(range(200))",  # there is always more to read
    "import os; os.close(1); os.close(2)\nwhile True: pass",
]


@pytest.mark.parametrize("code", ENDLESS)
def test_a_program_without_an_end_is_killed_at_its_deadline(code: str) -> None:
    outcome = run_code(code, timeout_s=1.0)
    assert isinstance(outcome, CallTimedOut) and outcome.after_s == 1.0 and outcome.late_s <= LATEST_KILL_S


def test_what_a_program_leaves_behind_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = run_code("import os; print(os.getpid(), os.getcwd(), os.listdir())", timeout_s=60)
    assert isinstance(outcome, Ran)
    pid, folder, *found = outcome.stdout.split()
    assert folder.startswith(str(tmp_path)) and found == ["['stdin']"], "it cannot read its check"
    assert not is_alive(int(pid)) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("code", "status"), [("import sys; sys.exit(3)", 3), ("import os; os.abort()", -6), ("raise ValueError(1)", 1)]
)
def test_an_end_has_its_status(code: str, status: int) -> None:
    outcome = run_code(code, timeout_s=60)
    assert isinstance(outcome, Ran) and (outcome.status, outcome.is_complete) == (status, False)


def test_output_without_end_is_no_outcome_of_a_program() -> None:
    outcome = run_code("while True: print('x' * 100_000)", timeout_s=60)
    assert outcome == CallFailed(f"the program wrote more than {MAX_OUTPUT_BYTES} bytes")


def accuracy(program: str, truth: object, **args: float) -> float:
    reward = REWARD_FUNCTIONS.get("code_reward")(**{"timeout_s": 60.0, **args})
    return float(reward(response=f"I think:\n```python\n{program}\n```\n", truth=truth)["accuracy"])


SUMS = '{"inputs": ["1 2", "3 4"], "outputs": ["3", "7\\n"]}'
CHECKS = {"tests": ["assert add(1, 2) == 3", "assert add(1, 2) == 4"]}


def test_the_share_of_passed_cases_is_the_reward() -> None:
    assert accuracy("print(sum(map(int, input().split())))", SUMS) == 1.0
    assert accuracy("input(); print(3)", SUMS) == 0.5
    assert accuracy("def add(a, b):\n    return a + b", CHECKS) == 0.5
    assert REWARD_FUNCTIONS.get("code_reward")()(response="3", truth=SUMS) == {"accuracy": 0.0}


@pytest.mark.parametrize("leave", ["import os; os._exit(0)", "raise SystemExit", "import os; os.write(3, b'1')"])
def test_a_program_that_leaves_before_its_check_has_not_passed(leave: str) -> None:
    assert accuracy(leave, CHECKS) == 0.0


MARK = "feed" * 8
FOUND = """import gc, os, re, sys
def told(things):
    seen, left = set(), list(things)
    while left:
        thing = left.pop()
        if id(thing) in seen: continue
        seen.add(id(thing))
        if isinstance(thing, (str, bytes, bytearray)):
            text = thing if isinstance(thing, str) else bytes(thing).decode("latin-1")
            for mark in re.findall("(?:feed){8}", text)[:1]:
                for fd in range(3, 64):
                    try: os.write(fd, mark.encode())
                    except OSError: pass
                os._exit(0)
        else: left += gc.get_referents(thing)
def read(path):
    try: return os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1 << 20)
    except OSError: return b""
def frames(frame):
    while frame:
        yield from (frame, frame.f_locals, frame.f_globals, frame.f_builtins)
        frame = frame.f_back
"""
FORGED = {
    "frames": "told(frames(sys._getframe()))",
    "frames of a traceback": "try: 1 / 0\nexcept Exception as e: told(frames(e.__traceback__.tb_frame))",
    "frames of threads": "told(sys._current_frames().values())",
    "all objects": "told(gc.get_objects())",
    "objects at the end": "import atexit; atexit.register(lambda: (told(gc.get_objects()), os._exit(0)))\n1 / 0",
    "modules": "told(map(vars, sys.modules.values())); told([sys.argv, sys.orig_argv, dict(os.environ)])",
    "open files": "for n in range(64):\n  try: os.lseek(n, 0, 0); told([os.read(n, 1 << 20)])\n  except OSError: pass",
    "own files": "told(read(f'/proc/self/{name}') for name in ('mem', 'environ', 'cmdline', 'maps', 'stat'))",
    "files by number": "told(read(f'/proc/self/fd/{n}') for n in range(64))",
    "its folder": "told(read(name) for name in os.listdir())",
    "iterators": """for thing in gc.get_objects():
    if hasattr(thing, "__next__") and type(thing).__module__ in ("builtins", "itertools"):
        try: told([next(thing)])
        except Exception: pass""",
    "all that can be told": "for n in range(3, 64):\n  try: os.write(n, b'1' * 99)\n  except OSError: pass",
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_program_does_not_find_what_says_that_its_check_has_passed(
    forge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: MARK)  # so that the program knows what it looks for
    outcome = run_code(f"{FOUND}{forge}\nos._exit(0)", check="1 / 0", timeout_s=60)
    assert isinstance(outcome, Ran) and outcome.status == 0 and not outcome.is_complete


REPLACED = {
    "errors": "import builtins; builtins.AssertionError = AssertionError = type('Nothing', (), {})",
    "built-ins": "__builtins__ = {}",
    "the end": "import sys; sys.exit = exit = lambda *_: None; sys.excepthook = lambda *_: None",
    "the end by a hook": "import os, sys; sys.excepthook = lambda *_: os._exit(0)",
    "the end by atexit": "import atexit, os; atexit.register(os._exit, 0)",
    "compilers": "import builtins; builtins.exec = builtins.compile = builtins.eval = lambda *_, **__: None",
    "writers": "import os, sys; os.write = os.read = lambda *_: b''; sys.stdout = sys.stderr = None",
    "the worker": "import sys\nfor n in list(g := sys._getframe(1).f_globals): g[n] = lambda *_, **__: None",
    "all of its frames": "import sys\nf = sys._getframe(1)\nwhile f: f.f_locals.clear(); f = f.f_back",
    "a thread": "import os, threading, time; threading.Thread(target=lambda: (time.sleep(0.2), os._exit(0))).start()",
}


@pytest.mark.parametrize("program", REPLACED.values(), ids=REPLACED)
def test_what_a_program_replaces_does_not_pass_its_check(program: str) -> None:
    wrong = "def add(a, b): return 5\n"
    assert accuracy(wrong + program, CHECKS) == 0.0
    assert accuracy(wrong.replace("5", "3") + program, {"tests": ["assert add(1, 2) == 3", "1 / 0"]}) <= 0.5


def test_a_program_has_no_files_but_its_own_and_a_check_may_be_long() -> None:
    listed = "import os, sys; print([n for n in range(64) if os.path.exists(f'/dev/fd/{n}') or not fails(n)])"
    fails = "import os\ndef fails(n):\n    try: os.fstat(n)\n    except OSError: return True\n"
    outcome = run_code(fails + listed, check="#" * 1_000_000 + "\nassert not fails(0), 'é'", timeout_s=60)
    assert isinstance(outcome, Ran) and outcome.is_complete and len(outcome.stdout.split()) == 4, "and one to be told"


def test_what_has_no_score_is_no_reward_of_zero() -> None:
    with pytest.raises(RewardTimeoutError, match=r"E5112.*timeout_s = 1 s.*reward_fn_args.timeout_score"):
        accuracy("while True: pass", SUMS, timeout_s=1.0)
    assert accuracy("while True: pass", SUMS, timeout_s=1.0, timeout_score=0.25) == 0.25
    with pytest.raises(RewardError, match="E5113.*wrote more than"):
        accuracy("while True: print('x' * 100_000)", SUMS)
    for truth in (None, "3", "[]", {}, {"inputs": ["1"], "outputs": []}, {"tests": []}, {"tests": "assert 1"}):
        with pytest.raises(RewardError, match=r"E5133.*the truth must be like"):
            accuracy("print(3)", truth)
