"""The form of a dataset's rows."""

from __future__ import annotations

from trinity.common.config.draft import Draft


def resolve_format(draft: Draft, key: str) -> None:
    """Fill the form of the rows from the columns that are named; if that is open, the reader looks at the rows."""
    if draft.get(f"{key}.prompt_type") is not None:
        return
    has_messages = draft.is_given(f"{key}.messages_key")
    has_text = draft.is_given(f"{key}.prompt_key") or draft.is_given(f"{key}.response_key")
    if has_messages and not has_text:
        draft.derive(f"{key}.prompt_type", "messages", "messages_key is given")
    elif has_text and not has_messages:
        draft.derive(f"{key}.prompt_type", "plaintext", "prompt_key or response_key is given")
