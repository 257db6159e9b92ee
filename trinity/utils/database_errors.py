"""What an error of a database means."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, OperationalError


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
