"""A process that runs a program of a model without any rights.

It imports the standard library only. It is given its limits as JSON, reads the program and what checks it from its
folder, and runs them in this interpreter: nothing is started after the rights are gone. Only for Linux on x86-64 and
AArch64.

That the check has passed is told by a mark, which no object that Python code can reach holds, nor the check before it
runs. The check itself runs among the program's objects: one that equals everything passes it, and so does what finds
the mark in the memory of the process with `ctypes`.

Sources: landlock(7), seccomp(2), setrlimit(2), and linux/landlock.h, linux/seccomp.h, linux/filter.h.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import sys
import threading
from collections import deque
from functools import partial
from io import FileIO
from itertools import compress, filterfalse
from operator import not_
from types import CodeType
from typing import NamedTuple

PROGRAM, CHECK = "program.py", "check.py"
BEGUN = b"1"
"""Told when the rights are gone, before the program begins; the mark is told when program and check have ended."""
MARK_BYTES = 32
"""The mark: the beginning of the file of the check."""
MAX_OPEN_FILES = 64
NEWEST_LANDLOCK = 6
"""The newest version whose rules are asked for. An older one restricts less, so no refusal of a call relies on it."""

_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute (to map libraries), read a file, read a directory
_OF_FILES = 1 << 0 | 1 << 2
_READABLE = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime",
             "/dev/urandom", "/dev/null")  # fmt: skip
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _EAGAIN, _ENOSYS = 1, 11, 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_CLONE_THREAD = 0x10000


class _Calls(NamedTuple):
    """Numbers of calls of a processor."""

    architecture: int
    clone: int
    of_own: tuple[int, ...]
    fcntl: int
    ioctl: int
    socketpair: int
    refused: tuple[int, ...]


_CLONE3 = 435
# What a program is refused: new processes, sockets, signals, memory and scheduling of others, its limits, rights of
# files, the clock and the kernel. The numbers are those of linux/unistd.h.
_COMMON = (424, 425, 426, 427, 428, 429, 430, 434, 438, 440, 442, 448, 452)
_CALLS = {
    "x86_64": _Calls(0xC000003E, clone=56, of_own=(62, 234), fcntl=72, ioctl=16, socketpair=53, refused=(
        29, 30, 31, 41, 42, 49, 50, 57, 58, 59, 64, 65, 66, 68, 69, 70, 71, 90, 91, 92, 93, 94, 101, 103, 109,
        112, 129, 141, 142, 144, 155, 159, 160, 161, 163, 164, 165, 166, 167, 168, 169, 170, 171, 172, 173, 175, 176,
        179, 188, 189, 190, 197, 198, 199, 200, 203, 227, 235, 240, 246, 248, 249, 250, 251, 256, 260, 261,
        268, 272, 279, 280, 297, 298, 300, 302, 304, 305, 308, 310, 311, 312, 313, 314, 320, 321,
        322, 323,
        *_COMMON)),
    "aarch64": _Calls(0xC00000B7, clone=220, of_own=(129, 131), fcntl=25, ioctl=29, socketpair=199, refused=(
        5, 6, 7, 14, 15, 16, 30, 39, 40, 41, 51, 52, 53, 54, 55, 60, 88, 89, 97, 104, 105, 106, 112, 116, 117,
        118, 119, 122, 130, 138, 140, 142, 154, 157, 161, 162, 164, 170, 171, 180, 186, 187, 188, 189, 190, 191, 192,
        193, 194, 195, 196, 198, 200, 201, 203, 217, 218, 219, 221, 224, 225, 238, 239, 240, 241, 261, 262,
        265, 266, 268, 270, 271, 272, 273, 274, 280, 281, 282, 294,
        *_COMMON)),
}  # fmt: skip
# The commands that reach nobody else. Others make the kernel send signals for a file to any process (F_SETOWN,
# FIOSETOWN), or are of terminals and devices.
_OF_OWN_FILES = (0, 1, 2, 3, 4, 1030)  # fcntl: copy a descriptor, its flags, those of its file
_OF_OWN_DEVICES = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # ioctl: whether terminal, size, flags
_STREAMS = (1, 0x801, 0x80001, 0x80801)  # a datagram could be sent to the socket of another process

_FIRST, _SECOND = 16, 24
"""Where the kernel gives the lower half of an argument; all that are compared here have 32 bits."""


class RefusedError(OSError):
    """The machine cannot contain a program."""


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32)]


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("code", ctypes.POINTER(_Instruction))]


class _Rules(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _Below(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("access", ctypes.c_uint64), ("folder", ctypes.c_int32)]


_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise RefusedError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def limit_resources(seconds: float, memory_bytes: int) -> None:
    """Limit processor time, memory and open files; no file may grow."""
    limits = {
        resource.RLIMIT_CPU: int(seconds) + 2,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))


def limit_files(folder: str) -> None:
    """Let nothing be written, and only `folder` and Python be read.

    Raises:
        RefusedError: the kernel has no Landlock.
    """
    newest = _checked(_libc.syscall(_CREATE_RULESET, None, 0, 1), "Landlock (Linux 5.13 and newer)")
    version = min(newest, NEWEST_LANDLOCK)
    everything = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    rules = _Rules(everything, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _checked(_libc.syscall(_CREATE_RULESET, ctypes.byref(rules), size, 0), "a Landlock ruleset")
    for path in sorted({*_READABLE, folder, sys.prefix, sys.base_prefix, *sys.path}):
        if os.path.exists(path):
            _allow_below(ruleset, path, _READ if os.path.isdir(path) else _READ & _OF_FILES)
    _checked(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    _checked(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "to restrict itself")
    os.close(ruleset)


def _allow_below(ruleset: int, path: str, access: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    below = _Below(access, folder)
    _checked(_libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(below), 0), f"a Landlock rule for {path}")
    os.close(folder)


def limit_calls() -> None:
    """Refuse new processes, sockets and whatever reaches other processes.

    Raises:
        RefusedError: the processor is not known, or the kernel has no seccomp.
    """
    if platform.machine() not in _CALLS:
        raise RefusedError(f"the calls of {platform.machine()} are not known")
    code = _filter(_CALLS[platform.machine()])
    filled = (_Instruction * len(code))(*(_Instruction(*one) for one in code))
    _checked(_libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(_Filter(len(code), filled)), 0, 0), "seccomp")


def _filter(calls: _Calls) -> list[tuple[int, int, int, int]]:
    """Return the program that the kernel runs at each call."""
    code = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, calls.architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]  # the calls of x32
    code += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _REFUSE | _ENOSYS)]
    for number in calls.refused:
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE | _EPERM)]
    # Threads may be started.
    code += [(_EQUAL, 0, 4, calls.clone), (_LOAD, 0, 0, _FIRST), (_ANY_BIT, 1, 0, _CLONE_THREAD)]
    code += [(_RETURN, 0, 0, _REFUSE | _EAGAIN), (_RETURN, 0, 0, _ALLOW)]
    for number in calls.of_own:  # a signal to itself, as `abort` sends
        code += _only(number, _FIRST, (os.getpid(),))
    code += _only(calls.fcntl, _SECOND, _OF_OWN_FILES)
    code += _only(calls.ioctl, _SECOND, _OF_OWN_DEVICES)
    code += _only(calls.socketpair, _SECOND, _STREAMS)
    return [*code, (_RETURN, 0, 0, _ALLOW)]


def _only(number: int, place: int, allowed: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Allow a call with some values of an argument, and refuse it with others."""
    count = len(allowed)
    code = [(_EQUAL, 0, count + 3, number), (_LOAD, 0, 0, place)]
    code += [(_EQUAL, count - index, 0, value) for index, value in enumerate(allowed)]
    return [*code, (_RETURN, 0, 0, _REFUSE | _EPERM), (_RETURN, 0, 0, _ALLOW)]


def main() -> None:
    """Give up all rights, and run the program as `__main__`."""
    settings = json.loads(sys.argv[1])
    folder = os.getcwd()
    with open(PROGRAM, encoding="utf-8") as file:
        program = file.read()
    sealed = os.open(CHECK, os.O_RDONLY | os.O_CLOEXEC)
    for name in (PROGRAM, CHECK):
        os.remove(name)
    try:
        limit_resources(settings["timeout_s"], settings["memory_bytes"])
        limit_files(folder)
        limit_calls()
    except OSError as error:
        sys.stderr.write(str(error))
        sys.exit(1)
    os.write(settings["told"], BEGUN)
    threading.stack_size(1 << 20)  # so that threads do not take all the memory that there may be
    sys.argv[:] = sys.orig_argv[:] = [PROGRAM]
    module = type(sys)("__main__")
    module.__dict__.update(__file__=PROGRAM, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    run(compile(program, PROGRAM, "exec"), module.__dict__, sealed, settings["told"])


def run(program: CodeType, names: dict[str, object], sealed: int, told: int) -> None:
    """Run a program, then its check; write the mark once both have ended.

    From the first read to the write no line of Python runs but theirs. Mark and check are read before the program
    begins, and are held by the iterators' C code only: no frame, no container and no open file has them, and no
    function that the program replaces is called.

    Args:
        program: what is run.
        names: its namespace, in which the check runs, too.
        sealed: file of the mark and the check; it is closed before the program begins.
        told: where the mark is written.
    """
    marks = map(os.read, [sealed], [MARK_BYTES])
    checks = map(FileIO.readall, map(FileIO, [sealed]))
    ended = filterfalse(partial(exec, program), [names])  # gives the names once the program has ended
    passed = map(not_, map(exec, checks, ended))
    deque(map(os.write, [told], compress(marks, passed)), maxlen=0)


if __name__ == "__main__":
    main()
