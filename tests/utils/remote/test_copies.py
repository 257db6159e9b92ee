"""Copies of files elsewhere: once, continued, verified, and refused with their reasons."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.file_server import FileServer
from tests.stores import store
from trinity.utils import failpoints
from trinity.utils.locks import FileLock
from trinity.utils.remote import copies
from trinity.utils.remote.addresses import SCHEMES, Scheme, base_name, identity, is_safe_name, shown
from trinity.utils.remote.copies import Copy, fetch, kept_copy
from trinity.utils.remote.errors import AddressError
from trinity.utils.remote.patience import Patience, default_timeout_s

SOON = Patience(timeout_s=20.0, attempts=3, pause_s=0.01)
CONTENT = random.Random(0).randbytes(300_000)


def refused(address: str, **how: Any) -> AddressError:
    with pytest.raises(AddressError) as caught:
        fetch(address, **{"patience": SOON, **how})
    return caught.value


def parts(cache: Path) -> list[Path]:
    return list(cache.rglob("*.part"))


# --------------------------------------------------------------------- HTTP
def test_a_file_is_fetched_once_and_anew_when_it_changed(web: FileServer, caplog: pytest.LogCaptureFixture) -> None:
    address = f"{web.url}/data/train.parquet"
    web.files["/data/train.parquet"] = CONTENT
    first = fetch(address, patience=SOON)
    assert first.path.name == "train.parquet" and first.path.read_bytes() == CONTENT
    assert first.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert fetch(address, patience=SOON) == first == kept_copy(address) and len(web.ranges) == 1
    web.files["/data/train.parquet"] = CONTENT[::-1]
    with caplog.at_level(logging.INFO, "trinity"):
        second = fetch(address, patience=SOON)
    assert second.path.read_bytes() == CONTENT[::-1] and "has changed since it was fetched last" in caplog.text
    assert first.path.read_bytes() == CONTENT, "a copy in use is left alone"


def test_a_transfer_that_breaks_off_goes_on_at_its_byte(web: FileServer, cache: Path) -> None:
    web.files["/a.jsonl"] = CONTENT
    web.cut_after = [100_000, 50_000]
    assert fetch(f"{web.url}/a.jsonl", patience=SOON).path.read_bytes() == CONTENT
    assert web.ranges == ["", "bytes=100000-", "bytes=150000-"] and not parts(cache)


def test_what_came_before_a_kill_is_not_fetched_again_and_a_new_version_is_not_joined_to_it(
    web: FileServer, cache: Path
) -> None:
    web.files["/a.jsonl"] = CONTENT
    web.cut_after = [100_000, 0, 0, 0]
    assert refused(f"{web.url}/a.jsonl").code == "E3614"
    assert [part.stat().st_size for part in parts(cache)] == [100_000]
    web.asked, web.cut_after = [], []
    assert fetch(f"{web.url}/a.jsonl", patience=SOON).path.read_bytes() == CONTENT
    assert web.ranges == ["bytes=100000-"]
    web.files["/b.jsonl"], web.cut_after = CONTENT, [100_000, 0, 0, 0]
    refused(f"{web.url}/b.jsonl")
    web.files["/b.jsonl"], web.cut_after = CONTENT[::-1], []
    assert fetch(f"{web.url}/b.jsonl", patience=SOON).path.read_bytes() == CONTENT[::-1]


def test_a_server_that_begins_at_the_beginning_only_and_one_without_sizes(web: FileServer) -> None:
    web.files["/a.jsonl"], web.has_ranges, web.cut_after = CONTENT, False, [100_000]
    assert fetch(f"{web.url}/a.jsonl", patience=SOON).path.read_bytes() == CONTENT
    web.files["/b.jsonl"], web.has_size = CONTENT, False
    assert fetch(f"{web.url}/b.jsonl", patience=SOON).path.read_bytes() == CONTENT
    web.files["/empty.jsonl"], web.has_size = b"", True
    assert fetch(f"{web.url}/empty.jsonl", patience=SOON).path.read_bytes() == b""


def test_a_wrong_hash_is_refused_after_a_second_try(web: FileServer, cache: Path) -> None:
    web.files["/a.jsonl"] = CONTENT
    web.md5["/a.jsonl"] = hashlib.md5(b"other").digest()
    error = refused(f"{web.url}/a.jsonl")
    assert error.code == "E3616" and hashlib.md5(b"other").hexdigest() in error.args[0]
    assert len(web.ranges) == 2 and not parts(cache) and kept_copy(f"{web.url}/a.jsonl") is None


@pytest.mark.parametrize(("status", "code", "tries"), [(404, "E3610", 1), (403, "E3611", 1), (503, "E3614", 3)])
def test_what_a_server_refuses_is_told_apart(web: FileServer, status: int, code: str, tries: int) -> None:
    web.files["/a.jsonl"], web.status = CONTENT, [status] * 5
    assert refused(f"{web.url}/a.jsonl").code == code and len(web.ranges) == tries
    web.status = [503]
    assert fetch(f"{web.url}/a.jsonl", patience=SOON).path.exists(), "a server that recovers is asked again"


def test_a_server_that_is_gone_is_told_and_an_earlier_copy_is_used(
    web: FileServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    web.files["/a.jsonl"] = CONTENT
    copy = fetch(f"{web.url}/a.jsonl", patience=SOON)
    error = refused("http://127.0.0.1:9/a.jsonl")
    assert error.code == "E3614" and "tried 3 times" in error.args[0] and "same command again" in error.args[0]
    web.stalls = [threading.Event()] * 9
    web.word = "now:closed"
    assert refused(f"{web.url}/a.jsonl").code == "E3611", "a copy does not replace a permission"
    monkeypatch.setattr(SOON.__class__, "call", _no_answer)
    assert fetch(f"{web.url}/a.jsonl", patience=SOON) == copy and "fetched before is used" in caplog.text


def _no_answer(self: Patience, what: str, ask: Any) -> Any:
    self.failed(what, ConnectionError("the network is down"), self.attempts)


def test_an_answer_that_does_not_come_ends_at_the_deadline(web: FileServer) -> None:
    web.files["/a.jsonl"] = CONTENT
    web.cut_after, go_on = [1000, 0, 0, 0], threading.Event()
    web.stalls = [go_on] * 4
    error = refused(f"{web.url}/a.jsonl", patience=Patience(timeout_s=0.3, attempts=2, pause_s=0.01))
    go_on.set()
    assert error.code == "E3614" and "tried 2 times" in error.args[0] and "TRINITY_REMOTE_TIMEOUT" in error.args[0]


def test_passwords_and_signatures_are_sent_and_never_told(
    web: FileServer, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    web.files["/a.jsonl"], web.word = CONTENT, "reader:open-sesame"
    plain = f"{web.url}/a.jsonl"
    secret = plain.replace("://", "://reader:open-sesame@") + "?v=2&X-Amz-Signature=abcdef123&x=1"
    assert refused(plain).code == "E3611"
    with caplog.at_level(logging.DEBUG, "trinity"):
        copy = fetch(secret, patience=SOON)
    assert copy.address == plain.replace("://", "://reader:***@") + "?v=2&X-Amz-Signature=***&x=1"
    told = [caplog.text, *(file.read_text("latin-1") for file in cache.rglob("*.json"))]
    assert told and not any("open-sesame" in text or "abcdef123" in text for text in told)
    assert identity(secret) == identity(secret.replace("abcdef123", "other").replace("open-sesame", "new"))
    assert identity(secret) != identity(secret.replace("v=2", "v=3")) != identity(plain)


def test_what_changes_while_it_is_copied_is_begun_anew(web: FileServer, cache: Path) -> None:
    def change() -> None:
        web.files["/a.jsonl"] = web.files["/a.jsonl"][1:]

    web.files["/a.jsonl"], web.on_get = CONTENT, [change]
    assert fetch(f"{web.url}/a.jsonl", patience=SOON).path.read_bytes() == CONTENT[1:]
    web.files["/b.jsonl"] = b"x"
    web.on_get = [lambda: web.files.update({"/b.jsonl": web.files["/b.jsonl"] + b"y"})] * 9
    assert refused(f"{web.url}/b.jsonl").code == "E3617" and not parts(cache)


def test_two_that_ask_at_once_download_once(web: FileServer) -> None:
    web.files["/a.jsonl"], go_on = CONTENT, threading.Event()
    web.stalls = [go_on]
    found: list[Copy] = []
    asking = [
        threading.Thread(target=lambda: found.append(fetch(f"{web.url}/a.jsonl", patience=SOON))) for _ in range(3)
    ]
    for each in asking:
        each.start()
    go_on.set()
    for each in asking:
        each.join(20)
    assert len(found) == 3 and len(set(found)) == 1 and len(web.ranges) == 1


def test_a_download_that_another_process_holds_without_progress_ends_at_the_deadline(web: FileServer) -> None:
    web.files["/a.jsonl"] = CONTENT
    root = copies.cache_dir("remote") / identity(f"{web.url}/a.jsonl")
    root.mkdir(parents=True)
    held = FileLock(root / "lock")
    error = refused(f"{web.url}/a.jsonl", patience=Patience(timeout_s=1.0, attempts=1))
    held.release()
    assert error.code == "E3620" and f"pid {os.getpid()}" in error.args[0]


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(
    web: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files["/a.jsonl"] = CONTENT
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    error = refused(f"{web.url}/a.jsonl")
    assert error.code == "E3613" and "TRINITY_CACHE_DIR" in error.args[0] and web.ranges == []


def test_a_disk_that_fills_up_is_told_and_keeps_what_has_come(web: FileServer, cache: Path) -> None:
    web.files["/a.jsonl"] = CONTENT
    failpoints.configure("remote.after_piece=enospc@2")
    error = refused(f"{web.url}/a.jsonl")
    failpoints.configure("")
    (part,) = parts(cache)
    size = part.stat().st_size
    assert error.code == "E3613" and 0 < size < len(CONTENT)
    assert fetch(f"{web.url}/a.jsonl", patience=SOON).path.read_bytes() == CONTENT
    assert web.ranges == ["", f"bytes={size}-"]


def test_old_versions_are_removed_unless_they_are_in_use(web: FileServer, cache: Path) -> None:
    found = []
    for number in range(3):
        web.files["/a.jsonl"] = CONTENT[number:]
        found.append(fetch(f"{web.url}/a.jsonl", patience=SOON))
        if number == 0:
            copies._in_use.popitem()[1].release()
    assert [copy.path.exists() for copy in found] == [False, True, True]


def test_a_copy_that_somebody_wrote_to_is_fetched_again(web: FileServer) -> None:
    web.files["/a.jsonl"] = CONTENT
    copy = fetch(f"{web.url}/a.jsonl", patience=SOON)
    copy.path.write_bytes(CONTENT[::-1])
    copy.path.unlink()
    assert kept_copy(f"{web.url}/a.jsonl") is None
    assert fetch(f"{web.url}/a.jsonl", patience=SOON).path.read_bytes() == CONTENT


# ------------------------------------------------------------------- memory
def put(address: str, **files: bytes) -> None:
    system = fsspec.filesystem("memory")
    for name, content in files.items():
        system.pipe_file(f"{address}/{name}", content)


def test_of_a_folder_the_files_that_are_meant_are_copied(memory: str) -> None:
    names = {"config.json": b"{}", "model.safetensors": CONTENT, "pytorch_model.bin": b"pickle", "sub/x.json": b"1"}
    put(memory, **names)
    copy = fetch(memory, patterns=("*.json", "*.safetensors"), patience=SOON)
    assert copy.path.name == memory.rpartition("/")[2]
    found = {str(file.relative_to(copy.path)) for file in copy.path.rglob("*") if file.is_file()}
    assert found == {"config.json", "model.safetensors", "sub/x.json"}
    assert kept_copy(memory, patterns=("*.json",)) == copy and kept_copy(memory) is None
    put(memory, **{"config.json": b"{ }"})
    assert fetch(memory, patterns=("*.json", "*.safetensors"), patience=SOON).sha256 != copy.sha256
    assert refused(memory, patterns=("*.gguf",)).code == "E3619"
    assert refused(f"{memory}/nowhere").code == "E3610"


@pytest.mark.parametrize(
    "name", ["../../evil.json", "a/../../evil.json", "/evil.json", "a//b.json", "", "a\\..\\b", "."]
)
def test_names_that_leave_the_folder_are_refused(name: str) -> None:
    assert not is_safe_name(name) and is_safe_name("a/b.json") and is_safe_name("..a")


class Listing(MemoryFileSystem):
    """A store that lists what it is told to, and breaks as it is told to."""

    protocol = "listing"
    names: tuple[str, ...] = ()
    failures: list[Exception] = []
    pieces: list[bytes] = []
    cachable = False

    def find(self, path: str, **options: Any) -> Any:
        return {f"{path}/{name}": {"name": f"{path}/{name}", "type": "file", "size": 1} for name in self.names}

    def cat_file(self, path: str, **options: Any) -> bytes:
        return self.pieces.pop()

    def info(self, path: str, **options: Any) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        return {"name": path, "type": "directory", "size": 0}


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> type[Listing]:
    fsspec.register_implementation("listing", Listing, clobber=True)
    monkeypatch.setitem(SCHEMES, "listing", Scheme("listing"))
    monkeypatch.setattr(Listing, "failures", [])
    return Listing


@pytest.mark.parametrize("names", [("../../evil.json",), ("a/../../evil.json",), ("/evil.json",), ("a", "a/b")])
def test_a_listing_that_leaves_the_folder_is_refused(
    listing: type[Listing], names: tuple[str, ...], tmp_path: Path
) -> None:
    listing.names = names
    error = refused("listing://folder")
    assert error.code == "E3618" and repr(names[0])[1:-1] in error.args[0]
    assert not list(tmp_path.rglob("evil.json"))


def test_a_file_that_always_ends_early_is_refused(listing: type[Listing], cache: Path) -> None:
    listing.names = ("config.json",)
    listing.pieces = [b""] * 3
    error = refused("listing://folder")
    assert error.code == "E3615" and "ends after 0 of 1 bytes, tried 3 times" in error.args[0]
    assert not listing.pieces and kept_copy("listing://folder") is None


def test_errors_of_clients_are_told_apart(listing: type[Listing]) -> None:
    class NoCredentialsError(Exception):
        pass

    for error, code in (
        (NoCredentialsError("no keys"), "E3611"),
        (PermissionError("no"), "E3611"),
        (OSError("Unable to load libhdfs: cannot open shared object file"), "E3612"),
        (OSError(28, "No space left on device"), "E3613"),
    ):
        listing.failures = [error]
        assert refused("listing://folder").code == code
    listing.failures = [OSError("reset"), TimeoutError("late"), ValueError("of a client")]
    error = refused("listing://folder")
    assert error.code == "E3614" and "of a client" in error.args[0] and listing.failures == []


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trinity.utils.remote.sources.is_installed", lambda package: False)
    for address, package, extra in (
        ("s3://b/a", "s3fs", "s3"),
        ("s3a://b/a", "s3fs", "s3"),
        ("gs://b/a", "gcsfs", "gcs"),
        ("oss://b/a", "ossfs", "oss"),
        ("hdfs://n/a", "pyarrow", "hdfs"),
    ):
        error = refused(address, key="model.model_path")
        assert error.code == "E3301" and f"needs the package {package}" in error.args[0]
        assert f"`pip install 'trinity-rft[{extra}]'`" in error.args[0] and "`model.model_path`" in error.args[0]


def test_hdfs_without_its_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
    for name in ("HADOOP_HOME", "JAVA_HOME"):
        monkeypatch.setenv(name, "/nowhere")
    error = refused("hdfs://127.0.0.1:9/data/train.parquet")
    assert error.code == "E3612" and "JAVA_HOME, HADOOP_HOME and CLASSPATH" in error.args[0]


def test_the_wait_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_REMOTE_TIMEOUT", "7.5")
    assert default_timeout_s() == 7.5
    monkeypatch.setenv("TRINITY_REMOTE_TIMEOUT", "soon")
    with pytest.raises(Exception, match="TRINITY_REMOTE_TIMEOUT must be a number of seconds above 0, got 'soon'"):
        default_timeout_s()


def test_names_of_copies_and_what_is_shown() -> None:
    assert base_name("https://h/a/train%20set.parquet?token=x") == "train set.parquet"
    assert base_name("s3://bucket/models/tiny/") == "tiny" and base_name("http://h") == base_name("s3://b/..") == "data"
    assert identity("s3a://b/k/") == identity("s3://b/k") != identity("s3://b/K")
    assert shown("s3://key:secret@b/k") == "s3://key:***@b/k"


# ----------------------------------------------------------------------- S3
def test_files_and_folders_of_a_bucket(bucket: str) -> None:
    system = store()
    system.pipe_file(f"{bucket}/data/train.parquet", CONTENT)
    system.pipe_file(f"{bucket}/model/config.json", b"{}")
    system.pipe_file(f"{bucket}/model/model.safetensors", CONTENT * 40)
    copy = fetch(f"{bucket}/data/train.parquet", patience=SOON)
    assert copy.path.read_bytes() == CONTENT and fetch(f"{bucket}/data/train.parquet", patience=SOON) == copy
    model = fetch(f"{bucket.replace('s3:', 's3a:')}/model/", patterns=("*.json", "*.safetensors"), patience=SOON)
    assert (model.path / "model.safetensors").read_bytes() == CONTENT * 40 and model.path.name == "model"
    assert fetch(f"{bucket}/model", patterns=("*.json", "*.safetensors"), patience=SOON) == model
    system.pipe_file(f"{bucket}/data/train.parquet", CONTENT[1:])
    assert fetch(f"{bucket}/data/train.parquet", patience=SOON).path.read_bytes() == CONTENT[1:]
    assert refused(f"{bucket}/nothing").code == refused("s3://nobodys-bucket-0/x").code == "E3610"
