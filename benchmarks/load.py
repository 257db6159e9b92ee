"""A thousand chat requests at once: what the endpoint answers, records and holds.

    python benchmarks/load.py [--requests 1000] [--bound 64] [--json]

The server, its engine and a random model of 0.1 M parameters are in this process, the clients in another one. All
requests are sent at the same moment, each with a prompt of its own, half of them as streams. First the server may take
all of them, then `--bound` at once: a client that is answered 429 asks again after `Retry-After` seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parent.parent
PATH = "/v1/chat/completions"
TOKENS = 16
TIMEOUT_S = 600.0


async def one(client: httpx.AsyncClient, number: int, counts: Counter[str]) -> tuple[list[int], float]:
    """Return the tokens of one answer, and its seconds from the first try."""
    body = {
        "messages": [{"role": "user", "content": f"{number:04d}="}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": number % 2 == 0,
    }
    started = time.monotonic()
    while True:
        async with client.stream("POST", PATH, json=body) as answer:
            if answer.status_code == 429:
                counts["429"] += 1
                await answer.aread()
                await asyncio.sleep(float(answer.headers["Retry-After"]))
                continue
            text = (await answer.aread()).decode()
        counts[str(answer.status_code)] += 1
        if answer.status_code != 200:
            return [], time.monotonic() - started
        return tokens_of(text, is_stream=bool(body["stream"])), time.monotonic() - started


def tokens_of(text: str, *, is_stream: bool) -> list[int]:
    if not is_stream:
        return list(json.loads(text)["choices"][0]["token_ids"])
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]", "a stream ends"
    chunks = [json.loads(line) for line in lines[:-1]]
    return [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids", ())]


async def clients(address: str, key: str, count: int) -> dict[str, Any]:
    """Send all requests at once; return what was answered."""
    counts: Counter[str] = Counter()
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=address, headers=headers, limits=limits, timeout=TIMEOUT_S, trust_env=False
    ) as client:
        started = time.monotonic()
        found = await asyncio.gather(*(one(client, number, counts) for number in range(count)))
        wall_s = time.monotonic() - started
    seconds = sorted(each for _, each in found)
    return {
        "answers": [tokens for tokens, _ in found],
        "statuses": dict(counts),
        "wall_s": wall_s,
        "median_s": seconds[len(seconds) // 2],
        "p99_s": seconds[int(0.99 * (len(seconds) - 1))],
    }


class Server:
    """The endpoint of a random model."""

    def __init__(self, folder: Path, bound: int) -> None:
        from tests.tiny import tiny_model
        from trinity.common.config import Config
        from trinity.common.models import create_inference_model
        from trinity.common.models.model import ModelWrapper
        from trinity.explorer.api.endpoint import Endpoint
        from trinity.explorer.api.limits import EndpointLimits

        tiny_model(folder / "model", "llama", seed=3, scale=3.0)
        config = Config.model_validate({
            "model": {"model_path": str(folder / "model"), "max_model_len": 64},
            "explorer": {"api_max_requests": bound, "rollout_model": {"dtype": "float32"}, "max_timeout": TIMEOUT_S},
        })  # fmt: skip
        self.endpoint = Endpoint(limits=EndpointLimits.of(config))
        self.engine = create_inference_model(config)
        asyncio.run(self.engine.prepare())
        self.model = ModelWrapper(self.engine, config=config, clients=self.endpoint, enable_history=True)

    def close(self) -> None:
        self.endpoint.close()
        asyncio.run(self.engine.shutdown())


class PeakMemory:
    """Most resident memory of this process while it is entered, in MiB."""

    def __enter__(self) -> PeakMemory:
        self._process, self._is_over = psutil.Process(), threading.Event()
        self.before = self.most = self._now()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _now(self) -> float:
        return self._process.memory_info().rss / 2**20

    def _watch(self) -> None:
        while not self._is_over.wait(0.05):
            self.most = max(self.most, self._now())


def measured(bound: int, count: int) -> dict[str, Any]:
    """Return what happens with at most `bound` requests under way.

    Raises:
        AssertionError: an answer has no record, or a record no answer.
    """
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), bound)
        try:
            server.model.generate("1=", max_tokens=2)
            server.model.history.clear()
            command = [sys.executable, __file__, "--clients", server.model.api_address, "--requests", str(count)]
            cpu_s = time.process_time()
            with PeakMemory() as memory:
                done = subprocess.run(command, input=server.model.api_key, capture_output=True, text=True, check=True)
            cpu_s = time.process_time() - cpu_s
            found = json.loads(done.stdout)
            records = Counter(tuple(exp.tokens[exp.prompt_length :].tolist()) for exp in server.model.history)
            answers = Counter(tuple(tokens) for tokens in found.pop("answers"))
            assert sum(records.values()) == count, f"{sum(records.values())} records of {count} requests"
            assert records == answers, "an answer without its record, or a record without its answer"
        finally:
            server.close()
    grown = memory.most - memory.before
    return {"bound": bound, "requests": count, **found, "server_cpu_s": cpu_s, "rss_growth_mib": grown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--bound", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.clients:
        print(json.dumps(asyncio.run(clients(options.clients, sys.stdin.read(), options.requests))))
        return
    sys.path.insert(0, str(ROOT))
    import torch

    torch.set_num_threads(1)  # as in a run; the threads of a second core would wait for each other in a loop
    rows = [measured(bound, options.requests) for bound in (max(1024, options.requests), options.bound)]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"at most {row['bound']} at once: statuses {row['statuses']}, wall {row['wall_s']:.1f} s, "
            f"median {row['median_s']:.2f} s, p99 {row['p99_s']:.2f} s, server {row['server_cpu_s']:.1f} CPU-s, "
            f"memory +{row['rss_growth_mib']:.0f} MiB; every answer has its one record"
        )


if __name__ == "__main__":
    main()
