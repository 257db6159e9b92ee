"""Errors of databases: what they mean, the wait for a lost server."""

from __future__ import annotations

import logging
import time

from sqlalchemy.exc import DBAPIError, OperationalError

from trinity.utils.log import redact

PATIENCE_S = 120.0
"""How long a server is waited for that was there before, in seconds: it may be starting again."""
FIRST_PATIENCE_S = 10.0
"""How long a server is waited for that was never there, in seconds: its address may be wrong, too."""
_PAUSE_S = 0.2


class ServerWait:
    """A wait for the server of a database, which begins now.

    Args:
        was_there: it has answered before.
    """

    def __init__(self, *, was_there: bool) -> None:
        self.limit_s = PATIENCE_S if was_there else FIRST_PATIENCE_S
        self._deadline = time.monotonic() + self.limit_s
        self._is_told = False

    def lasts(self) -> bool:
        """Return whether to try again; if so, after a pause."""
        if time.monotonic() >= self._deadline:
            return False
        time.sleep(_PAUSE_S)
        return True

    def lasts_after(self, error: BaseException, url: str, log: logging.Logger) -> bool:
        """Return whether to try again after `error`, see `lasts`; log why, once."""
        if not is_lost(error) or time.monotonic() >= self._deadline:
            return False
        if not self._is_told:
            self._is_told = True
            log.warning("%s cannot be reached (%s); trying again for %g s", redact(url), said(error), self.limit_s)
        return self.lasts()


def said(error: BaseException) -> str:
    """Return what the driver says, on one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that a server cannot be reached.

    So it is where the server ends its connections.
    """
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    cause = getattr(error, "orig", None) or error
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""
    is_server = type(cause).__module__.partition(".")[0] in ("psycopg", "psycopg2")
    # Without a state: no connection was made. Class 57P: the server is shut down, was killed, or starts.
    return is_server and isinstance(error, OperationalError) and (not state or state[:2] == "08" or state[:3] == "57P")
