"""Parts of memory, and the processes and devices that hold them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trinity.preflight.estimate.limits import LARGEST_PIECE

COMPUTED, MEASURED, BOUND = "computed", "measured", "bound"
"""Where a number is from: sizes alone; a measurement that came with this version; the most that a limit lets grow."""
HOST = "host"


@dataclass(frozen=True)
class MemoryPart:
    """One use of a process's memory.

    Attributes:
        name: of the use.
        num_bytes: its size.
        how: `computed`, `measured` or `bound`.
        rule: what it is the product of.
        is_loading: it is there while weights are read, and gone when the work begins.
        is_working: it is there from the first step on; of both kinds: all the time.
        small_bytes: the part that is freed and taken again in every step, in pieces that the C library keeps.
    """

    name: str
    num_bytes: int
    how: str = COMPUTED
    rule: str = ""
    is_loading: bool = True
    is_working: bool = True
    small_bytes: int = 0

    def facts(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        when = "always" if self.is_loading and self.is_working else "loading" if self.is_loading else "working"
        return {"part": self.name, "bytes": self.num_bytes, "how": self.how, "rule": self.rule, "when": when}


def working(name: str, num_bytes: float, rule: str, *, how: str = COMPUTED, small_bytes: float = 0) -> MemoryPart:
    """Return a part that is there from the first step on."""
    return MemoryPart(name, int(num_bytes), how, rule, is_loading=False, small_bytes=int(small_bytes))


def small(pieces: Iterable[tuple[int, int]]) -> int:
    """Return the bytes of pieces that the C library keeps when they are freed.

    Args:
        pieces: size of a piece in bytes, and how many there are.
    """
    return sum(size * number for size, number in pieces if size < LARGEST_PIECE)


@dataclass(frozen=True)
class PlacedMemory:
    """The memory of a process in one place, and of how many alike there are.

    Attributes:
        process: what the process is.
        place: `host`, or the device, such as `GPU of the trainer`.
        parts: what it holds there.
        count: processes that hold the same, each for itself.
    """

    process: str
    place: str
    parts: tuple[MemoryPart, ...] = field(default_factory=tuple)
    count: int = 1

    @property
    def num_bytes(self) -> int:
        """The most that one of the processes holds at once."""
        return max(peak(part for part in self.parts if part.is_loading), peak(p for p in self.parts if p.is_working))

    def facts(self) -> dict[str, Any]:
        """Return everything ready for JSON."""
        return {
            "process": self.process,
            "place": self.place,
            "count": self.count,
            "bytes": self.num_bytes,
            "parts": [part.facts() for part in self.parts],
        }


def peak(parts: Iterable[MemoryPart]) -> int:
    """Return the sum of parts."""
    return sum(part.num_bytes for part in parts)


def kept(parts: Iterable[MemoryPart]) -> tuple[MemoryPart, ...]:
    """Return the parts that take any memory."""
    return tuple(part for part in parts if part.num_bytes > 0)


def millions(count: float) -> str:
    """Return a number of parameters as it is written in a rule."""
    return f"{count / 1e9:.3g} G" if count >= 1e9 else f"{count / 1e6:.3g} M" if count >= 1e6 else f"{count:.0f}"
