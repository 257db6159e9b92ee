"""Replies that hold a thought and an action between tags."""

from __future__ import annotations

import re

HINT = (
    "In every turn, think between <think> and </think>, then write exactly one action between <action> and </action>. "
    "Nobody answers questions; continue until the task is done."
)
NO_ACTION = "There is no action between <action> and </action>."


def parse_action(text: str) -> str:
    """Return the text between the first pair of action tags, or nothing."""
    found = re.search(r"<action>(.*?)</action>", text, re.DOTALL)
    return found.group(1).strip() if found else ""


def parse_parts(text: str) -> dict[str, str] | None:
    """Return experience, thought and action of a reply.

    It has all three, in this order, none of them empty.
    """
    names = ("experience", "think", "action")
    found = re.search(".*?".join(rf"<{name}>(.*?)</{name}>" for name in names), text, re.DOTALL)
    parts = dict(zip(names, map(str.strip, found.groups()), strict=True)) if found else {}
    return parts if parts and all(parts.values()) else None
