"""The endpoint of a process.

It is a server in a thread, with a token for each model that is used through it.
"""

from __future__ import annotations

import functools
import math
import secrets
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trinity.common.errors import DeadlineError
from trinity.utils.log import get_logger

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from trinity.common.models.model import ModelWrapper
    from trinity.explorer.api.calls import ModelOf, Served
    from trinity.explorer.api.limits import EndpointLimits

logger = get_logger("explorer")

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0


class Endpoint:
    """Serves the models of workflows to OpenAI clients.

    The server starts with the first client. A token gives access to one model, with the identity and the history of
    its rollout, for as long as that exists.

    Args:
        port: where it listens; 0: a free port.
        host: address to listen on; default: the loopback interface.
        limits: what it takes.
        extend: adds further routes to the application.
        model_of: who answers; None: the models that have a token here.
        problem: why nothing can be answered now; None: nothing is looked for.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        host: str = HOST,
        limits: EndpointLimits | None = None,
        extend: Callable[[FastAPI], None] | None = None,
        model_of: ModelOf | None = None,
        problem: Callable[[], str | None] | None = None,
    ) -> None:
        self._host, self._port, self._limits, self._extend = host, port, limits, extend
        self._model_of, self._problem = model_of or self._held, problem
        self._lock = threading.Lock()
        self._models: weakref.WeakValueDictionary[str, ModelWrapper] = weakref.WeakValueDictionary()
        self._tokens: weakref.WeakKeyDictionary[ModelWrapper, str] = weakref.WeakKeyDictionary()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._address = ""

    def token(self, model: ModelWrapper) -> str:
        """Return the token that gives access to a model."""
        with self._lock:
            token = self._tokens.get(model)
            if token is None:
                token = secrets.token_urlsafe(24)
                self._tokens[model], self._models[token] = token, model
            return token

    @property
    def address(self) -> str:
        """`http://<host>:<port>`; the first call starts the server.

        Raises:
            OSError: the address cannot be listened at.
            DeadlineError: the server does not start (E5304).
        """
        with self._lock:
            if self._thread is None:
                self._start()
            return self._address

    def client(self, model: ModelWrapper) -> Any:
        """Return an `openai.OpenAI` of a model."""
        import openai

        client = openai.OpenAI(http_client=openai.DefaultHttpxClient(**_transport()), **self._settings(model))
        return self._named(client, model)

    def async_client(self, model: ModelWrapper) -> Any:
        """Return an `openai.AsyncOpenAI` of a model."""
        import openai

        client = openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(**_transport()), **self._settings(model))
        return self._named(client, model)

    def close(self) -> None:
        """Stop the server; requests under way are given up."""
        with self._lock:
            server, thread, self._server, self._thread = self._server, self._thread, None, None
        if server is None or thread is None:
            return
        server.should_exit = server.force_exit = True
        thread.join(STOP_TIMEOUT_S)

    def _held(self, token: str, _: Mapping[str, str]) -> Served | None:
        return self._models.get(token)

    def _settings(self, model: ModelWrapper) -> dict[str, Any]:
        # A call that is made again would be in the history twice.
        own = {"timeout": model.timeout_s, "max_retries": 0}
        return {"base_url": f"{self.address}/v1", "api_key": self.token(model), **own}

    @staticmethod
    def _named(client: Any, model: ModelWrapper) -> Any:
        client.model_path = model.model_path  # as published: what workflows give as `model`
        return client

    def _start(self) -> None:
        import uvicorn

        from trinity.explorer.api.app import create_app
        from trinity.explorer.api.gate import closing_protocol
        from trinity.explorer.api.limits import LOOPBACK, EndpointLimits

        is_v6 = ":" in self._host
        listening = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self._host, self._port))
        except OSError:
            listening.close()
            raise
        host = f"[{self._host}]" if is_v6 else self._host
        self._address = f"http://{host}:{listening.getsockname()[1]}"
        limits = self._limits or EndpointLimits()
        # A machine that is open to a network has names that it does not know.
        hosts = LOOPBACK if self._host in LOOPBACK else None
        app = create_app(self._model_of, limits, problem=self._problem, hosts=hosts)
        if self._extend is not None:
            self._extend(app)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            http=closing_protocol(limits.receive_s),
            # Longer than clients keep a connection, 5 s by default: one that is ended just as it is used again fails.
            timeout_keep_alive=math.ceil(2 * limits.receive_s),
        )
        server = self._server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), name="openai-endpoint", daemon=True)
        self._thread = thread
        thread.start()
        waited = threading.Event()
        for _ in range(int(START_TIMEOUT_S / 0.02)):
            if server.started or not thread.is_alive():
                break
            waited.wait(0.02)
        if not server.started:
            raise DeadlineError(
                f"the OpenAI-compatible endpoint did not start at {self._address} within {START_TIMEOUT_S:g} s",
                code="E5304",
            )
        logger.info("OpenAI-compatible endpoint at %s", self._address)


@functools.cache
def _transport() -> dict[str, Any]:
    """Return the settings of connections.

    No proxy of the environment: the endpoint is on this machine. Certificates, which it does not use, are read once:
    they would take most of the time that a client of an attempt takes.
    """
    return {"trust_env": False, "verify": ssl.create_default_context()}
