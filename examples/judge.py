"""A judge for the examples that need one: it stands in for a large model, and knows what the sums are.

    python examples/judge.py &
    export JUDGE_URL=http://127.0.0.1:8011/v1

It answers `chat/completions` of OpenAI's interface, as any service would: a list of grades where solutions are
compared, a rating where a rubric is given. A right result counts most, then each column of the working.
"""

from __future__ import annotations

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trinity.quickstart.dataset import solution

PROBLEM = re.compile(r"\b(\d\d)\+(\d\d)\b")
SOLUTION = re.compile(r"### Solution \d+\n(.*?)(?=\n\n### )", re.DOTALL)
ANSWER = re.compile(r"### Answer\n(.*?)(?=\n\n### )", re.DOTALL)


def grade(problem: str, answer: str) -> float:
    """Return a grade from 0 to 1: 0.7 for the result, 0.3 for the columns."""
    found = PROBLEM.search(problem)
    if found is None:
        return 0.0
    wanted, given = solution(int(found[1]), int(found[2])), answer.strip()
    columns = wanted.partition("\n")[0].split(",")
    right = sum(column in given.partition("\n")[0].split(",") for column in columns)
    return 0.7 * (given.rpartition("#### ")[2] == wanted.rpartition("#### ")[2]) + 0.3 * right / len(columns)


def verdict(messages: list[dict[str, Any]]) -> str:
    """Return what the judge says to a conversation that asks for grades or for a rating."""
    text = messages[-1]["content"]
    if solutions := SOLUTION.findall(text):
        problem = text.partition("### Solution 1\n")[0]
        return f"[{', '.join(f'{grade(problem, each):.2f}' for each in solutions)}]"
    (answer,) = ANSWER.findall(text)
    return json.dumps({"rating": 1 + round(9 * grade(text.partition("### Answer\n")[0], answer))})


class Judge(BaseHTTPRequestHandler):
    """Answers a request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a conversation."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": verdict(asked["messages"])}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        body = json.dumps({"object": "chat.completion", "model": asked["model"], "choices": choices}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing of a request."""


def main() -> None:
    """Answer until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8011, help="0: any free one, which is printed")
    with ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Judge) as server:
        server.daemon_threads = True
        print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
