"""The watch over the head of a cluster, with a real port that is closed and opened again."""

from __future__ import annotations

import socket
import threading
import time

from trinity.common.errors import ExitCode
from trinity.runtime.head_watch import HeadWatch, lost


def listen(port: int = 0) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen(64)
    return server


def test_a_head_is_lost_when_it_has_not_answered_for_its_time_and_not_before() -> None:
    server, told = listen(), threading.Event()
    port = server.getsockname()[1]
    with HeadWatch(f"127.0.0.1:{port}", told.set, gone_s=1.0):
        assert not told.wait(1.5), "it answers"
        server.close()
        time.sleep(0.5)
        server = listen(port)
        assert not told.wait(1.5), "it came back in time"
        server.close()
        closed_at = time.monotonic()
        assert told.wait(20)
        assert time.monotonic() - closed_at >= 0.8


def test_nobody_is_told_after_the_end_of_the_watch() -> None:
    server, told = listen(), threading.Event()
    with HeadWatch(f"127.0.0.1:{server.getsockname()[1]}", told.set, gone_s=0.2):
        pass
    server.close()
    assert not told.wait(1.0)


def test_the_error_names_head_and_limit_and_the_way_on() -> None:
    error = lost("10.0.0.1:6379")
    assert (error.code, error.exit_code) == ("E5706", ExitCode.RUNTIME)
    assert "10.0.0.1:6379" in str(error) and "10 s (GONE_S)" in str(error) and "last checkpoint" in str(error)
