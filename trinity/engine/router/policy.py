"""Choice of the engine for a request: pure functions of load and identity.

The responses of a group share a prompt, and the turns of a conversation share a prefix. The engine that computed a
prefix gets the requests that extend it, unless it is overloaded; other requests go to the engine with the least load.
With `deterministic: true` timing must have no influence, so the engine depends only on the caller's identity.
"""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence

OVERLOAD_SAMPLES = 32.0
"""Samples in progress that the engine of a prefix may have beyond the least loaded one."""
OVERLOAD_FACTOR = 1.5
"""Multiple of the least load below which the engine of a prefix is never overloaded."""
MAX_PREFIXES = 65_536

_NUMBERED = re.compile(r"[a-z_]+_(\d+)")


def choose_engine(loads: Mapping[int, float], *, home: int | None = None) -> int:
    """Return the engine for the next request.

    Args:
        loads: samples in progress by serving engine; at least one engine.
        home: engine that holds the request's prefix; None if there is none.

    Returns:
        `home` if it serves and is not overloaded, else the least loaded engine, the first of equal ones.
    """
    least = min(loads, key=loads.__getitem__)
    if home is None or home not in loads:
        return least
    is_overloaded = loads[home] - loads[least] > OVERLOAD_SAMPLES and loads[home] > OVERLOAD_FACTOR * loads[least]
    return least if is_overloaded else home


def fixed_engine(identity: str, engines: Sequence[int]) -> int:
    """Return the engine of `identity`, independent of time and load.

    A numbered name (`runner_0003`, or its replacement `runner_0003+1`) maps to engines in turn, so runners spread
    evenly. Any other name is spread by its checksum.
    """
    numbered = _NUMBERED.fullmatch(identity.partition("+")[0])
    number = int(numbered.group(1)) if numbered else zlib.crc32(identity.encode())
    return engines[number % len(engines)]


def group_of(sample_ids: Sequence[str] | None) -> str | None:
    """Return the group `batch/task` of ids `batch/task/run/turn`, or None."""
    if not sample_ids or sample_ids[0].count("/") < 3:
        return None
    return sample_ids[0].rsplit("/", 2)[0]


class PrefixTable:
    """The engine that holds the prefix of each group.

    When full, it forgets the groups used least recently.

    Args:
        capacity: most groups.
    """

    def __init__(self, capacity: int = MAX_PREFIXES) -> None:
        self._capacity = capacity
        self._homes: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, group: str | None) -> int | None:
        """Return the engine of a group, or None if unknown."""
        return None if group is None else self._homes.get(group)

    def note(self, group: str | None, engine: int) -> None:
        """Record that `engine` answers `group`."""
        if group is None:
            return
        self._homes[group] = engine
        self._homes.move_to_end(group)
        if len(self._homes) > self._capacity:
            self._homes.popitem(last=False)

    def forget(self, engine: int) -> None:
        """Forget every group of an engine that lost its cache."""
        for group in [group for group, home in self._homes.items() if home == engine]:
            del self._homes[group]
