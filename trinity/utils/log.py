"""Loggers: one root, one file an actor, rotated, without secrets.

Every line passes the redactor, so that no handler can print a secret that the configuration holds.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trinity.common.constants import LOG_LEVEL_ENV_VAR

ROOT = "trinity"
CONSOLE = "console"
FILE_ONLY = "is_for_the_file"  # attribute of a record that the console leaves out
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SHORT_FORMAT = "%(asctime)s %(levelname)s %(message)s"
MAX_FILE_BYTES = 64 * 1024 * 1024
BACKUPS = 3

_secrets: set[str] = set()
_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^/\s:@]*):(?P<word>[^@/\s]+)@")
_SECRET_NAME = re.compile(r"(api_?key|password|passwd|secret|(^|_)token$|access_key)", re.IGNORECASE)
# Signatures and tokens in the query of a URL, as links have that give a file to whoever has the link.
QUERY_SECRET = re.compile(
    r"(?P<name>[?&](?:X-Amz-(?:Signature|Security-Token|Credential)|X-Goog-(?:Signature|Credential)|Signature|sig|"
    r"OSSAccessKeyId|AWSAccessKeyId|security-token|(?:access_|auth_)?token|api_?key|password)=)(?P<word>[^&#\s]+)",
    re.IGNORECASE,
)
REDACTED = "***"


def is_secret_name(key: str) -> bool:
    """Return whether a configuration key of this name holds a secret."""
    return bool(_SECRET_NAME.search(key)) and not key.lower().endswith(("_env", "tokens"))


def add_secret(value: str) -> None:
    """Remember a secret value; `redact` removes it from any text."""
    if len(value) >= 4 and value not in {"EMPTY", "None", "null"}:
        _secrets.add(value)


def known_secrets() -> list[str]:
    """Return the remembered secrets, for another process of the run.

    They must not be written anywhere.
    """
    return sorted(_secrets)


def redact(text: str) -> str:
    """Return `text` without remembered secrets, and passwords of URLs.

    Signatures and tokens in a URL's query are such passwords.
    """
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    if "://" in text and "=" in text:
        text = QUERY_SECRET.sub(rf"\g<name>{REDACTED}", text)
    return _USER_INFO.sub(rf"\g<scheme>\g<user>:{REDACTED}@", text)


class RedactingFormatter(logging.Formatter):
    """Formats a record, traceback included, and redacts it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the redacted line."""
        return redact(super().format(record))


def get_logger(name: str = "") -> logging.Logger:
    """Return the logger `trinity` or `trinity.<name>`."""
    return logging.getLogger(f"{ROOT}.{name}" if name and not name.startswith(ROOT) else name or ROOT)


def parse_level(level: str) -> int:
    """Return the numeric level of a name, in upper or lower case.

    Raises:
        ValueError: not a level.
    """
    value = logging.getLevelNamesMapping().get(level.upper())
    if value is None:
        raise ValueError(f"log level must be one of DEBUG, INFO, WARNING, ERROR, got {level!r}")
    return value


def set_level(level: str) -> None:
    """Set the level of the framework's loggers.

    The environment variable `TRINITY_LOG_LEVEL` has precedence.
    """
    logging.getLogger(ROOT).setLevel(parse_level(os.environ.get(LOG_LEVEL_ENV_VAR, level)))


class _PrintHandler(logging.Handler):
    """Passes formatted records to a function, such as a display's print."""

    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record."""
        self._write(self.format(record))


def log_to_console(
    *, is_quiet: bool = False, write: Callable[[str], object] | None = None, least: int | None = None
) -> None:
    """Send the framework's log to standard error.

    Args:
        is_quiet: warnings and errors only.
        write: prints one line instead, for a display that must not be written over.
        least: the level from which on; None: as `is_quiet` says.
    """
    root = logging.getLogger(ROOT)
    root.propagate = False
    for old in [h for h in root.handlers if h.get_name() == CONSOLE]:
        root.removeHandler(old)
    handler: logging.Handler = logging.StreamHandler() if write is None else _PrintHandler(write)
    handler.set_name(CONSOLE)
    handler.addFilter(lambda record: not hasattr(record, FILE_ONLY))
    shown = logging.WARNING if is_quiet else logging.DEBUG
    handler.setLevel(shown if least is None else least)
    is_plain = write is None
    handler.setFormatter(RedactingFormatter(FORMAT) if is_plain else RedactingFormatter(SHORT_FORMAT, "%H:%M:%S"))
    root.addHandler(handler)
    set_level("INFO")


@contextmanager
def logged_to_file(component: str, file: Path) -> Iterator[None]:
    """Also write the log of `trinity.<component>` to `file`, rotated.

    This lasts as long as the context. "" means all components.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(file, maxBytes=MAX_FILE_BYTES, backupCount=BACKUPS, encoding="utf-8")
    handler.setFormatter(RedactingFormatter(FORMAT))
    logger = get_logger(component)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
