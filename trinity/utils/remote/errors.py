"""What can go wrong with files elsewhere, each with its way out."""

from __future__ import annotations

from trinity.common.errors import EnvironmentProblem
from trinity.utils.disk import is_full
from trinity.utils.log import redact

_DENIED_STATUS, _MISSING_STATUS = (401, 403, 407), (404, 410)
# Of the clients of the stores, which have no common class: keys that are missing, wrong or too old.
_DENIED_NAMES = (
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "RefreshError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
)
_MISSING_NAMES = ("NoSuchBucket", "NoSuchKey")
_NO_CLIENT_WORDS = ("libhdfs", "libjvm", "HADOOP_HOME", "CLASSPATH")


class AddressError(EnvironmentProblem):
    """A file elsewhere cannot be fetched, or nothing can be put there."""


class Interrupted(Exception):
    """A transfer ended early; it may be tried again."""


class Changed(Exception):
    """What is at the address changed while it was read."""


def system_cause(error: BaseException) -> BaseException:
    """Return the error behind one that a client wrapped."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def refusal(error: BaseException, what: str) -> AddressError | None:
    """Return an error that trying again does not correct; None: it may.

    Args:
        error: what the client raised.
        what: the address, as it is shown.
    """
    cause = system_cause(error)
    if isinstance(cause, AddressError):
        return cause
    status = getattr(cause, "status", getattr(getattr(cause, "response", None), "status_code", None))
    name = type(cause).__name__
    if isinstance(cause, FileNotFoundError) or status in _MISSING_STATUS or name in _MISSING_NAMES:
        return AddressError(f"{what} does not exist; look at the address", code="E3610")
    if isinstance(cause, PermissionError) or status in _DENIED_STATUS or name in _DENIED_NAMES:
        return AddressError(
            f"access to {what} is denied ({reason(cause)}); give this process the keys of an account that may, in the "
            "environment or the files that the store's own tools read",
            code="E3611",
        )
    if isinstance(cause, ImportError) or any(word in str(cause) for word in _NO_CLIENT_WORDS):
        return AddressError(
            f"{what} cannot be reached from this machine: {reason(cause)}; install what this store's client needs, for "
            "hdfs:// Java and Hadoop with JAVA_HOME, HADOOP_HOME and CLASSPATH",
            code="E3612",
        )
    if isinstance(cause, OSError) and is_full(cause):
        return full(what)
    return None


def full(what: str, *, needed: str = "", free: str = "", place: object = "the disk") -> AddressError:
    """Return the error of a disk on which a copy has no room."""
    numbers = f" ({needed} are needed, {free} are free)" if needed else ""
    return AddressError(
        f"no space left for the copy of {what} on {place}{numbers}; free some, or let TRINITY_CACHE_DIR name a folder "
        "on a larger disk",
        code="E3613",
    )


def unreachable(what: str, error: BaseException, *, attempts: int) -> AddressError:
    """Return the error of a store that did not answer often enough."""
    return AddressError(
        f"{what} does not answer, tried {attempts} times: {reason(system_cause(error))}; look at the network and run "
        "the same command again, which continues with what has come",
        code="E3614",
    )


def reason(error: BaseException) -> str:
    """Return an error in one line, without secrets."""
    return redact(f"{type(error).__name__}: {error}".replace("\n", " ")[:300])
