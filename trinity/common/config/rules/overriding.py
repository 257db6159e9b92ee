"""Keys whose written value gives way to that of another key, as the published guide says."""

from __future__ import annotations

from typing import Any

from trinity.common.config.draft import Draft


def override(draft: Draft, key: str, *, by: str) -> None:
    """Give `key` the value of `by`; a different one that was written is told (W1816)."""
    note_overridden(draft, key, f"overridden by {by} ({draft.get(by)})", value=draft.get(by), involves=by)
    draft.derive(key, draft.get(by), by)


def note_overridden(draft: Draft, key: str, why: str, *, value: Any, involves: str) -> None:
    """Tell that the written value of `key` does not count (W1816), unless it is `value`."""
    if draft.is_given(key) and draft.get(key) != value:
        draft.problem(
            "W1816",
            key,
            f"`{key}: {draft.get(key)}` is {why}",
            rule=f"{value}",
            involves=(involves,),
            suggestion=f"remove it, or write `{involves}`",
        )
