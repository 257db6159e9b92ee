"""Loggers: one root, one file an actor, rotated, without secrets.

Every line passes the redactor, so that no handler can print a secret that the configuration holds.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import re
from pathlib import Path

from trinity.common.constants import LOG_LEVEL_ENV_VAR

ROOT = "trinity"
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_FILE_BYTES = 64 * 1024 * 1024
BACKUPS = 3

_secrets: set[str] = set()
_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^/\s:@]*):(?P<word>[^@/\s]+)@")
_SECRET_NAME = re.compile(r"(api_?key|password|passwd|secret|(^|_)token$|access_key)", re.IGNORECASE)
REDACTED = "***"


def is_secret_name(key: str) -> bool:
    """Return whether a configuration key of this name holds a secret."""
    return bool(_SECRET_NAME.search(key)) and not key.lower().endswith(("_env", "tokens"))


def add_secret(value: str) -> None:
    """Remember a secret value; `redact` removes it from any text."""
    if len(value) >= 4 and value not in {"EMPTY", "None", "null"}:
        _secrets.add(value)


def redact(text: str) -> str:
    """Return `text` without remembered secrets and without passwords of URLs."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return _USER_INFO.sub(rf"\g<scheme>\g<user>:{REDACTED}@", text)


class RedactingFormatter(logging.Formatter):
    """Formats a record, traceback included, and redacts it."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def get_logger(name: str = "") -> logging.Logger:
    """Return the logger `trinity` or `trinity.<name>`."""
    return logging.getLogger(f"{ROOT}.{name}" if name and not name.startswith(ROOT) else name or ROOT)


def parse_level(level: str) -> int:
    """Return the numeric level of a name in any case.

    Raises:
        ValueError: not a level.
    """
    value = logging.getLevelNamesMapping().get(level.upper())
    if value is None:
        raise ValueError(f"log level must be one of DEBUG, INFO, WARNING, ERROR, got {level!r}")
    return value


def log_to_console(level: str, handler: logging.Handler | None = None) -> None:
    """Send the framework's log to standard error, or to `handler`, at `level`."""
    root = logging.getLogger(ROOT)
    root.setLevel(parse_level(os.environ.get(LOG_LEVEL_ENV_VAR, level)))
    root.propagate = False
    for old in [h for h in root.handlers if getattr(h, "is_console", False)]:
        root.removeHandler(old)
    new = handler or logging.StreamHandler()
    new.is_console = True  # type: ignore[attr-defined]
    new.setFormatter(RedactingFormatter("%(message)s" if handler else FORMAT))
    root.addHandler(new)


def log_to_file(actor_name: str, log_dir: Path) -> logging.Handler:
    """Send what `trinity.<actor_name>` logs to `<log_dir>/<actor_name>.log` as well; return the handler."""
    log_dir.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        log_dir / f"{actor_name}.log", maxBytes=MAX_FILE_BYTES, backupCount=BACKUPS, encoding="utf-8"
    )
    handler.setFormatter(RedactingFormatter(FORMAT))
    get_logger(actor_name).addHandler(handler)
    return handler
