"""Addresses of files elsewhere: their schemes, and how they are shown.

Imports no client of a store, so that the rules of a configuration may ask.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from trinity.utils.log import QUERY_SECRET, redact

_FORM = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


@dataclass(frozen=True)
class Scheme:
    """A kind of address.

    Attributes:
        protocol: the name that fsspec has for it.
        package: what must be installed; None: nothing more.
        extra: the extra that brings the package; None: it is always installed.
        has_folders: whether a folder can be listed, as a model needs.
        is_writable: whether checkpoints can be copied there.
    """

    protocol: str
    package: str | None = None
    extra: str | None = None
    has_folders: bool = True
    is_writable: bool = True


_S3, _GCS = Scheme("s3", "s3fs", "s3"), Scheme("gs", "gcsfs", "gcs")
_HTTP = Scheme("http", has_folders=False, is_writable=False)
SCHEMES = {
    "s3": _S3,
    "s3a": _S3,  # Hadoop's name
    "gs": _GCS,
    "gcs": _GCS,
    "oss": Scheme("oss", "ossfs", "oss"),
    "hdfs": Scheme("hdfs", "pyarrow", "hdfs"),
    "http": _HTTP,
    "https": _HTTP,
    "memory": Scheme("memory"),  # of one process, for tests
}


def scheme_name(path: object) -> str | None:
    """Return the scheme of an address in lower case; None: a local path."""
    match = _FORM.fullmatch(path) if isinstance(path, str) else None
    return None if match is None else match[1].lower()


def is_remote(path: object) -> bool:
    """Return whether a path is an address that can be fetched from."""
    return scheme_name(path) in SCHEMES


def scheme_of(address: str) -> Scheme:
    """Return the scheme of an address for which `is_remote` holds."""
    return SCHEMES[scheme_name(address) or ""]


def shown(address: str) -> str:
    """Return an address without what may be a secret, for messages."""
    return redact(address)


def base_name(address: str) -> str:
    """Return the last name in an address; `data` where there is none."""
    is_web = scheme_name(address) in ("http", "https")
    path = unquote(urlsplit(address).path) if is_web else address.partition("://")[2]
    name = path.rstrip("/").rpartition("/")[2].replace("\0", "")
    return name if name not in ("", ".", "..") else "data"


def joined(address: str, *names: str) -> str:
    """Return the address of a name below another one."""
    return "/".join([address.rstrip("/"), *names])


def identity(address: str) -> str:
    """Return what names an address in the cache: 32 hexadecimal digits.

    User, password and signatures do not count: a link that is signed again each day is the same file.
    """
    name, rest = (scheme_name(address) or "").replace("s3a", "s3").replace("gcs", "gs"), address.partition("://")[2]
    if name in ("http", "https"):
        parts = urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
        kept = "&".join(each for each in parts.query.split("&") if not QUERY_SECRET.match(f"?{each}"))
        rest = urlunsplit(("", host, parts.path, kept, ""))
    else:
        place, slash, key = rest.partition("/")
        rest = place.rpartition("@")[2] + slash + key.rstrip("/")
    return hashlib.sha256(f"{name}://{rest}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_safe_name(name: str) -> bool:
    """Return whether a listed name stays in the folder that it is put in."""
    return bool(name) and "\0" not in name and "\\" not in name and not {"", ".", ".."} & set(name.split("/"))
