"""A program that tries to reach another process by every way there is, also where Landlock restricts no signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trinity.common.rewards import code_sandbox
from trinity.common.rewards.code_sandbox import Ran, run_code

# Numbers of calls without a function of the C library, on x86-64 and AArch64.
_CALLS = "import platform\ndef of(x86, arm): return x86 if platform.machine() == 'x86_64' else arm\n"
_BEGIN = (
    _CALLS
    + """import ctypes, fcntl, os, resource, signal, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def signal_by(fd):
    fcntl.fcntl(fd, 10, 9)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
read, write = os.pipe()
def written(): os.write(write, b"x"); print("sent")
"""
)
SIGNALS = {
    "kill": "os.kill(VICTIM, 9)",
    "kill of its group": "os.killpg(VICTIM, 9)",
    "tkill": "checked(libc.syscall(of(200, 130), VICTIM, 9))",
    "tgkill": "checked(libc.syscall(of(234, 131), VICTIM, VICTIM, 9))",
    "rt_sigqueueinfo": "checked(libc.syscall(of(129, 138), VICTIM, 9, struct.pack('iii116x', 9, 0, -1)))",
    "rt_tgsigqueueinfo": "checked(libc.syscall(of(297, 240), VICTIM, VICTIM, 9, struct.pack('iii116x', 9, 0, -1)))",
    "pidfd_open": "signal.pidfd_send_signal(os.pidfd_open(VICTIM), 9)",
    "pidfd_send_signal": "checked(libc.syscall(424, read, 9, None, 0))",
    "mq_open": "checked(libc.syscall(of(240, 180), b'm', os.O_CREAT | os.O_RDWR, 0o600, None))",
    "F_SETOWN": "fcntl.fcntl(read, fcntl.F_SETOWN, VICTIM); signal_by(read); written()",
    "F_SETOWN of a group": "fcntl.fcntl(read, fcntl.F_SETOWN, -VICTIM); signal_by(read); written()",
    "F_SETOWN_EX": "fcntl.fcntl(read, 15, struct.pack('ii', 1, VICTIM)); signal_by(read); written()",
    "F_SETOWN in 64 bits": "checked(libc.syscall(of(72, 25), read, ctypes.c_long(1 << 32 | 8), VICTIM))",
    "F_SETSIG": "fcntl.fcntl(read, 10, 9)",
    "F_SETLEASE": "fcntl.fcntl(os.open(os.__file__, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    "F_NOTIFY": "fcntl.fcntl(os.open('/usr/lib', os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)",
    "FIOSETOWN": "one, other = socket.socketpair(); fcntl.ioctl(one, 0x8901, struct.pack('i', VICTIM))",
    "SIOCSPGRP": "one, other = socket.socketpair(); fcntl.ioctl(one, 0x8902, struct.pack('i', VICTIM))",
    "FIOASYNC": "fcntl.ioctl(read, 0x5452, struct.pack('i', 1))",
    "TIOCSCTTY": "fcntl.ioctl(0, 0x540E, 0)",
    "ptrace": "checked(libc.ptrace(16, VICTIM, None, None))",
    "its scheduling": "os.sched_setscheduler(VICTIM, os.SCHED_IDLE, os.sched_param(0))",
    "its scheduling parameters": "os.sched_setparam(VICTIM, os.sched_param(0))",
    "its scheduling attributes": "checked(libc.syscall(of(314, 274), VICTIM, struct.pack('II40x', 48, 5), 0))",
    "its cores": "os.sched_setaffinity(VICTIM, {0})",
    "its priority": "os.setpriority(os.PRIO_PROCESS, VICTIM, 19)",
    "its limits": "resource.prlimit(VICTIM, resource.RLIMIT_CPU, (1, 1))",
}


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user, in a session of its own."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(autouse=True, params=[5, 6])
def landlock(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker with the rules of one version of Landlock; version 6 is the first that restricts signals."""
    real = code_sandbox.WORKER.read_text()
    assert real.count("NEWEST_LANDLOCK = 6\n") == 1
    worker = tmp_path / "worker.py"
    worker.write_text(real.replace("NEWEST_LANDLOCK = 6\n", f"NEWEST_LANDLOCK = {request.param}\n"))
    monkeypatch.setattr(code_sandbox, "WORKER", worker)


@pytest.mark.parametrize("attack", SIGNALS.values(), ids=SIGNALS)
def test_a_program_reaches_no_other_process(attack: str, victim: subprocess.Popen[bytes]) -> None:
    policy = os.sched_getscheduler(victim.pid)
    outcome = run_code(f"{_BEGIN}VICTIM = {victim.pid}\n{attack}", timeout_s=60)
    assert isinstance(outcome, Ran) and outcome.status == 1, outcome
    assert "PermissionError" in outcome.stderr.splitlines()[-1] and not outcome.stdout
    assert victim.poll() is None and os.sched_getscheduler(victim.pid) == policy


def test_a_timer_signals_no_thread_of_another_process(victim: subprocess.Popen[bytes]) -> None:
    """The kernel itself refuses SIGEV_THREAD_ID of a thread that is not of the process."""
    event = "event = struct.pack('qiii44x', 0, 9, 4, VICTIM)\n"
    attack = f"{event}checked(libc.syscall(of(222, 107), 1, event, ctypes.byref(ctypes.c_int())))"
    outcome = run_code(f"{_BEGIN}VICTIM = {victim.pid}\n{attack}", timeout_s=60)
    assert isinstance(outcome, Ran) and "Invalid argument" in outcome.stderr, outcome
    assert victim.poll() is None


def test_a_program_sends_no_datagram_to_another_process() -> None:
    """A pair of datagram sockets could send to the address of any other."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        other.bind(f"\0trinity-test-{os.getpid()}")
        send = f"one, two = socket.socketpair(type=socket.SOCK_DGRAM); one.sendto(b'x', {other.getsockname()!r})"
        outcome = run_code(f"{_BEGIN}{send}", timeout_s=60)
        assert isinstance(outcome, Ran) and "PermissionError" in outcome.stderr.splitlines()[-1], outcome
        with pytest.raises(BlockingIOError):
            other.recv(1)


def test_a_signal_to_itself_and_its_own_files_remain() -> None:
    own = "os.set_blocking(read, False); os.set_inheritable(read, False); print(os.isatty(0), os.dup(read) > 2)"
    outcome = run_code(f"{_BEGIN}{own}\nsignal.signal(10, lambda *_: print('mine'))\nos.kill(os.getpid(), 10)")
    assert outcome == Ran("False True\nmine\n", "", 0, is_complete=True)
    ended = run_code("import os; os.kill(os.getpid(), 15)", timeout_s=60)
    assert isinstance(ended, Ran) and ended.status == -signal.SIGTERM
