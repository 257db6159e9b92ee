"""Stores that answer on this machine: memory, and a server of S3."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest


@pytest.fixture
def memory() -> str:
    """Return the address of an empty folder in memory."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Start moto's server of S3; return its address."""
    pytest.importorskip("s3fs")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a new bucket; the environment has its keys."""
    for name, value in (("ACCESS_KEY_ID", "reader"), ("SECRET_ACCESS_KEY", "open-sesame"), ("ENDPOINT_URL", s3_server)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = f"b{uuid.uuid4().hex[:12]}"
    store().mkdir(name)
    return f"s3://{name}"


def store() -> Any:
    """Return fsspec's file system of S3, without what it remembers."""
    return fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
