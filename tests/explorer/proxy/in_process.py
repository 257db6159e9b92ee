"""Mode serve on an event loop of this process, for tests with real clients."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import threading
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.parts import Parts
from trinity.common.errors import EnginesLostError
from trinity.explorer.proxy.client import TrinityClient
from trinity.launch.run import RunOptions, plan_run
from trinity.launch.serve_side import ServeSide
from trinity.runtime.local import LocalRuntime

KEY = "key-of-the-tests"


class Service:
    """A service on an event loop of its own."""

    def __init__(self, folder: Path, **explorer: Any) -> None:
        parts = Parts(folder)
        tree = copy.deepcopy(parts.trees["explorer"]) | {"mode": "serve"}
        engine = tree["explorer"]["rollout_model"] | {"api_key": KEY} | explorer.pop("rollout_model", {})
        tree["explorer"] |= {"name": "proxy", "proxy_port": 0, "rollout_model": engine} | explorer
        tree["buffer"]["trainer_input"]["experience_buffer"]["capacity"] = 16
        parts.trees["proxy"] = tree
        config = plan_run(parts.write("proxy"), RunOptions(plugin_dirs=(parts.plugin_dir,))).stages[0].config
        self.job = parts.job
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.side = ServeSide(config, LocalRuntime())
        self.on_loop(self.side.prepare())
        served = self.on_loop(self.side.served())
        self.address = served.address
        self.running = asyncio.run_coroutine_threadsafe(self.side.run(), self.loop)

    def on_loop(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(60)

    def routes(self) -> dict[str, str]:
        """Return the method of each route."""
        address = self.address.replace("0.0.0.0", "127.0.0.1")
        paths = httpx.get(f"{address}/openapi.json", trust_env=False).json()["paths"]
        return {path: method.upper() for path, methods in paths.items() for method in methods}

    def client(self, task: str | None = None, run: int = 0) -> TrinityClient:
        return TrinityClient(self.address, KEY, task_id=task, run_id=run)

    def ask(self, client: TrinityClient, **arguments: Any) -> Any:
        arguments = {"model": "model", "messages": [{"role": "user", "content": "1+1="}], "max_tokens": 4} | arguments
        with client.get_openai_client() as asking:
            return asking.with_options(max_retries=0).chat.completions.create(**arguments)

    def post(self, path: str, body: Any, key: str = KEY, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(
            f"{self.address}{path}", content=content, headers={"Authorization": f"Bearer {key}", **headers}
        )

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.on_loop(self.side.request_stop())
            with contextlib.suppress(EnginesLostError):
                self.running.result(60)
            self.on_loop(self.side.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()
