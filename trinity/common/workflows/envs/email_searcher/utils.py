"""The mails of a database: search and reading.

The connection is not shared and cannot write.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_RESULTS = 10
_SEARCH = """
SELECT e.message_id, snippet(emails_fts, -1, '<b>', '</b>', ' ... ', 15)
FROM emails_fts JOIN emails e ON e.id = emails_fts.rowid
WHERE emails_fts MATCH :words AND e.date < :before AND (e.from_address = :inbox OR EXISTS (
    SELECT 1 FROM recipients r WHERE r.email_id = e.id AND r.recipient_address = :inbox))
ORDER BY e.date DESC, e.message_id LIMIT :most
"""
_READ = """
SELECT e.id, e.message_id, e.date, e.subject, e.from_address, e.body FROM emails e
WHERE e.message_id = :message_id AND (e.from_address = :inbox OR EXISTS (
    SELECT 1 FROM recipients r WHERE r.email_id = e.id AND r.recipient_address = :inbox))
"""


class Inbox:
    """The mails that one address sent or got, up to the end of a day.

    Args:
        path: a database of `prepare_data`.
        address: of the inbox.
        query_date: last day whose mails are found, `YYYY-MM-DD`.
    """

    def __init__(self, path: Path, *, address: str, query_date: str) -> None:
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no database of mails at {path}; make one with generate_database of "
                "trinity.common.workflows.envs.email_searcher.prepare_data"
            )
        self.address = address
        self.before = str(datetime.date.fromisoformat(query_date) + datetime.timedelta(days=1))
        uri = f"{path.resolve().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)

    def search(self, keywords: Sequence[str]) -> list[dict[str, str]]:
        """Return id and snippet of up to 10 mails with all keywords, newest first."""
        words = " ".join('"' + word.replace('"', '""') + '"' for word in keywords)
        given = {"words": words, "inbox": self.address, "before": self.before, "most": MAX_RESULTS}
        return [{"message_id": name, "snippet": text} for name, text in self._connection.execute(_SEARCH, given)]

    def read(self, message_id: str) -> dict[str, Any] | None:
        """Return a mail of the inbox; None if there is none of this id."""
        found = self._connection.execute(_READ, {"message_id": message_id, "inbox": self.address}).fetchone()
        if found is None:
            return None
        number, *values = found
        mail = dict(zip(("message_id", "date", "subject", "from", "body"), values, strict=True))
        to = self._connection.execute(
            "SELECT recipient_type, recipient_address FROM recipients WHERE email_id = ?", (number,)
        )
        for kind, address in to:
            mail.setdefault(kind, []).append(address)
        return mail

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def tool_call(text: str) -> tuple[str, dict[str, Any]] | str:
    """Return name and arguments of the last call in a text.

    Or what is wrong with it.
    """
    opened, closed = text.rfind("<tool_call>"), text.rfind("</tool_call>")
    if opened < 0 or closed < opened:
        return "there is no <tool_call>...</tool_call>"
    try:
        call = json.loads(text[opened + len("<tool_call>") : closed])
    except (ValueError, RecursionError) as error:
        return f"the call is no JSON: {error}"
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return 'the call must be {"name": ..., "arguments": {...}}'
    arguments = call.get("arguments", {})
    return (call["name"], arguments) if isinstance(arguments, dict) else "`arguments` must be an object"
