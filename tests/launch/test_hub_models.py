"""Models by their hub id: the local cache without a network, else a download from a server of the hub's endpoints."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.short_run import ROOT
from tests.e2e.tiny_run import PLAIN, TinyRun
from tests.http_service import listening
from trinity.quickstart.model import write_model

SHA = "0123456789abcdef0123456789abcdef01234567"
NAMES = ("tiny/policy", "tiny/critic", "tiny/judge", "tiny/reward")
PRINT = """
import json, sys
from pathlib import Path
from trinity.launch.validation import check
from trinity.common.config import ConfigErrors
from trinity.launch.run import RunOptions, plan_run
if sys.argv[1] == "validate":
    print(json.dumps([[p.code, p.key, p.message] for p in check(Path("run.yaml"))[1]]))
else:
    try:
        config = plan_run(Path("run.yaml"), RunOptions()).stages[0].config
    except ConfigErrors as error:
        print(json.dumps([[p.code, p.key, p.message] for p in error.problems]))
        sys.exit(3)
    verl = config.trainer.trainer_config
    print(json.dumps([config.model.model_path, config.model.critic_model_path,
                      config.explorer.auxiliary_models[0].model_path, verl.reward_model.model.path,
                      config.buffer.tokenizer_path]))
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""


@dataclass
class Hub:
    """A server of the hub's endpoints: what a model consists of, and its files."""

    models: dict[str, Path]
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def files(self, name: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.models[name].iterdir()) if path.is_file()}

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(path)
        info = re.fullmatch(r"/api/models/(\w+/\w+)(/revision/main)?", path.split("?")[0])
        tree = re.fullmatch(rf"/api/models/(\w+/\w+)/tree/{SHA}", path.split("?")[0])
        file = re.fullmatch(rf"/(\w+/\w+)/resolve/(?:main|{SHA})/(\S+)", path)
        found = info or tree or file
        if found is None or found[1] not in self.models:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        content = self.files(found[1])
        if info:
            made: Any = {"id": info[1], "sha": SHA, "siblings": [{"rfilename": name} for name in content]}
            return 200, {"Content-Type": "application/json"}, json.dumps(made).encode()
        if tree:
            made = [{"type": "file", "path": n, "size": len(c), "oid": _oid(c)} for n, c in content.items()]
            return 200, {"Content-Type": "application/json"}, json.dumps(made).encode()
        assert file is not None
        data = content[file[2]]
        return 200, {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": SHA}, data


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "served"
    write_model(folder, seed=1)
    made = Hub(dict.fromkeys(NAMES, folder))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, data = made.answer(self.path)
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(data))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with listening(Handler) as made.url:
        yield made


def environment(folder: Path, url: str, **values: str) -> dict[str, str]:
    ours = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT)}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return kept | ours | values


def with_models(folder: Path, *, names: tuple[str, ...] = NAMES) -> None:
    """Write a configuration that names a model of the hub wherever it may."""
    tree = json.loads(json.dumps(PLAIN))
    tree["model"] |= {"model_path": names[0], "critic_model_path": names[1]}
    tree["algorithm"] = {"algorithm_type": "ppo", "repeat_times": 2}
    tree["explorer"]["auxiliary_models"] = [{"model_path": names[2]}]
    reward = {"enable": True, "model": {"path": names[3]}}
    tree["trainer"]["trainer_config"] = {"reward_model": reward}
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))
    (folder / "train.jsonl").write_text('{"question": "1+1", "answer": "2"}\n' * 4)


def call(what: str, folder: Path, env: dict[str, str]) -> tuple[int, Any, str]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT, what], cwd=folder, env=env, capture_output=True, text=True, timeout=120
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def test_every_model_may_be_a_hub_id_and_is_downloaded_once(tmp_path: Path, hub: Hub) -> None:
    with_models(tmp_path)
    _, before, errors = call("validate", tmp_path, environment(tmp_path, hub.url))
    told = {key for code, key, _ in before if code == "W3111"}
    assert told == {
        "model.model_path",
        "model.critic_model_path",
        "explorer.auxiliary_models[0].model_path",
        "trainer.trainer_config.reward_model.model.path",
    }, errors
    assert not hub.asked, "validate needs no network"
    status, paths, errors = call("run", tmp_path, environment(tmp_path, hub.url))
    assert status == 0, (paths, errors)
    folders = [tmp_path / "hf" / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / SHA for name in NAMES]
    assert paths == [str(path) for path in (*folders, folders[0])]
    assert all(
        (path / "model.safetensors").read_bytes() == hub.files(NAMES[0])["model.safetensors"] for path in folders
    )
    hub.asked.clear()
    for values in ({}, {"HF_HUB_OFFLINE": "1"}):
        status, again, errors = call("run", tmp_path, environment(tmp_path, "http://127.0.0.1:9", **values))
        assert (status, again) == (0, paths), errors
    _, after, _ = call("validate", tmp_path, environment(tmp_path, hub.url))
    assert "W3111" not in {code for code, _, _ in after} and not hub.asked


def test_what_the_hub_does_not_give_is_an_error_with_its_way_out(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "models").mkdir()
    cases = [
        ("tiny/none", hub.url, {}, "has no such model, or hides it from you; check the id, or set HF_TOKEN"),
        ("tiny/none", "http://127.0.0.1:9", {}, "did not give it"),
        ("tiny/none", hub.url, {"HF_HUB_OFFLINE": "1"}, "unset HF_HUB_OFFLINE"),
    ]
    for name, url, values, text in cases:
        with_models(tmp_path, names=(name, name, name, name))
        status, problems, errors = call("run", tmp_path, environment(tmp_path, url, **values))
        assert status == 3, errors
        ((code, key, message),) = problems
        assert (code, key) == ("E3101", "model.model_path") and text in message, message
    with_models(tmp_path, names=("models/polisy",) * 4)
    _, problems, _ = call("validate", tmp_path, environment(tmp_path, hub.url))
    assert "E3101" in {code for code, _, _ in problems}, "a folder beside is a path that is wrong, no hub id"


def test_a_part_of_a_model_in_the_cache_is_completed(tmp_path: Path, hub: Hub) -> None:
    """Somebody has read its configuration: `local_files_only` gives this snapshot, too."""
    repository = tmp_path / "hf" / "hub" / "models--tiny--policy"
    (repository / "snapshots" / SHA).mkdir(parents=True)
    (repository / "snapshots" / SHA / "config.json").write_bytes(hub.files("tiny/policy")["config.json"])
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(SHA)
    with_models(tmp_path, names=("tiny/policy",) * 4)
    status, problems, _ = call("run", tmp_path, environment(tmp_path, hub.url, HF_HUB_OFFLINE="1"))
    assert status == 3 and "not whole in the local cache" in problems[0][2]
    status, paths, errors = call("run", tmp_path, environment(tmp_path, hub.url))
    assert status == 0, errors
    assert (Path(paths[0]) / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_run_begins_from_a_model_of_the_hub(tmp_path: Path, hub: Hub) -> None:
    run = TinyRun(tmp_path)
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    hub.models = {"tiny/policy": tmp_path / "elsewhere"}
    run.tree["model"]["model_path"] = "tiny/policy"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.tree))
    done = subprocess.run(
        [sys.executable, "-m", "trinity", "run", "--config", "run.yaml"],
        cwd=tmp_path, env=environment(tmp_path, hub.url), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"downloading tiny/policy from {hub.url}" in done.stderr
    assert [line["step"] for line in run.lines("trainer")] == [1, 2]
