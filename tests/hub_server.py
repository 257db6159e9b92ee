"""A server that takes uploads as the hub does: create, preupload, LFS batch and commit; and refuses what it is told."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import yaml

from tests.http_service import listening

TOKEN = "hf_writes"


@dataclass
class UploadHub:
    """Repositories by name, each with its files by path, as commits left them."""

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, body: bytes, token: str) -> tuple[int, Any]:
        path = path.split("?")[0]
        self.asked.append(f"{method} {path}")
        if method == "PUT" and (blob := re.fullmatch(r"/lfs/(\w+)", path)):
            self.blobs[blob[1]] = body
            return 200, {}
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.repositories.setdefault(name, {})
            self.private[name] = bool(asked.get("private")) or asked.get("visibility") == "private"
            return 200, {"url": f"{self.url}/{name}", "id": name}
        if path == "/api/validate-yaml":
            front = yaml.safe_load(json.loads(body)["content"].split("---")[1])
            wrong = [] if isinstance(front, dict) and front.get("tags") else [{"message": "the card has no tags"}]
            return 200, {"errors": wrong, "warnings": []}
        found = re.fullmatch(r"/(?:api/models/)?([\w-]+/[\w-]+?)(?:\.git)?(/.*)?", path)
        if found is None or found[1] not in self.repositories:
            return 404, {"error": "Repository not found"}
        return self._of_repository(found[1], found[2] or "", body)

    def _of_repository(self, name: str, what: str, body: bytes) -> tuple[int, Any]:
        files = self.repositories[name]
        if what == "/preupload/main":
            asked = json.loads(body)["files"]
            kinds = [(each["path"], "lfs" if each["path"].endswith(".safetensors") else "regular") for each in asked]
            return 200, {"files": [{"path": p, "uploadMode": kind, "shouldIgnore": False} for p, kind in kinds]}
        if what == "/info/lfs/objects/batch":
            objects = json.loads(body)["objects"]
            made = [
                {"oid": each["oid"], "size": each["size"]}
                | (
                    {}
                    if each["oid"] in self.blobs
                    else {"actions": {"upload": {"href": f"{self.url}/lfs/{each['oid']}"}}}
                )
                for each in objects
            ]
            return 200, {"transfer": "basic", "objects": made}
        if what == "/commit/main":
            for line in filter(None, body.splitlines()):
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "header":
                    self.messages.append(value["summary"])
                elif entry["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    files[value["path"]] = self.blobs[value["oid"]]
            oid = f"{len(self.messages):040x}"
            return 200, {"success": True, "commitUrl": f"{self.url}/{name}/commit/{oid}", "commitOid": oid}
        if what in ("", "/revision/main"):
            siblings = [{"rfilename": path} for path in files]
            return 200, {"id": name, "sha": "0" * 40, "siblings": siblings, "private": self.private[name]}
        return 404, {"error": f"nothing at {what}"}


@contextmanager
def upload_hub() -> Iterator[UploadHub]:
    """Serve uploads on a free port of this machine."""
    hub = UploadHub()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, document = hub.answer(self.command, self.path, body, self.headers.get("Authorization") or "")
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _serve

        def log_message(self, *_: object) -> None:
            pass

    with listening(Handler) as hub.url:
        yield hub
