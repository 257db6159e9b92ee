"""A real HTTP server of files that continues at a byte, and fails as it is told to."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from tests.http_service import listening


@dataclass
class FileServer:
    """What the server gives, and how.

    Attributes:
        files: contents by path, such as `/train.parquet`.
        url: where it is.
        asked: method, path and Range of every request.
        cut_after: bytes after which the next answers break off, one after the other.
        status: given in place of the next answers to GET, one after the other.
        has_ranges: whether it continues at a byte.
        has_size: whether it says how long a file is.
        md5: stated for a path in place of the content's.
        word: `user:password` that must be given.
        stalls: events that the next answers wait for in the middle.
        on_get: called at the next GETs, one after the other, when the content of the answer is fixed.
    """

    files: dict[str, bytes]
    url: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    has_ranges: bool = True
    has_size: bool = True
    md5: dict[str, bytes] = field(default_factory=dict)
    word: str = ""
    stalls: list[threading.Event] = field(default_factory=list)
    on_get: list[Callable[[], object]] = field(default_factory=list)

    @property
    def ranges(self) -> list[str]:
        """The Range of every GET."""
        return [each for method, _, each in self.asked if method == "GET"]


@contextmanager
def file_server(files: dict[str, bytes]) -> Iterator[FileServer]:
    """Serve files on a port of this machine."""
    server = FileServer(files)
    handler = type("Handler", (_Handler,), {"files": server})
    with listening(handler) as server.url:
        yield server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: FileServer

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(is_head=True)

    def do_GET(self) -> None:
        self._answer(is_head=False)

    def _answer(self, *, is_head: bool) -> None:
        server, path = self.files, self.path.split("?")[0]
        server.asked.append((self.command, self.path, self.headers.get("Range", "")))
        if server.word and self.headers.get("Authorization") != f"Basic {_base64(server.word.encode())}":
            return self._refuse(401)
        if not is_head and server.status:
            return self._refuse(server.status.pop(0))
        if path not in server.files:
            return self._refuse(404)
        content = server.files[path]
        if not is_head and server.on_get:
            server.on_get.pop(0)()
        begin = self._head(path, content)
        if not is_head:
            self._send(content, begin)

    def _head(self, path: str, content: bytes) -> int:
        """Send the head of an answer; return the byte that the answer begins at."""
        server, etag = self.files, f'"{hashlib.sha1(content).hexdigest()[:20]}"'
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        is_part = wanted is not None and server.has_ranges and self.headers.get("If-Range") == etag
        begin = int(wanted[1]) if wanted is not None and is_part else 0
        self.send_response(206 if is_part else 200)
        self.send_header("ETag", etag)
        self.send_header("Content-MD5", _base64(server.md5.get(path, hashlib.md5(content).digest())))
        if is_part:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        if server.has_size:
            self.send_header("Content-Length", str(len(content) - begin))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        return begin

    def _send(self, content: bytes, begin: int) -> None:
        server = self.files
        cut = server.cut_after.pop(0) if server.cut_after else len(content)
        self.wfile.write(content[begin : begin + cut])
        self.wfile.flush()
        if server.stalls:
            server.stalls.pop(0).wait(20)
        self.close_connection = cut < len(content) or not server.has_size

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
