"""Where files come from: one class over fsspec, one over HTTP."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from trinity.utils.packages import install_hint, is_installed
from trinity.utils.remote.addresses import base_name, scheme_name, scheme_of, shown
from trinity.utils.remote.errors import AddressError, Interrupted
from trinity.utils.remote.patience import Patience

CHUNK_BYTES = 8 << 20
# What changes with the content, and what is looked at where a store has none of that.
_OF_CONTENT = ("ETag", "etag", "md5Hash", "crc32c", "generation")
_TIMES = ("LastModified", "last-modified", "last_modified", "mtime", "updated", "created")
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True)
class Stated:
    """A hash that a store states for a file.

    Attributes:
        algorithm: sha256 or md5.
        digest: in hexadecimal digits.
        is_certain: whether it is the content's; an ETag is only where the store does not encrypt.
    """

    algorithm: str
    digest: str
    is_certain: bool


@dataclass(frozen=True)
class RemoteFile:
    """A file as its store tells of it.

    Attributes:
        name: in the folder that is copied, with `/` between its parts.
        path: as the client wants it.
        size: in bytes; None: the store does not say.
        marks: what changes with the content: ETag, or else the time of the last change.
        hashes: what the store states of the content.
    """

    name: str
    path: str
    size: int | None
    marks: Mapping[str, str] = field(default_factory=dict)
    hashes: tuple[Stated, ...] = ()

    def is_same(self, other: RemoteFile) -> bool:
        """Return whether size and common marks are equal."""
        common = self.marks.keys() & other.marks.keys()
        return self.size == other.size and all(self.marks[name] == other.marks[name] for name in common)


class Source(Protocol):
    """What is asked of a store; every method may raise what a client does."""

    address: str

    def listing(self) -> tuple[bool, list[RemoteFile]]:
        """Return whether the address is a folder, and its files."""

    def again(self, file: RemoteFile) -> RemoteFile:
        """Return what the store tells of a file now."""

    def read(self, file: RemoteFile, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield places and pieces of a file, in bytes.

        It begins at `offset`, or at 0 where the store reads from the beginning only.
        """


def source_of(address: str, patience: Patience, *, key: str | None = None) -> Source:
    """Return the store of an address.

    Args:
        address: `is_remote` holds.
        patience: bounds each answer.
        key: of the configuration, for the message.

    Raises:
        AddressError: a package is missing (E3301).
    """
    if scheme_of(address).protocol == "http":
        return WebSource(address, patience)
    return StoreSource(address, file_system(address, key=key))


def file_system(address: str, *, key: str | None = None) -> Any:
    """Return fsspec's file system of an address.

    Keys and end points are those of the environment: what the client of the store reads, and fsspec's own variables
    (`FSSPEC_S3_ENDPOINT_URL`).

    Raises:
        AddressError: a package is missing (E3301).
    """
    scheme = scheme_of(address)
    if scheme.package is not None and not is_installed(scheme.package):
        what = f"`{key}`" if key else shown(address)
        way_out = install_hint(scheme.extra) if scheme.extra else f"`pip install {scheme.package}`"
        raise AddressError(
            f"{what} needs the package {scheme.package}, which is not installed; run {way_out}", code="E3301"
        )
    import fsspec

    options: dict[str, Any] = {}
    if scheme.protocol == "hdfs":
        place = urlsplit(address)
        options = {"host": place.hostname or "default", "port": place.port or 0, "user": place.username}
    return fsspec.filesystem(scheme.protocol, use_listings_cache=False, **options)


def path_of(address: str, system: Any) -> str:
    """Return the path of an address as its file system wants it."""
    name, rest = scheme_name(address), address.partition("://")[2]
    return str(system._strip_protocol(f"{'s3' if name == 's3a' else name}://{rest}"))


class StoreSource:
    """The files of a store that fsspec knows.

    Args:
        address: of a file or a folder.
        system: its file system.
    """

    def __init__(self, address: str, system: Any) -> None:
        self.address = address
        self.system = system
        self.path = path_of(address, system)

    def listing(self) -> tuple[bool, list[RemoteFile]]:
        """Return whether the address is a folder, and its files."""
        self.system.invalidate_cache()
        info = self.system.info(self.path)
        if info["type"] == "file":
            return False, [_file_of(base_name(self.address), info)]
        root = str(info["name"]).rstrip("/")
        found = self.system.find(self.path, detail=True)
        files = (each for each in found.values() if each["type"] == "file" and not each["name"].endswith("/"))
        return True, [_file_of(str(each["name"])[len(root) :].removeprefix("/"), each) for each in files]

    def again(self, file: RemoteFile) -> RemoteFile:
        """Return what the store tells of a file now."""
        self.system.invalidate_cache()
        return _file_of(file.name, self.system.info(file.path))

    def read(self, file: RemoteFile, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield places and pieces of a file, in bytes."""
        assert file.size is not None, "a store says how large its files are"
        while offset < file.size:
            end = min(offset + CHUNK_BYTES, file.size)
            piece = self.system.cat_file(file.path, start=offset, end=end)
            if not piece:
                raise Interrupted(f"it ends after {offset} of {file.size} bytes")
            yield offset, piece
            offset += len(piece)


def _file_of(name: str, info: Mapping[str, Any]) -> RemoteFile:
    size = info.get("size")
    return RemoteFile(name, str(info["name"]), None if size is None else int(size), _marks(info), tuple(_hashes(info)))


def _marks(info: Mapping[str, Any]) -> dict[str, str]:
    """Return what changes with the content."""
    of_content = {name: str(info[name]) for name in _OF_CONTENT if info.get(name)}
    return of_content or {name: _time(info[name]) for name in _TIMES if info.get(name)}


def _time(value: Any) -> str:
    """Return a time alike from a listing and from a look at one file."""
    return str(value.timestamp() if isinstance(value, datetime) else value)


def _hashes(info: Mapping[str, Any]) -> Iterator[Stated]:
    """Yield the hashes in what a store tells of a file."""
    etag = _MD5.fullmatch(str(info.get("ETag", "")))
    if etag is not None:
        yield Stated("md5", etag[1], is_certain=False)
    for name, algorithm in (("md5Hash", "md5"), ("Content-MD5", "md5"), ("content-md5", "md5")):
        yield from _decoded(algorithm, info.get(name))
    for entry in str(info.get("digest") or info.get("repr-digest") or "").split(","):
        algorithm, _, text = entry.strip().partition("=")
        if algorithm.lower() in ("sha-256", "md5"):
            yield from _decoded(algorithm.lower().replace("-", ""), text.strip(":"))


def _decoded(algorithm: str, text: Any) -> Iterator[Stated]:
    """Yield a hash that is written in base 64; none where it is not."""
    with contextlib.suppress(binascii.Error, ValueError):
        raw = base64.b64decode(text or "", validate=True)
        if len(raw) == {"md5": 16, "sha256": 32}[algorithm]:
            yield Stated(algorithm, raw.hex(), is_certain=True)


@functools.cache
def _certificates() -> Any:
    """Return what servers are verified with; reading it takes long."""
    import httpx

    return httpx.create_ssl_context()


class WebSource:
    """One file of an HTTP server.

    httpx and not fsspec: only a client that shows the status tells whether the server continued at the byte that was
    asked for, and `If-Range` makes it the same file.

    Args:
        address: of the file; a user and password in it are sent.
        patience: bounds connecting and each piece.
    """

    def __init__(self, address: str, patience: Patience) -> None:
        self.address = address
        self.timeout_s = patience.timeout_s

    def listing(self) -> tuple[bool, list[RemoteFile]]:
        """Return False and the file."""
        return False, [self._told()]

    def again(self, file: RemoteFile) -> RemoteFile:
        """Return what the server tells of the file now."""
        return self._told()

    def read(self, file: RemoteFile, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield places and pieces of the file, in bytes."""
        mark = file.marks.get("etag", "")
        condition = mark if mark.startswith('"') else file.marks.get("last-modified")
        headers = {"Range": f"bytes={offset}-"} if offset and condition else {}
        if headers and condition:
            headers["If-Range"] = condition
        with self._client() as client, client.stream("GET", self.address, headers=headers) as answer:
            answer.raise_for_status()
            part = _RANGE.fullmatch(answer.headers.get("content-range", ""))
            place = int(part[1]) if answer.status_code == 206 and part is not None else 0
            for piece in answer.iter_raw():  # as it comes: what is gathered is lost where the connection breaks
                yield place, piece
                place += len(piece)

    def _client(self) -> Any:
        import httpx

        headers = {"Accept-Encoding": "identity", "User-Agent": "trinity-rft"}
        return httpx.Client(timeout=self.timeout_s, follow_redirects=True, headers=headers, verify=_certificates())

    def _told(self) -> RemoteFile:
        with self._client() as client:
            answer = client.head(self.address)
            if answer.status_code in (400, 403, 405, 501):  # a link may be signed for GET alone
                with client.stream("GET", self.address) as answer:
                    answer.raise_for_status()
            answer.raise_for_status()
        told = dict(answer.headers)
        size = told.get("content-length") if "content-encoding" not in told else None
        name = base_name(self.address)
        return RemoteFile(name, unquote(name), None if size is None else int(size), _marks(told), tuple(_hashes(told)))
