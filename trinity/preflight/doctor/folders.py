"""Where a run writes: space, rights, and what the file system can do."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trinity.common.config.problems import Finding
from trinity.preflight.doctor.look import Look, looked, problem
from trinity.utils.disk import free_mib
from trinity.utils.memory import shown_bytes

MOUNTS = Path("/proc/self/mountinfo")
# Kinds on which several machines may write, and where the locks of SQLite are not to be trusted.
NETWORK = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "pvfs2",
    "ocfs2", "gfs2", "vboxsf",
)  # fmt: skip
IN_MEMORY = ("tmpfs", "ramfs")
LEAST_FREE_MIB = 5 * 1024.0
LEAST_TEMPORARY_MIB = 1024.0


def checks(folder: Path) -> Iterator[Look]:
    """Yield what was found, one look at a time.

    Args:
        folder: where runs are to write.
    """
    yield output(folder)
    yield databases(folder)
    yield temporary()
    yield hub()


def output(folder: Path) -> Look:
    """Return the folder of runs: its space and its kind.

    Not writable: E3601. Little space: W3831. It is gone when the machine restarts: W3832.
    """
    there = existing(folder)
    free, kind = free_mib(there), kind_of(there)
    found = f"{there.resolve()}: {shown_bytes(free * 2**20)} free, {kind or 'of an unknown kind'}"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return looked("folder", found, problem("E3601", f"{there} cannot be written", "choose another --folder"))
    problems = list[Finding]()
    if free < LEAST_FREE_MIB:
        message = f"{shown_bytes(free * 2**20)} are free, and a checkpoint of a model takes six times its weights"
        problems.append(problem("W3831", message, "choose a larger disk for checkpoint_root_dir"))
    if kind in IN_MEMORY:
        lost = f"{there} is in memory ({kind}): what runs write there is gone with the machine"
        problems.append(problem("W3832", lost, "choose a folder on a disk for checkpoint_root_dir"))
    return looked("folder", found, *problems)


def databases(folder: Path) -> Look:
    """Return whether SQLite works in the folder (E3833, W3834).

    A database is made there, written with a write-ahead log, and removed.
    """
    there = existing(folder)
    kind = kind_of(there)
    problems = list[Finding]()
    server = "set buffer.trainer_input.experience_buffer.path to a postgresql:// address, or choose a folder on a disk"
    if kind in NETWORK or (kind or "").startswith("fuse"):
        message = f"{there} is on a network file system ({kind}), whose locks SQLite cannot rely on"
        problems.append(problem("W3834", message, server))
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor", dir=there) as place:
            _write_database(Path(place) / "probe.db")
    except (OSError, sqlite3.Error) as error:
        if not os.access(there, os.W_OK):
            return looked("database", "not tried: the folder cannot be written", *problems)
        problems.append(problem("E3833", f"SQLite cannot write in {there}: {error}", server))
    return looked("database", f"SQLite {sqlite3.sqlite_version}", *problems)


def temporary() -> Look:
    """Return the folder of temporary files (E3835, W3831)."""
    try:
        place = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        return looked(
            "temporary",
            "none",
            problem(
                "E3835",
                f"there is no folder for temporary files: {error}",
                "set TMPDIR to a folder that can be written",
            ),
        )
    free, problems = free_mib(place), list[Finding]()
    if free < LEAST_TEMPORARY_MIB:
        message = f"{shown_bytes(free * 2**20)} are free in {place}; Ray's sessions and sockets are there"
        problems.append(problem("W3831", message, "set TMPDIR to a larger disk"))
    return looked("temporary", f"{place}: {shown_bytes(free * 2**20)} free", *problems)


def hub() -> Look:
    """Return where downloaded models are kept, and whether it is asked."""
    home = os.environ.get("HF_HUB_CACHE") or str(Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub")
    place = Path(home).expanduser()
    is_offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    found = f"{place}{'' if place.is_dir() else ', which is made when needed'}"
    found += "; HF_HUB_OFFLINE: nothing is downloaded" if is_offline else ""
    there = existing(place)
    if not os.access(there, os.W_OK):
        message = f"{there} cannot be written: models cannot be downloaded"
        return looked("hub", found, problem("W3836", message, "set HF_HOME to a folder that can be written"))
    return looked("hub", found)


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    whole = folder.expanduser().absolute()
    return next(each for each in (whole, *whole.parents) if each.exists())


def kind_of(folder: Path) -> str | None:
    """Return the kind of a folder's file system, such as `ext4`.

    None: the system does not say. The longest mount point above the folder counts, and of several the last.
    """
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    place, found = folder.resolve(), (0, "")
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        if place.is_relative_to(point) and len(point.parts) >= found[0]:
            found = (len(point.parts), after.split()[0])
    return found[1] or None


def _write_database(path: Path) -> None:
    """Write and read a database as a run does.

    With a write-ahead log and two connections.
    """
    with open(path.with_suffix(".lock"), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    writer, reader = sqlite3.connect(path, timeout=2), sqlite3.connect(path, timeout=2)
    try:
        (mode,) = writer.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise sqlite3.OperationalError(f"no write-ahead log can be kept there, only {mode!r}")
        with writer:
            writer.execute("CREATE TABLE probe (number INTEGER)")
            writer.execute("INSERT INTO probe VALUES (1)")
        if reader.execute("SELECT number FROM probe").fetchall() != [(1,)]:
            raise sqlite3.OperationalError("what one connection wrote, another does not see")
    finally:
        writer.close()
        reader.close()
