"""Which system prompt a row gets."""

from __future__ import annotations


def chosen_system_prompt(of_row: str | None, configured: str | None, *, default: str | None = None) -> str | None:
    """Return the row's system prompt, the format's, or the default.

    The first that is not None; an empty one means that there is none.
    """
    chosen = of_row if of_row is not None else configured
    return (default if chosen is None else chosen) or None
