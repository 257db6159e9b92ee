"""The database of mails.

It has the tables `emails` and `recipients`, and an FTS5 index over subject and body.

`generate_database(repo_id, db_path)` makes it of a dataset whose rows have `message_id`, `subject`, `from`, `to`, `cc`,
`bcc`, `date`, `body` and `file_name`, as `corbt/enron-emails` has.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DEFAULT_REPO_ID = "corbt/enron-emails"
MAX_BODY_CHARS = 5000
MAX_RECIPIENTS = 30

_TABLES = """
CREATE TABLE emails (
    id INTEGER PRIMARY KEY, message_id TEXT UNIQUE, subject TEXT, from_address TEXT, date TEXT, body TEXT,
    file_name TEXT
);
CREATE TABLE recipients (email_id INTEGER REFERENCES emails(id), recipient_address TEXT, recipient_type TEXT);
CREATE VIRTUAL TABLE emails_fts USING fts5(subject, body, content='emails', content_rowid='id');
"""
_INDEXES = """
CREATE INDEX idx_emails_from ON emails(from_address);
CREATE INDEX idx_emails_date ON emails(date);
CREATE INDEX idx_recipients ON recipients(recipient_address, email_id);
CREATE INDEX idx_recipients_email ON recipients(email_id);
INSERT INTO emails_fts(emails_fts) VALUES ('rebuild');
"""


def generate_database(repo_id: str, db_path: str | Path, overwrite: bool = False) -> None:
    """Write the database of a dataset, a hub id or a folder.

    A database that is there is left alone unless `overwrite`.
    """
    from datasets import load_dataset

    if overwrite or not Path(db_path).exists():
        write_database(load_dataset(repo_id, split="train"), db_path)


def write_database(emails: Iterable[Mapping[str, Any]], db_path: str | Path) -> int:
    """Write mails to a new database; return how many.

    Mails with a body of more than 5,000 characters or more than 30 recipients are left out, and so is the second of two
    with the same subject, body and sender. The file appears when it is complete.
    """
    path = Path(db_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    unfinished.unlink(missing_ok=True)
    connection = sqlite3.connect(unfinished)
    try:
        connection.executescript(_TABLES)
        seen: set[tuple[Any, ...]] = set()
        for mail in emails:
            _write(connection, mail, seen)
        connection.executescript(_INDEXES)
        connection.commit()
    except BaseException:
        connection.close()
        unfinished.unlink()
        raise
    connection.close()
    unfinished.replace(path)
    return len(seen)


def _write(connection: sqlite3.Connection, mail: Mapping[str, Any], seen: set[tuple[Any, ...]]) -> None:
    recipients = [(address, kind) for kind in ("to", "cc", "bcc") for address in mail.get(kind) or () if address]
    body = mail.get("body") or ""
    key = (mail.get("subject"), body, mail.get("from"))
    if len(body) > MAX_BODY_CHARS or len(recipients) > MAX_RECIPIENTS or key in seen:
        return
    seen.add(key)
    date = mail["date"]
    number = connection.execute(
        "INSERT INTO emails (message_id, subject, from_address, date, body, file_name) VALUES (?, ?, ?, ?, ?, ?)",
        (mail["message_id"], mail.get("subject"), mail.get("from"),
         date if isinstance(date, str) else date.strftime("%Y-%m-%d %H:%M:%S"), body, mail.get("file_name")),
    ).lastrowid  # fmt: skip
    connection.executemany("INSERT INTO recipients VALUES (?, ?, ?)", [(number, *each) for each in recipients])
