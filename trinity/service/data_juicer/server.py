"""A small HTTP server before Data-Juicer.

It runs with the Python of the environment that has `py-data-juicer`, and imports only that, the standard library and
`policy.py` beside it. Rows come and go as JSON; it reads and writes no files of the caller.

    python server.py --port 5005        the token is that of TRINITY_DATA_JUICER_TOKEN

Every request but /health carries `Authorization: Bearer <token>`.

Operators run in the main thread, one request after the other, since they fork; threads answer HTTP.
"""

from __future__ import annotations

import argparse
import hmac
import http.server
import json
import os
import queue
import secrets
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

# The environment has no trinity package: the files beside this one are imported by their own names, and only these.
_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _HERE)
from policy import PROTOCOL, Refused  # noqa: E402

sys.path.remove(_HERE)

TOKEN_ENV_VAR = "TRINITY_DATA_JUICER_TOKEN"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MAX_BYTES = 512 * 1024 * 1024
MAX_THREADS = 32
RECEIVE_S = 30.0
LONGEST_S = 24 * 3600.0


class Job:
    """A call that waits for the main thread."""

    def __init__(self, call: Callable[[], dict[str, Any]]) -> None:
        self.call = call
        self.done = threading.Event()
        self.is_given_up = False
        self.result: dict[str, Any] = {}
        self.error: Exception | None = None

    def run(self) -> None:
        """Run the call, unless nobody waits for it any more."""
        if self.is_given_up:
            return
        try:
            self.result = self.call()
        except Exception as error:  # noqa: BLE001 - whoever waits handles it
            self.error = error
        self.done.set()


class Server(http.server.ThreadingHTTPServer):
    """Answers HTTP in threads; what computes is handed to the main thread.

    Args:
        address: host and port.
        token: that callers show.
        routes: what a path does with a body.
        version: of Data-Juicer.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], *, token: str, routes: dict[str, Any], version: str) -> None:
        super().__init__(address, Handler)
        self.token, self.routes, self.version = token, routes, version
        self.is_local = address[0] in ("127.0.0.1", "localhost")
        self.jobs: queue.Queue[Job] = queue.Queue(MAX_THREADS)
        self.free = threading.BoundedSemaphore(MAX_THREADS)

    def work(self) -> None:
        """Run the calls in the order in which they came, for ever."""
        while True:
            self.jobs.get().run()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the caller has disconnected."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    timeout = RECEIVE_S
    server_version, sys_version = "trinity-data-juicer", ""

    def do_GET(self) -> None:
        """Say that the server answers."""
        if self.path == "/health":
            said = {"status": "ok", "protocol": PROTOCOL, "data_juicer": self.server.version, "pid": os.getpid()}
            self._answered(lambda: said)
        else:
            self._answered(self._no_route)

    def do_POST(self) -> None:
        """Serve a request."""
        self._answered(self._served)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep no log of requests."""

    def _no_route(self) -> dict[str, Any]:
        raise Refused(404, f"there is no {self.command} {self.path[:100]}", kind="no_route")

    def _answered(self, call: Callable[[], dict[str, Any]]) -> None:
        status, body = 200, {}
        if not self.server.free.acquire(blocking=False):
            status, body = 503, _error("too many requests are under way", "busy")
        else:
            try:
                self._check_host()
                body = call()
            except Refused as error:
                status, body = error.status, _error(str(error), error.kind)
            except Exception as error:  # noqa: BLE001 - the caller gets its name, the log its place
                traceback.print_exc()
                status, body = 500, _error(f"{type(error).__name__}: {error}", "failed")
            finally:
                self.server.free.release()
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def _check_host(self) -> None:
        name = self.headers.get("Host", "").rsplit(":", 1)[0].lower()
        if self.server.is_local and name not in LOOPBACK:
            raise Refused(403, f"this is not the host {name[:100]!r}", kind="host")
        if self.headers.get("Origin"):
            raise Refused(403, "pages of a browser are not served", kind="origin")

    def _served(self) -> dict[str, Any]:
        shown = self.headers.get("Authorization", "").removeprefix("Bearer ")
        token = self.server.token  # an empty one is nobody's
        if not token or not hmac.compare_digest(shown.encode(), token.encode()):
            raise Refused(401, "the token is missing or wrong", kind="token")
        route = self.server.routes.get(self.path)
        if route is None:
            return self._no_route()
        body = self._body()
        job = Job(lambda: route(body))
        self.server.jobs.put(job)
        limit = body.get("timeout_s")
        if not job.done.wait(limit if isinstance(limit, int | float) and 0 < limit < LONGEST_S else LONGEST_S):
            job.is_given_up = True
            raise Refused(504, f"not done within {limit:g} s", kind="deadline")
        if job.error is not None:
            raise job.error
        return job.result

    def _body(self) -> dict[str, Any]:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            raise Refused(411, "the header Content-Length is missing", kind="length") from None
        if not 0 <= length <= MAX_BYTES:
            raise Refused(413, f"a body may have {MAX_BYTES} bytes, got {length}", kind="too_large")
        try:
            body = json.loads(self.rfile.read(length))
        except TimeoutError:
            raise Refused(408, f"the body did not come within {RECEIVE_S:g} s", kind="slow") from None
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON: {error}", kind="json") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body must be a JSON object", kind="json")
        return body


def _error(message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message[:4000], "type": kind}}


def _end_with(owner: int) -> None:
    """End this process, and what it has started, when the owner's pipe closes.

    So nothing is left whatever ends the owner.
    """

    def wait() -> None:
        while os.read(owner, 4096):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="owner", daemon=True).start()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at")
    parser.add_argument("--port", type=int, default=0, help="port to listen at; 0: a free one")
    parser.add_argument("--allow", action="append", default=[], help="an operator that is refused otherwise")
    parser.add_argument("--owned", action="store_true", help="the first line of the input is the token; end with it")
    return parser.parse_args()


def _token(*, is_owned: bool, host: str) -> str:
    if is_owned:
        token = sys.stdin.readline().strip()
        owner = os.dup(0)
        # A process that is forked closes its standard input, and would wait for ever for a thread that reads it.
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
        _end_with(owner)
        return token
    token = os.environ.get(TOKEN_ENV_VAR, "").strip()
    if not token and host not in LOOPBACK:
        sys.exit(f"{host} can be reached by others: set {TOKEN_ENV_VAR}")
    return token or secrets.token_urlsafe(24)


def main() -> None:
    """Serve until the owner ends, or a signal comes."""
    given = _arguments()
    token = _token(is_owned=given.owned, host=given.host)
    # What libraries print must not stand between this process and whoever reads where it listens.
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Here, since it takes seconds and prints.
    import data_juicer

    sys.path.insert(0, _HERE)
    from sessions import Sessions

    sys.path.remove(_HERE)
    sessions = Sessions(allowed=given.allow)
    try:
        address, routes = (given.host, given.port), sessions.routes()
        server = Server(address, token=token, routes=routes, version=data_juicer.__version__)
    except OSError as error:
        sys.exit(f"{given.host}:{given.port} cannot be listened at: {error.strerror}")
    place = {"host": given.host, "port": server.server_address[1], "data_juicer": data_juicer.__version__}
    told.write(json.dumps(place if given.owned else place | {"token": token}) + "\n")
    told.flush()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    server.work()


if __name__ == "__main__":
    main()
