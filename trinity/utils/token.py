"""The comparison of the token that a caller shows with the right one."""

from __future__ import annotations

import hmac


def is_token(shown: str, token: str) -> bool:
    """Return whether a caller shows the token; an empty one is nobody's.

    The time that this takes does not tell how much of it is right.
    """
    return bool(token.strip()) and hmac.compare_digest(shown.encode(), token.encode())
