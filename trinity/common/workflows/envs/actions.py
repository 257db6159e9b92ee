"""Replies that hold a thought and an action between tags.

Everything here is linear in the length of the reply: it runs in the runner, where nothing may take long.
"""

from __future__ import annotations

HINT = (
    "In every turn, think between <think> and </think>, then write exactly one action between <action> and </action>. "
    "Nobody answers questions; continue until the task is done."
)
NO_ACTION = "There is no action between <action> and </action>."


def parse_action(text: str) -> str:
    """Return the text between the first pair of action tags, or nothing."""
    found = _held(text, "action")
    return found[0].strip() if found else ""


def last_action(text: str) -> str:
    """Return the text between the last pair of action tags, or nothing."""
    action, found = "", _held(text, "action")
    while found is not None:
        action, found = found[0], _held(text, "action", found[1])
    return action.strip()


def parse_parts(text: str) -> dict[str, str] | None:
    """Return experience, thought and action of a reply.

    It has all three, in this order, none of them empty.
    """
    parts, end = dict[str, str](), 0
    for name in ("experience", "think", "action"):
        found = _held(text, name, end)
        if found is None or not found[0].strip():
            return None
        parts[name], end = found[0].strip(), found[1]
    return parts


def _held(text: str, name: str, start: int = 0) -> tuple[str, int] | None:
    """Return what the first pair of tags from `start` on holds, and its end."""
    opening, closing = f"<{name}>", f"</{name}>"
    begin = text.find(opening, start)
    end = text.find(closing, begin) if begin >= 0 else -1
    return None if end < 0 else (text[begin + len(opening) : end], end + len(closing))
