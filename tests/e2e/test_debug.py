"""`trinity debug` in two terminals: an engine that stays, and workflows that are tried beside it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from tests.docs.pages import page
from tests.e2e.tiny_run import Ended, TinyRun
from tests.tiny import tiny_model
from trinity.common.errors import ExitCode
from trinity.common.experience import Experience
from trinity.common.schema.sql_schema import ExperienceModel

pytestmark = pytest.mark.slow

START_S = 120.0
END_S = 120.0
# In the first terminal, and in the second.
DOCUMENTED = [tuple(shlex.split(line)[1:]) for line in page("docs/workflows.md").lines("trinity debug ")[:2]]
PLUGIN = """
from trinity.common.workflows import WORKFLOWS, Workflow


def busy():
    total = 0
    for number in range(3_000_000):  # a loop of Python, which lets other threads look
        total += number
    return total


@WORKFLOWS.register_module("debugged")
class Debugged(Workflow):
    def run(self):
        question = [{"role": "user", "content": self.task.task_desc}]
        (first,) = self.model.chat(question, n=1, max_tokens=5)
        judge = self.auxiliary_models[0]
        said = judge.chat.completions.create(model=judge.model_path, messages=question, max_tokens=4, seed=5)
        second = self.model.convert_messages_to_experience([*question, {"role": "assistant", "content": "42"}])
        second.metrics = {"tokens": float(self.model.get_message_token_len(question))}
        second.info["judge"] = said.choices[0].message.content
        first.reward, second.reward = 0.5, float(busy() > 0)
        if self.task.truth == "3":
            raise ValueError("the environment is gone")
        return [first, second]
"""


class Debugging:
    """A configuration with an auxiliary model, and its server."""

    def __init__(self, folder: Path) -> None:
        self.run = TinyRun(folder, plugin=PLUGIN)
        tiny_model(folder / "judge", "qwen2", seed=5)
        self.run.change(
            buffer__explorer_input__default_workflow_type="debugged",
            explorer__auxiliary_models=[{"model_path": "judge", "max_model_len": 48, "dtype": "float32"}],
        )
        self.output = folder / "server.txt"
        self.process: subprocess.Popen[str] | None = None

    @property
    def file(self) -> Path:
        """Where the server is announced."""
        return self.run.job / "debug" / "inference_model.json"

    def call(self, *words: str, **how: Any) -> Ended:
        """Return what `trinity debug` of the configuration printed."""
        return self.run.finish(words=("debug", "--config", "run.yaml", *words), **how)

    def serve(self) -> None:
        """Start the server, and wait until it is ready."""
        with self.output.open("w") as file:
            self.process = self.run.start(words=DOCUMENTED[0], output=file)
        end = time.monotonic() + START_S
        while "ready: http" not in self.output.read_text():
            assert self.process.poll() is None and time.monotonic() < end, self.output.read_text()
            time.sleep(0.05)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> int:
        """End the server; return its status."""
        assert self.process is not None
        self.process.send_signal(number)
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            threads = sorted(Path(f"/proc/{self.process.pid}/task").glob("*/comm"))
            names = ", ".join(each.read_text().strip() for each in threads)
            raise AssertionError(f"it continues, with threads {names}:\n{self.output.read_text()}") from None


@pytest.fixture(scope="module")
def debugging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debugging]:
    """A server that is ready; what it leaves is looked at when it has ended."""
    made = Debugging(tmp_path_factory.mktemp("debugging"))
    # A shell without job control starts what is in its background so.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        made.serve()
    finally:
        signal.signal(signal.SIGINT, before)
    yield made
    assert made.interrupt() == ExitCode.INTERRUPTED, made.output.read_text()
    assert not (made.run.folder / "out").exists(), "nothing is left of the job's folder"


def stored(file: Path) -> list[Experience]:
    """Return the experiences of a database, as the questions and answers of the documentation read them."""
    with Session(create_engine(f"sqlite:///{file}")) as session:
        return [row.to_experience() for row in session.scalars(select(ExperienceModel).order_by(ExperienceModel.id))]


def test_the_tokens_are_those_of_a_workflow_in_the_process_of_the_engine(debugging: Debugging) -> None:
    done = debugging.call("--module", "workflow", "--output_file", "kept.db")
    assert done.status == 0, done.output
    assert "prompt, 4 tokens\n    0+1=\n" in done.output and "reward 1 (tokens 4)" in done.output
    assert "         0        3  prompt              '0'" in done.output and "logprob" in done.output
    assert "experiences: kept.db" in done.output
    here = debugging.run.finish("-n", "1", "--output", "here.jsonl", words=("try", "--config", "run.yaml"))
    assert here.status == 0, here.output
    (rollout,) = [json.loads(line) for line in (debugging.run.folder / "here.jsonl").read_text().splitlines()]
    experiences = stored(debugging.run.folder / "kept.db")
    assert len(experiences) == len(rollout["turns"]) == 2
    for experience, turn in zip(experiences, rollout["turns"], strict=True):
        assert experience.tokens.tolist() == turn["tokens"] and experience.logprobs.tolist() == turn["logprobs"]
        assert experience.action_mask.tolist() == turn["action_mask"] and experience.reward == turn["reward"]
    assert experiences[1].info["judge"], "the auxiliary model answered an OpenAI client"


@pytest.mark.runs(
    "docs/workflows.md",
    "trinity debug --config run.yaml --module inference_model",
    "trinity debug --config run.yaml --module workflow",
)
@pytest.mark.runs("docs/faq.md", "trinity debug")
def test_the_commands_of_the_published_answer_work_as_written(debugging: Debugging) -> None:
    folder = debugging.run.folder
    shutil.copytree(folder / "plugins", folder / "mine", dirs_exist_ok=True)
    words = (
        "debug",
        "--config",
        "run.yaml",
        "--module",
        "workflow",
        "--output_file",
        "o.jsonl",
        "--plugin_dir",
        "mine",
    )
    bare = TinyRun(folder, debugging.run.tree)
    assert page("docs/faq.md").lines("trinity debug ") == page("docs/workflows.md").lines("trinity debug ")[:2]
    for each in (words, DOCUMENTED[1]):
        done = bare.finish(words=each)
        assert done.status == 0, done.output
    assert len(stored(folder / "experiences.db")) == 2
    (line,) = (folder / "o.jsonl").read_text().splitlines()
    assert json.loads(line)["outcome"] == "completed"


def test_the_file_is_the_owner_s_and_its_keys_open_what_they_are_for(debugging: Debugging) -> None:
    assert debugging.file.stat().st_mode & 0o777 == 0o600
    said = json.loads(debugging.file.read_text())
    assert [model["model_path"] for model in said["models"]] == ["model", "judge"]
    for model in said["models"]:
        client = openai.OpenAI(base_url=f"{said['address']}/v1", api_key=model["api_key"], max_retries=0)
        answer = client.chat.completions.create(
            model=model["name"], messages=[{"role": "user", "content": "1+1="}], max_tokens=3
        )
        assert answer.usage is not None and answer.usage.prompt_tokens == 4
    url, body = f"{said['address']}/engines/0", {"args": [[{"role": "user", "content": "1+1="}]], "kwargs": {}}
    key = {"Authorization": f"Bearer {said['key']}"}
    assert httpx.post(f"{url}/get_message_token_len", json=body, headers=key).status_code == 200
    for headers in ({}, {"Authorization": f"Bearer {said['models'][0]['api_key']}"}):
        assert httpx.post(f"{url}/get_message_token_len", json=body, headers=headers).status_code == 401
    for other in ("0/shutdown", "0/update_weights", "0/_load", "7/stats"):
        place = f"{said['address']}/engines/{other}"
        assert httpx.post(place, json=body, headers=key).status_code == 404
    assert httpx.post(f"{url}/stats", content=b"{", headers=key).status_code == 400


def test_a_failing_workflow_is_named_with_its_line_and_what_it_did_is_kept(debugging: Debugging) -> None:
    done = debugging.call("-m", "workflow", "-n", "2", "--output-file", "failed.db")
    line = PLUGIN[: PLUGIN.index("raise")].count("\n") + 1
    assert done.status == ExitCode.RUNTIME
    place = f"{debugging.run.folder}/plugins/own.py:{line} in run"
    assert f"failed: ValueError: the environment is gone ({place})" in done.output, done.output
    kept = stored(debugging.run.folder / "failed.db")
    assert [str(each.eid.task) for each in kept] == ["0", "0", "1"] and kept[2].reward is None


def test_a_profile_tells_where_the_time_went(debugging: Debugging) -> None:
    done = debugging.call("--module", "workflow", "--output-dir", "profiled", "--profile")
    assert done.status == 0, done.output
    folder = debugging.run.folder / "profiled"
    (profile,) = folder.glob("profiling.*")
    assert "busy" in profile.read_text() and f"profile: {profile.relative_to(debugging.run.folder)}" in done.output
    again = debugging.call("--module", "workflow", "--output_dir", "profiled", "--disable_overwrite")
    assert again.status == 0, again.output
    beside = [each for each in debugging.run.folder.iterdir() if each.name.startswith("profiled_")]
    assert [each.name for each in beside[0].iterdir()] == ["experiences.db"] and len(
        stored(folder / "experiences.db")
    ) == 2


def test_a_second_server_of_the_job_is_refused(debugging: Debugging) -> None:
    done = debugging.call("--module", "inference_model")
    assert done.status == ExitCode.ALREADY_RUNNING and "error[E8005]: an inference model of" in done.output


def test_a_file_that_asks_for_another_model_is_refused(debugging: Debugging) -> None:
    tiny_model(debugging.run.folder / "other", "llama", seed=2)
    done = debugging.call("--module", "workflow", "--set", "model.model_path=other")
    assert done.status == ExitCode.ENVIRONMENT and "error[E3432]" in done.output, done.output
    assert "serves model, judge, and the file asks for other, judge" in done.output


def test_without_a_server_the_command_that_starts_one_is_said(tmp_path: Path) -> None:
    made = Debugging(tmp_path)
    done = made.call("--module", "workflow", "--set", "buffer.batch_size=3")
    assert done.status == ExitCode.ENVIRONMENT
    assert f"error[E3430]: no inference model of {made.run.job} is there" in done.output, done.output
    command = "trinity debug --config run.yaml --plugin-dir plugins --set buffer.batch_size=3 --module inference_model"
    assert command in done.output
    # One that was killed has left its file, which is in nobody's way.
    made.serve()
    assert made.interrupt(signal.SIGKILL) == -signal.SIGKILL and made.file.exists()
    done = made.call("--module", "workflow")
    assert done.status == ExitCode.ENVIRONMENT and "the last one, process" in done.output, done.output
    made.serve()
    assert made.interrupt(signal.SIGTERM) == ExitCode.TERMINATED and not made.file.parent.exists()


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    """B81: with the process that holds it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = Debugging(tmp_path).call("--module", "inference_model", "--port", str(taken.getsockname()[1]))
    assert done.status == ExitCode.ENVIRONMENT and "error[E3431]: port" in done.output, done.output
    assert f"process {os.getpid()} (" in done.output
