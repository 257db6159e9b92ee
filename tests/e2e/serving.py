"""Mode serve in a process of its own, with a trainer's file beside it."""

from __future__ import annotations

import copy
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.parts import Parts
from tests.prepared import DEADLINE_S
from trinity.common.experience import Experience
from trinity.explorer.proxy.client import TrinityClient

KEY = "key-of-the-tests"
START_S = 120.0


@dataclass
class Serving:
    """A job with a file for mode serve (`proxy`) and one for mode train (`trainer`)."""

    folder: Path
    parts: Parts = field(init=False)
    process: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        self.parts = Parts(self.folder)
        tree = copy.deepcopy(self.parts.trees["explorer"]) | {"mode": "serve"}
        tree["explorer"] |= {"name": "proxy", "proxy_port": 0, "service_status_check_interval": 0.2}
        tree["explorer"]["rollout_model"]["api_key"] = KEY
        del tree["buffer"]["total_steps"], tree["buffer"]["explorer_input"]
        self.parts.trees["proxy"] = tree
        del self.parts.trees["trainer"]["buffer"]["explorer_input"]

    @property
    def address_file(self) -> Path:
        """Where the address is said."""
        return self.parts.job / "proxy_server_url.txt"

    def start(self, *extra: str, failpoints: str = "") -> TrinityClient:
        """Start the service; return a client once it answers."""
        self.address_file.unlink(missing_ok=True)
        process = self.process = self.parts.start("proxy", *extra, failpoints=failpoints)
        end = time.monotonic() + START_S
        while not self.address_file.exists():
            assert process.poll() is None and time.monotonic() < end, self.parts.output("proxy")
            time.sleep(0.05)
        client = self.client()
        client.wait_until_alive(30)
        return client

    def client(self, task: str | None = None, run: int = 0) -> TrinityClient:
        """Return a client of the service that was started last."""
        return TrinityClient(self.address_file.read_text().strip(), KEY, task_id=task, run_id=run)

    def ask(self, client: TrinityClient, text: str = "1+2=", **arguments: Any) -> Any:
        """Return one answer with the ids of its tokens."""
        with client.get_openai_client() as asking:
            return asking.chat.completions.create(
                model="model",
                messages=[{"role": "user", "content": text}],
                extra_body={"return_token_ids": True},
                logprobs=True,
                **{"max_tokens": 4} | arguments,
            )

    def ended(self, timeout_s: float = 60.0) -> int:
        """Return the exit status once the service has ended."""
        assert self.process is not None, "start() comes first"
        return self.process.wait(timeout_s)

    def stop(self) -> int:
        """End the service as a user does; return its exit status."""
        assert self.process is not None, "start() comes first"
        self.process.send_signal(signal.SIGINT)
        return self.ended()

    def kill(self) -> None:
        """Kill the service, if it still lives."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)

    def stored(self) -> list[Experience]:
        """Return the experiences of the store, in the order of the log."""
        rows = self.parts.query("select experience_bytes from experience_blob order by id")
        return [Experience.deserialize(payload) for (payload,) in rows]

    def train(self, *extra: str) -> int:
        """Run the trainer to its end; return its exit status."""
        return self.parts.start("trainer", *extra).wait(DEADLINE_S)
