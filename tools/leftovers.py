"""What runs leave behind on the machine: processes, sockets, shared memory, temporary files, Ray's sessions.

Every mode of a run is ended in every way, and what its processes had made is looked for afterwards; after SIGKILL, once
the next start has ended. From the root of the repository: `python -m tools.leftovers [--modes ...] [--ends ...]`, about
a minute a line where vLLM or Ray take part. The status is 0 if nothing is left anywhere.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.e2e.tiny_run import TinyRun
from tests.tiny import tiny_model

MARK = "TRINITY_LEFTOVERS_MARK"
SHARED_MEMORY = Path("/dev/shm")
LOOK_EVERY_S = 0.1
GONE_S = 30.0
"""Seconds that processes have to end after the run's own has."""
WAIT_S = 400.0

VLLM = {"deterministic": False, "explorer__rollout_model__engine_type": "vllm"}
MODES: dict[str, dict[str, Any]] = {
    "local": {},
    "engines": {"explorer__rollout_model__engine_num": 2},
    "ranks": {"trainer__num_workers": 2},
    "vllm": VLLM,
    "vllm-2": VLLM | {"explorer__rollout_model__engine_num": 2},
    "vllm-tp2": VLLM | {"explorer__rollout_model__tensor_parallel_size": 2},
    "ray": {"cluster__runtime": "ray", "cluster__ray_address": "local"},
    "ray-vllm": VLLM | {"cluster__runtime": "ray", "cluster__ray_address": "local"},
}

Send = Callable[[int], None]


def _to_group(number: signal.Signals) -> Send:
    return lambda pid: os.killpg(pid, number)


ENDS: dict[str, tuple[Send | None, set[int]]] = {
    "normal": (None, {0}),
    "ctrl-c": (_to_group(signal.SIGINT), {130}),
    "term": (_to_group(signal.SIGTERM), {143}),
    "kill": (lambda pid: os.kill(pid, signal.SIGKILL), {-9}),
}
"""What is sent to the run, which leads a group as one of a terminal does, and the exit statuses that follow."""


@dataclass
class Traces:
    """What marked processes have made on this machine; a thread looks at them until the `with` block ends.

    Attributes:
        folder: for temporary files, which Ray and vLLM use too; its path is short, because sockets lie in it.
        mark: value of an environment variable by which a process is known, whoever its parent is.
        shared: files in shared memory that a marked process has had open or mapped.
    """

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="t", dir="/tmp")))
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    shared: set[Path] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    def environment(self) -> dict[str, str]:
        """Return what the marked processes have in their environment."""
        return {MARK: self.mark, "TMPDIR": str(self.folder)}

    def __enter__(self) -> Traces:
        threading.Thread(target=self._look, name="traces", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            for process in self.processes():
                self.shared |= _in_shared_memory(process.pid)

    def processes(self) -> list[psutil.Process]:
        """Return the marked processes that are alive."""
        return [process for process in psutil.process_iter() if self._is_marked(process)]

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
            return f"{MARK}={self.mark}".encode() in environment and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error):
            return False

    def left(self) -> list[str]:
        """Return what is there now: processes that do not end in `GONE_S` seconds, files and shared memory."""
        end = time.monotonic() + GONE_S
        while (alive := self.processes()) and time.monotonic() < end:
            time.sleep(LOOK_EVERY_S)
        found = [f"process {_command(process)}" for process in alive]
        found += [f"shared memory {file}" for file in sorted(self.shared) if file.exists()]
        return found + sorted(f"file {_described(file)}" for file in self.folder.rglob("*") if not file.is_dir())


def _in_shared_memory(pid: int) -> set[Path]:
    places = set()
    try:
        places |= {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
        places |= {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        pass  # it ended meanwhile
    return {Path(place) for place in places if place.startswith(f"{SHARED_MEMORY}/") and "(deleted)" not in place}


def _command(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:80]}"
    except psutil.Error:
        return str(process.pid)


def _described(file: Path) -> str:
    try:
        return f"{file}{' (socket)' if file.is_socket() else ''}"
    except OSError:
        return str(file)


def make_run(folder: Path, mode: str, *, steps: int) -> TinyRun:
    """Return a tiny run of `steps` steps in a mode."""
    run = TinyRun(folder)
    tiny_model(folder / "model", "qwen2", seed=1, scale=3.0, head_dim=32, hidden_size=128, tie_word_embeddings=False)
    return run.change(buffer__total_steps=steps, trainer__save_interval=1000, **MODES[mode])


def ended(run: TinyRun, traces: Traces, end: str, *, log: Path) -> int:
    """Start the run, end it as `end` says after its first training step, and return its exit status."""
    send, _ = ENDS[end]
    with log.open("a") as output:
        process = run.start(environment=traces.environment(), output=output)
        try:
            if send is not None:
                _until_trained(run, process, log)
                send(process.pid)
            return process.wait(timeout=WAIT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _until_trained(run: TinyRun, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and process.poll() is None:
        if (run.job / "metrics.jsonl").exists() and run.lines("trainer"):
            return
        time.sleep(LOOK_EVERY_S)
    raise AssertionError(f"no training step (status {process.poll()}):\n{log.read_text()[-4000:]}")


def measure(mode: str, end: str, folder: Path) -> tuple[int, list[str], str]:
    """Return exit status, what is left, and the output of a run that ended so; after SIGKILL that of the next start."""
    is_killed, log, before = end == "kill", folder / "output.txt", 0
    with Traces() as traces:
        status = ended(make_run(folder, mode, steps=2 if end == "normal" else 100_000), traces, end, log=log)
        if is_killed:
            traces.left()
            before = log.stat().st_size  # nobody can keep Python's tracker of a killed process from complaining
            run = make_run(folder, mode, steps=2)
            again = ended(run, traces, "normal", log=log)
            status = status if again == 0 else again
        left = traces.left()
    for process in traces.processes():
        process.kill()
    for file in traces.shared:
        file.unlink(missing_ok=True)
    subprocess.run(["rm", "-rf", str(traces.folder)], check=True)
    return status, left, log.read_bytes()[before:].decode()


def main() -> int:
    """Print a line for every mode and end; return 0 if nothing is left and every exit status is as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--ends", nargs="+", choices=ENDS, default=list(ENDS))
    parser.add_argument("--verbose", action="store_true", help="print the runs' last lines too")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run under way is ended too
    is_clean = True
    for mode in arguments.modes:
        for end in arguments.ends:
            with tempfile.TemporaryDirectory(prefix="leftovers-") as folder:
                started = time.monotonic()
                status, left, output = measure(mode, end, Path(folder))
            warned = [line for line in output.splitlines() if "resource_tracker" in line or "Exception ignored" in line]
            left += [f"line {line}" for line in warned]
            is_clean = is_clean and not left and status in ENDS[end][1]
            seconds = time.monotonic() - started
            print(f"{mode:10} {end:8} status {status:4} left {len(left):3} {seconds:6.1f} s", flush=True)
            for each in left[:12]:
                print(f"    {each}", flush=True)
            if arguments.verbose:
                print("\n".join(f"    | {line}" for line in output.splitlines()[-12:]), flush=True)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
