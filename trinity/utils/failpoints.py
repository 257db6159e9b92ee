"""Named places where a test can make the process fail.

`TRINITY_FAILPOINTS="ckpt.before_manifest=kill@2;store.append.before_commit=raise"` acts at the second hit of
the first place and at every hit of the other. `engine_1:sync.after_bucket_received=kill@9` acts in the process of that
component alone. `stop` holds a process until SIGCONT. Without the variable a failpoint is one dictionary look-up.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass

from trinity.common.constants import FAILPOINTS_ENV_VAR
from trinity.common.errors import ConfigError

ACTIONS = ("kill", "stop", "interrupt", "raise", "enospc", "sleep", "count")

NAMES = (
    "ckpt.before_write",
    "ckpt.after_files",
    "ckpt.before_manifest",
    "ckpt.after_manifest",
    "ckpt.before_rename",
    "ckpt.while_replacing",
    "ckpt.after_rename",
    "ckpt.before_latest",
    "ckpt.after_latest",
    "ckpt.retention",
    "store.append.before_commit",
    "store.append.after_commit",
    "store.claim.after_commit",
    "store.commit_step.before_commit",
    "store.commit_step.after_commit",
    "train.before_step",
    "train.after_step",
    "explore.while_refilling",
    "explore.after_rollout",
    "serve.after_record",
    "serve.after_feedback",
    "serve.before_append",
    "serve.after_append",
    "serve.after_commit",
    "sync.before_publish",
    "sync.after_publish",
    "sync.after_bucket",
    "sync.after_bucket_received",
    "engine.before_weights",
    "convert.before_rename",
    "convert.after_file",
    "remote.after_piece",
    "remote.before_rename",
    "remote.after_upload",
)


@dataclass
class _Armed:
    action: str
    at: int | None
    hits: int = 0


def _parse(text: str, component: str = "") -> dict[str, _Armed]:
    armed: dict[str, _Armed] = {}
    for item in filter(None, (part.strip() for part in text.split(";"))):
        owner, _, place = item.rpartition(":")
        name, _, rest = place.partition("=")
        action, _, at = rest.partition("@")
        if name not in NAMES or action not in ACTIONS or (at and not at.isdigit()):
            raise ConfigError(
                f"{FAILPOINTS_ENV_VAR}: cannot read {item!r}; the form is [component:]name=action[@hit] with an action "
                f"of {', '.join(ACTIONS)} and a name of {', '.join(NAMES)}",
                code="E1010",
            )
        if owner in ("", component):
            armed[name] = _Armed(action, int(at) if at else None)
    return armed


_armed = _parse(os.environ.get(FAILPOINTS_ENV_VAR, ""))


def configure(text: str, *, component: str = "") -> None:
    """Arm the failpoints of `text` for `component` and for all.

    They apply to this process. An empty text disarms all.
    """
    global _armed
    _armed = _parse(text, component)


def enter(component: str) -> None:
    """Arm the environment's failpoints in this process of `component`.

    They are those for the component and those for all.
    """
    configure(os.environ.get(FAILPOINTS_ENV_VAR, ""), component=component)


def hits() -> dict[str, int]:
    """Return how often each armed failpoint was reached."""
    return {name: point.hits for name, point in _armed.items()}


def failpoint(name: str) -> None:
    """Act as armed for `name`; do nothing otherwise.

    Raises:
        OSError: action `enospc`.
        RuntimeError: action `raise`.
    """
    if not _armed:
        return
    point = _armed.get(name)
    if point is None:
        return
    point.hits += 1
    if point.at is not None and point.hits != point.at:
        return
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif point.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif point.action == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    elif point.action == "raise":
        raise RuntimeError(f"failpoint {name}")
    elif point.action == "enospc":
        raise OSError(errno.ENOSPC, f"No space left on device (failpoint {name})")
    elif point.action == "sleep":
        time.sleep(1.0)
