"""An exception on its way from one process to another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trinity
from trinity.common.errors import ExitCode, TrinityError
from trinity.runtime.base import RemoteError
from trinity.runtime.messages import from_bytes, to_bytes

PLACE = "remote_place"


@dataclass(frozen=True)
class Failure:
    """What an exception says, in a form that any process can read.

    Attributes:
        data: the exception itself, where it can travel.
        kind: name of its class.
        message: its text.
        code: of a `TrinityError`.
        exit_code: of a `TrinityError`.
        place: innermost frame of user code, as `file:line in function`.
        frames: all frames, the innermost first.
        component: where it was raised.
    """

    data: bytes | None
    kind: str
    message: str
    code: str | None
    exit_code: int
    place: str
    frames: str
    component: str

    @classmethod
    def of(cls, error: BaseException, component: str) -> Failure:
        """Return `error`, raised in `component` of this process."""
        code = error.code if isinstance(error, TrinityError) else None
        exit_code = error.exit_code if isinstance(error, TrinityError) else ExitCode.RUNTIME
        return cls(
            _travelling(error),
            type(error).__name__,
            error.args[0] if isinstance(error, TrinityError) and error.args else str(error),
            code,
            int(exit_code),
            user_place(error),
            _frames(error),
            f"{component} (process {os.getpid()})",
        )

    def error(self) -> BaseException:
        """Return the exception, with a note that says where it was raised."""
        try:
            error = from_bytes(self.data) if self.data is not None else None
        except Exception:  # noqa: BLE001 - a class that is not importable here; its text is at hand
            error = None
        if not isinstance(error, Exception):
            text = self.message if self.code else f"{self.kind}: {self.message} ({self.place})"
            error = RemoteError(text, code=self.code)
            error.exit_code = ExitCode(self.exit_code)
        error.add_note(f"raised in {self.component}, innermost frame first:\n{self.frames}")
        with contextlib.suppress(AttributeError):
            setattr(error, PLACE, f"{self.place} of {self.component}")
        return error


def user_place(error: BaseException) -> str:
    """Return `file:line in function` of the innermost frame of user code.

    Frames of the framework and of its packages do not count.
    """
    place = getattr(error, PLACE, None)
    if isinstance(place, str):
        return place
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "no traceback"
    frame = next(filter(_is_user, reversed(frames)), frames[-1])
    return f"{frame.filename}:{frame.lineno} in {frame.name}"


def _is_user(frame: traceback.FrameSummary) -> bool:
    folders = (Path(trinity.__file__).parent, sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"])
    return not frame.filename.startswith((*map(str, folders), "<"))


def _frames(error: BaseException) -> str:
    frames = reversed(traceback.extract_tb(error.__traceback__))
    ordered = sorted(frames, key=lambda frame: not _is_user(frame))
    return "\n".join(f"  {f.filename}:{f.lineno} in {f.name}: {f.line or ''}".rstrip(": ") for f in ordered)


def _travelling(error: BaseException) -> bytes | None:
    """Return `error` as bytes, if reading them gives the same message back."""
    if not isinstance(error, Exception) or isinstance(error, asyncio.CancelledError):
        return None
    try:
        data = to_bytes(error)
        again: Any = from_bytes(data)
    except Exception:  # noqa: BLE001 - an exception may hold anything; its text travels instead
        return None
    return data if type(again) is type(error) and str(again) == str(error) else None
