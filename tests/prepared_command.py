"""A program for scripts that tests run in place of `trinity`: what it is told to do a prepared process does.

It hands its words, folder, environment and output to the test, which starts `tests.prepared`'s process, passes signals
on to that, and ends as it does. What it writes to standard error goes to standard output.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tests import prepared

PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys

order = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
held = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
signal.pthread_sigmask(signal.SIG_BLOCK, held)
with socket.socket(socket.AF_UNIX) as test:
    test.connect({place!r})
    socket.send_fds(test, [len(order).to_bytes(8, "big")], [1])
    test.sendall(order)
    pid = int.from_bytes(test.recv(4, socket.MSG_WAITALL), "big")
    for number in held:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
    status = int.from_bytes(test.recv(4, socket.MSG_WAITALL) or (1).to_bytes(4, "big"), "big", signed=True)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


@contextlib.contextmanager
def program() -> Iterator[Path]:
    """Yield the path of a program that is as `python -m trinity`."""
    folder = Path(tempfile.mkdtemp(prefix="c", dir="/tmp"))  # short, because a socket lies in it
    file = folder / "trinity"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "asked"))
        listener.listen()
        file.write_text(PROGRAM.format(python=sys.executable, place=str(folder / "asked")))
        file.chmod(0o755)
        threading.Thread(target=_serve, args=(listener,), name="commands of scripts", daemon=True).start()
        try:
            yield file
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            shutil.rmtree(folder)


def _serve(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed
        while True:
            caller, _ = listener.accept()
            threading.Thread(target=_start, args=(caller,), name="command of a script", daemon=True).start()


def _start(caller: socket.socket) -> None:
    """Start what a program asks for, and tell it the status."""
    with caller:
        size, (output,), *_ = socket.recv_fds(caller, 8, 1)
        text = caller.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
        words, cwd, variables = json.loads(text)
        with open(output, "w") as file:
            process = prepared.start(words, cwd=Path(cwd), inherited=variables, output=file)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for it
            caller.sendall(process.pid.to_bytes(4, "big"))
            caller.sendall(process.wait().to_bytes(4, "big", signed=True))
