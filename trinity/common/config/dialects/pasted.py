"""Keys of veRL that were pasted under our own section for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trinity.common.config.dialects.foreign_key import VERL_TREE
from trinity.common.config.dialects.table import by_name
from trinity.common.config.problems import Finding

_REFUSED = ("E1203", "E1900")


def with_places(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings of a file of ours, with our keys for those of veRL.

    These are keys of veRL's section that have another place in ours.
    """
    return [_with_place(finding) for finding in findings]


def _with_place(finding: Finding) -> Finding:
    start = f"{VERL_TREE}."
    if finding.code not in _REFUSED or not finding.key.startswith(start):
        return finding
    name = finding.key.removeprefix(start)
    rows = [row for row in by_name().values() if row.name == name or row.name.startswith(f"{name}.")]
    ours = [place for row in rows for place in row.to if not place.startswith(start)]
    if not ours:
        return finding
    place = min(ours, key=len) if len(rows) > 1 else ours[0]
    return replace(finding, suggestion=f"write `{place}`, where this file has what veRL has in `{name}`")
