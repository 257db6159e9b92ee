"""An OpenAI-compatible server over a torch engine: the outside service of the tests of external models."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.engine.engines import engine, response
from tests.http_service import listening
from trinity.engine.torch.engine import TorchEngine


@dataclass
class Service:
    """A running server.

    Attributes:
        url: its address with `/v1`.
        requests: path, headers and body of every request.
        faults: answered first, in order: (status, headers), `close` (connection cut), or `wait` (cut after 0.6 s).
        raw: answered instead of what the engine says.
        is_plain: token ids are not told, as by OpenAI's own server.
        api_key: required if set.
    """

    url: str = ""
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    faults: list[Any] = field(default_factory=list)
    raw: str | None = None
    is_plain: bool = False
    api_key: str | None = None


def answer(made: TorchEngine, path: str, body: dict[str, Any], *, is_plain: bool) -> dict[str, Any]:
    """Return the document that answers a request."""
    names = ("n", "temperature", "top_p", "max_tokens", "seed", "stop", "top_k", "min_tokens", "ignore_eos")
    arguments = {name: body[name] for name in names if name in body}
    is_chat = path.endswith("/chat/completions")
    call = made.chat(body["messages"], **arguments) if is_chat else made.generate(body["prompt"], **arguments)
    choices = []
    for index, one in enumerate(asyncio.run(call)):
        choice: dict[str, Any] = {"index": index, "finish_reason": "length" if one.truncate_status else "stop"}
        numbers = [] if one.logprobs is None else one.logprobs.tolist()
        if is_chat:
            choice["message"] = {"role": "assistant", "content": one.response_text}
            choice["logprobs"] = {"content": [{"token": "", "logprob": number} for number in numbers]}
        else:
            choice |= {"text": one.response_text, "logprobs": {"token_logprobs": numbers}}
        if not body.get("logprobs"):
            choice["logprobs"] = None
        if body.get("return_token_ids") and not is_plain:
            choice["token_ids"] = response(one)
            choice["prompt_token_ids"] = one.tokens[: one.prompt_length].tolist()
        choices.append(choice)
    return {"object": "chat.completion", "model": body["model"], "choices": choices}


def _handler(service: Service, made: TorchEngine | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            service.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            fault = service.faults.pop(0) if service.faults else None
            if fault == "wait":
                time.sleep(0.6)
            if fault in ("close", "wait"):
                self.connection.close()
                self.close_connection = True
                return
            if isinstance(fault, tuple):
                self._send(fault[0], json.dumps({"error": {"message": "not at this moment"}}), fault[1])
            elif service.api_key and self.headers.get("authorization") != f"Bearer {service.api_key}":
                self._send(401, json.dumps({"error": {"message": f"{self.headers.get('authorization')} is wrong"}}), {})
            elif service.raw is not None:
                self._send(200, service.raw, {})
            elif made is not None:
                self._send(200, json.dumps(answer(made, self.path, body, is_plain=service.is_plain)), {})

        def _send(self, status: int, text: str, headers: dict[str, str]) -> None:
            content = text.encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextlib.contextmanager
def started(model: Path) -> Iterator[TorchEngine]:
    """Yield the engine of a model folder."""
    loop = asyncio.new_event_loop()
    context = engine(model)
    try:
        yield loop.run_until_complete(context.__aenter__())
    finally:
        loop.run_until_complete(context.__aexit__(None, None, None))
        loop.close()


@contextlib.contextmanager
def served(made: TorchEngine | None) -> Iterator[Service]:
    """Yield a server over an engine, or one that answers with `raw`; later requests are not another server's."""
    service = Service()
    with listening(_handler(service, made)) as address:
        service.url = f"{address}/v1"
        yield service


@contextlib.contextmanager
def serving(model: Path) -> Iterator[Service]:
    """Yield a server over the model of a folder."""
    with started(model) as made, served(made) as service:
        yield service


@contextlib.contextmanager
def answering(text: str) -> Iterator[Service]:
    """Yield a server whose model says the same to every conversation."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": None}
    with served(None) as service:
        service.raw = json.dumps({"object": "chat.completion", "model": "same", "choices": [choice]})
        yield service
