"""A server that answers W&B's own client: GraphQL, the stream of a run's files, and uploads.

It keeps what the client sends, as W&B's server does: history and summary of a run by its identity.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from tests.http_service import listening

ENTITY = "me"
NAME = re.compile(r"(?:query|mutation) (\w+)")


@dataclass
class WandbRun:
    """What the server has of a run."""

    name: str
    project: str
    fields: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, as it was sent last."""
        return {name: each["value"] for name, each in json.loads(self.fields["config"]).items() if name != "_wandb"}

    def bucket(self) -> dict[str, Any]:
        """Return what GraphQL says of it."""
        tail = [json.dumps(each) for each in self.history[-1:]]
        return {
            "id": f"id-{self.name}", "name": self.name, "displayName": self.fields.get("displayName"),
            "config": self.fields.get("config"), "summaryMetrics": json.dumps(self.summary),
            "historyLineCount": len(self.history), "eventsLineCount": 0, "logLineCount": 0,
            "historyTail": json.dumps(tail), "eventsTail": "[]", "tags": [], "notes": None,
            "wandbConfig": json.dumps({"t": 1}), "description": None, "sweepName": None,
            "project": {"id": "pid", "name": self.project, "entity": {"id": "eid", "name": ENTITY}},
        }  # fmt: skip


@dataclass
class WandbServer:
    """Runs by identity, and what is wrong with the server.

    Attributes:
        status: with which every request is answered in place of an answer; 0: none.
        keys: that the client has shown.
        requests: what was asked, for a failing test to show.
    """

    address: str = ""
    status: int = 0
    runs: dict[str, WandbRun] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def graphql(self, operation: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a query."""
        run = self.runs.get(str(given.get("name")))
        if operation == "Viewer":
            teams = {"edges": [{"node": {"name": ENTITY}}]}
            return {
                "viewer": {"id": "u", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}", "teams": teams}
            }
        if operation == "RunResumeStatus":
            entity = {"id": "eid", "name": ENTITY}
            bucket = None if run is None else run.bucket()
            return {"model": {"id": "pid", "name": given["project"], "entity": entity, "bucket": bucket}}
        if operation == "UpsertBucket":
            is_new = run is None
            if run is None:
                run = self.runs[given["name"]] = WandbRun(given["name"], given["project"])
            run.fields |= {key: value for key, value in given.items() if value is not None}
            return {"upsertBucket": {"bucket": run.bucket(), "inserted": is_new}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.address}/up/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if operation == "ArtifactType":
            return {"project": {"artifact": None}}
        if operation == "CreateArtifact":  # as if it were there already: the file of a table lies in the run, too
            sequence = {"latestArtifact": {"id": "a"}}
            return {"createArtifact": {"artifact": {"id": "a", "state": "COMMITTED", "artifactSequence": sequence}}}
        return {}

    def stream(self, name: str, sent: dict[str, Any]) -> None:
        """Take in a part of the stream of a run's files."""
        run = self.runs[name]
        for file, chunk in sent.get("files", {}).items():
            lines = [json.loads(line) for line in chunk["content"]]
            if file == "wandb-history.jsonl":
                run.history[chunk["offset"] :] = lines
            elif file == "wandb-summary.json":
                run.summary = lines[-1]
        if sent.get("complete"):
            run.exit_code = sent.get("exitcode")


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """Serve on a free port of this machine."""
    server = WandbServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            with suppress(ConnectionError):  # a client that has ended
                super().handle()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            path = urlsplit(self.path).path
            with server.lock:
                self.answer(path, body)

        do_PUT = do_POST
        do_GET = do_POST

        def answer(self, path: str, body: bytes) -> None:
            if server.status:
                self.reply(server.status, {"errors": [{"message": "away"}]})
                return
            server.keys.add(self.headers.get("Authorization", ""))
            if path == "/graphql":
                asked = json.loads(body)
                operation = NAME.findall(asked["query"])[0]
                given = asked.get("variables") or {}
                server.requests.append(operation)
                if operation == "UpsertBucket" and given.get("name") in server.deleted:
                    message = f"run {given['name']} was previously created and deleted; try a new run name"
                    self.reply(410, {"errors": [{"message": message}]})
                    return
                self.reply(200, {"data": server.graphql(operation, given)})
                return
            server.requests.append(path)
            if path.endswith("/file_stream"):
                server.stream(path.split("/")[-2], json.loads(body))
            elif path.startswith("/up/"):
                server.files[path.removeprefix("/up/")] = body
            self.reply(200, {})

        def reply(self, status: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with listening(Handler) as server.address:
        yield server
