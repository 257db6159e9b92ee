"""A run whose workflow asks a model behind a server, and the end of auxiliary models when something fails."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import yaml

from tests.e2e.tiny_run import TinyRun
from tests.engine.external.openai_server import serving
from tests.tiny import tiny_model
from trinity.common.errors import EnvironmentProblem
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.utils import failpoints

pytestmark = pytest.mark.slow

KEY = "sk-canary-of-the-judge-0815"
WORKFLOW = """
from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.workflow import AsyncSimpleWorkflow, SimpleWorkflow


@WORKFLOWS.register_module("judged_outside")
class JudgedOutside(SimpleWorkflow):
    def run(self):
        experiences = super().run()
        for experience in experiences:
            question = [{"role": "user", "content": experience.response_text or "1"}]
            greedy = {"temperature": 0.0, "max_tokens": 4}
            (verdict,) = self.auxiliary_model_wrappers[0].chat(question, **greedy)
            client = self.auxiliary_models[0]
            again = client.chat.completions.create(model=client.model_path, messages=question, **greedy)
            assert again.choices[0].message.content == verdict.response_text
            experience.reward = float(len(verdict.response_text))
            experience.metrics = {"verdict_length": experience.reward}
        return experiences
"""


@pytest.fixture(scope="module")
def judging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the workflow; one folder, because a process loads a plugin once."""
    folder = tmp_path_factory.mktemp("judging")
    (folder / "judged_outside.py").write_text(WORKFLOW)
    return folder


def made(folder: Path, auxiliary: list[dict[str, object]]) -> TinyRun:
    """Return a run with auxiliary models and the workflow that asks the first."""
    run = TinyRun(folder).change(
        checkpoint_root_dir=str(folder / "out"),
        model__model_path=str(folder / "model"),
        buffer__explorer_input__taskset__path=str(folder / "train.jsonl"),
        buffer__explorer_input__default_workflow_type="judged_outside",
        explorer__auxiliary_models=auxiliary,
    )
    (folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    return run


def finish(run: TinyRun, plugins: Path) -> None:
    options = RunOptions(plugin_dirs=(plugins,))
    result = run_plan(plan_run(run.folder / "run.yaml", options), options)
    if result.error is not None:
        raise result.error


def judge() -> dict[str, object]:
    return {"engine_type": "external", "external_model_config": {"model_name": "judge", "base_url_env": "JUDGE_URL"}}


def test_a_workflow_is_judged_by_a_server_whose_key_reaches_no_file(
    tmp_path: Path, judging: Path, monkeypatch: pytest.MonkeyPatch
):
    run = made(tmp_path, [judge()])
    with serving(run.folder / "model") as service:
        service.api_key = KEY
        monkeypatch.setenv("JUDGE_URL", service.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        finish(run, judging)
    assert len(service.requests) == 16, "two for each rollout of two steps"
    assert {body["model"] for _, _, body in service.requests} == {"judge"}
    line = run.lines("explorer")[0]
    assert line["rollout/verdict_length/mean"] == line["rollout/reward/mean"] > 0
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]


@pytest.mark.parametrize("point", ["", "train.before_step=raise@1", "explore.after_rollout=raise@1"])
def test_when_something_fails_the_engines_of_all_models_end(
    tmp_path: Path, judging: Path, monkeypatch: pytest.MonkeyPatch, point: str
):
    monkeypatch.delenv("JUDGE_URL", raising=False)
    tiny_model(tmp_path / "other", "llama", seed=2)
    other = {"model_path": str(tmp_path / "other"), "dtype": "float32"}
    run = made(tmp_path, [other] if point else [other, judge()])
    before = set(threading.enumerate())
    failpoints.configure(point)
    try:
        with pytest.raises((EnvironmentProblem, RuntimeError), match="failpoint" if point else r"E5735.*models\[1\]"):
            finish(run, judging)
    finally:
        failpoints.configure("")
    assert not [thread.name for thread in set(threading.enumerate()) - before if thread.name == "torch-engine"]


def test_a_benchmark_of_a_server_needs_its_tokenizer_and_no_checkpoint(
    tmp_path: Path, judging: Path, monkeypatch: pytest.MonkeyPatch
):
    run = made(tmp_path, [])
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for file in (run.folder / "model").iterdir():
        if file.suffix in (".json", ".jinja") and "index" not in file.name:
            shutil.copy(file, tokenizer / file.name)
    held_out = {"name": "held_out", "path": str(tmp_path / "train.jsonl"), "default_workflow_type": "simple_workflow"}
    held_out |= {"format": {"prompt_key": "question", "response_key": "answer"}}
    run.change(
        mode="bench",
        synchronizer__sync_method="checkpoint",
        model__model_path=str(tokenizer),
        model__external_model={"enable": True, "model_name": "judge", "base_url_env": "JUDGE_URL"},
        buffer__explorer_input__eval_tasksets=[held_out],
        explorer__rollout_model={},
    )
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.tree))
    with serving(run.folder / "model") as service:
        monkeypatch.setenv("JUDGE_URL", service.url)
        finish(run, judging)
    assert [path for path, _, _ in service.requests] == ["/v1/chat/completions"] * 4
    (line,) = run.lines("bench")
    assert line["step"] == 0 and "bench/held_out/accuracy/mean@1" in line
