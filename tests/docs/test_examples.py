"""The examples of the pages run: YAML, the plugin, and the scripts over what a run of the plugin left."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.testing import CliRunner

from tests.docs.pages import Page, english_pages, page
from tests.tiny import tiny_model
from tests.trees import merged
from trinity.catalogue import builtin_catalogue
from trinity.cli.app import app
from trinity.common.config import dump_config, load_plan
from trinity.common.errors import ExitCode
from trinity.launch.run import RunOptions, plan_run, run_plan

BASE = """\
model: {model_path: models/my-model, max_model_len: 1024}
buffer:
  batch_size: 8
  explorer_input:
    default_workflow_type: math_workflow
    taskset: {path: data/train.jsonl}
"""
EXAMPLES = [
    pytest.param(part, code, id=f"{part.name}-{number}")
    for part in english_pages()
    if part.path.name != "plugins.md"  # of parts that its own test runs
    for number, code in enumerate(part.code("yaml"))
    if not code.startswith("apiVersion")  # is for Kubernetes
]
# Names that only another algorithm or an evaluation writes.
NOT_IN_THIS_RUN = {
    "actor/sft_loss",
    "experience_pipeline/skipped_group_ratio",
    "experience_pipeline/reward_diff/mean",
    "perf/checkpoint/uploaded",
    "perf/checkpoint/upload_pending",
    "perf/checkpoint/upload_failures",
    "time/adv",
    "time/old_log_prob",
    "time/update_critic",
    "time/values",
}


def _module(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.runs("*.md", "yaml")
@pytest.mark.parametrize(("part", "code"), EXAMPLES)
def test_yaml_examples_are_valid_in_this_version(part: Page, code: str, tmp_path: Path) -> None:
    example = yaml.safe_load(code)
    has_tasks = "stages" in example or "explorer_input" in example.get("buffer", {}) or example.get("mode") == "serve"
    if "model" not in example or not has_tasks:
        tree = merged(yaml.safe_load(BASE), example)
        if "tasksets" in tree["buffer"]["explorer_input"]:
            del tree["buffer"]["explorer_input"]["taskset"]  # either one or several
        code = yaml.safe_dump(tree)
    (tmp_path / "run.yaml").write_text(code, encoding="utf-8")
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    names = dict.fromkeys(("docs/workflows.md", "docs/own-data.md", part.name))
    codes = [code for name in names for code in page(name).code("python")]
    for number, plugin in enumerate(codes):
        (plugins / f"example_{number}.py").write_text(plugin, encoding="utf-8")
    plan = load_plan(tmp_path / "run.yaml", catalogue=builtin_catalogue([plugins]), cwd=tmp_path)
    assert not plan.warnings
    assert len(plan.stages) == len(example.get("stages", [None]))
    for stage in plan.stages:  # what a run of it saves is as valid, and means the same
        (tmp_path / "config.yaml").write_text(dump_config(stage.config, stage.references), encoding="utf-8")
        again = load_plan(tmp_path / "config.yaml", catalogue=builtin_catalogue([plugins]), cwd=tmp_path)
        assert not again.warnings
        kept, saved = (each.model_dump(exclude={"written"}) for each in (stage.config, again.stages[0].config))
        assert saved == kept


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Write the plugin example with a tiny model, run it in this process, and stay in its folder."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "plugins").mkdir()
    (folder / "data").mkdir()
    example = page("docs/workflows.md")
    (folder / "plugins" / "second_thought.py").write_text(example.code("python")[0], encoding="utf-8")
    (folder / "second_thought.yaml").write_text(example.code("yaml")[0], encoding="utf-8")
    rows = [{"question": f"{number} + {number + 1} = ?"} for number in range(4)]
    (folder / "data" / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny_model(folder / "models" / "my-model")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield _run(folder)


def _run(folder: Path) -> Path:
    options = RunOptions(overrides=["project=my-project", "name=my-run"], plugin_dirs=[folder / "plugins"])
    result = run_plan(plan_run(folder / "second_thought.yaml", options), options)
    assert result.exit_code == ExitCode.DONE
    return folder / "checkpoints" / "my-project" / "my-run"


def _names(job: Path) -> set[str]:
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {name for line in lines for name in line}


@pytest.mark.runs("docs/workflows.md", "from trinity.buffer.operators")
def test_the_plugin_example_is_used_by_the_run(finished_run: Path) -> None:
    lines = [json.loads(line) for line in (finished_run / "metrics.jsonl").read_text().splitlines()]
    explored = next(line for line in lines if line["actor"] == "explorer" and line["step"] == 1)
    assert explored["rollout/finished_task_count"] == 2
    assert explored["rollout/failed_run_count"] == explored["rollout/rejected_run_count"] == 0
    short = explored["experience_pipeline/short_bonus/short_count"]
    assert 4 <= short <= 8, "four rollouts of two turns; one whose turns are not one sequence has two experiences"
    assert 0 <= explored["rollout/digit_share/mean"] <= 1
    trained = next(line for line in lines if line["actor"] == "trainer")
    assert trained["sample/experience_count"] == short
    assert explored["rollout/reward/mean"] >= 0
    assert trained["critic/rewards/min"] > 0.1 - 1e-6, "each has the bonus beside its share of digits"


@pytest.mark.parametrize("name", ["docs/running.md", "docs/architecture.md", "docs/differences.md"])
def test_documented_metrics_are_written(finished_run: Path, name: str) -> None:
    families = "rollout|experience_pipeline|sample|actor|training|critic|response_length|time|perf"
    told = {term for term in page(name).terms if re.fullmatch(rf"({families})(/\w+)+", term)}
    assert told - NOT_IN_THIS_RUN - _names(finished_run) == set()


def test_the_job_folder_is_as_documented(finished_run: Path) -> None:
    told = page("docs/running.md").code("text")
    lines = "\n".join(told).replace("<N>", "1").replace("<actor>", "trainer").splitlines()
    names = [
        word for line in lines for word in re.split(r"\s{2,}", line.strip())[:2] if re.search(r"\w[./]\w|/$", word)
    ]
    elsewhere = "<", " ", "global_step"  # placeholders and remarks
    expected = [name for name in names if not any(mark in name for mark in elsewhere)]
    checkpoint = finished_run / "global_step_1"
    missing = [n for n in expected if not (finished_run / n).exists() and not (checkpoint / n).exists()]
    assert len(expected) > 12
    assert not missing


@pytest.mark.runs("docs/workflows.md", "trinity validate", "trinity run")
def test_the_commands_of_the_plugin_example_run(finished_run: Path) -> None:
    lines = page("docs/workflows.md").lines("trinity validate ") + page("docs/workflows.md").lines("trinity run ")
    assert len(lines) == 2
    for line in lines:
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert done.exit_code == ExitCode.DONE, done.output


@pytest.mark.runs("docs/workflows.md", "import asyncio")
def test_the_script_that_tries_a_workflow_runs(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Path("try.py")
    script.write_text(page("docs/workflows.md").code("python")[2], encoding="utf-8")
    module = _module(script, "docs_try")
    assert len(module.experiences) == 1
    assert 0 < int(module.experiences[0].action_mask.sum()) < module.experiences[0].response_length
    assert "Please check your answer." in capsys.readouterr().out


@pytest.mark.runs(
    "docs/workflows.md", "from trinity.common.workflows import WORKFLOWS\nfrom trinity.common.workflows.step_wise"
)
def test_the_agent_of_several_steps_trains(finished_run: Path) -> None:
    example = page("docs/workflows.md")
    folder = finished_run.parents[2]
    (folder / "agent").mkdir()
    (folder / "agent" / "guess.py").write_text(example.code("python")[4], encoding="utf-8")
    (folder / "guess.yaml").write_text(example.code("yaml")[2], encoding="utf-8")
    rows = [{"question": f"Guess {number}.", "secret": str(number)} for number in range(2)]
    (folder / "data" / "numbers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = RunOptions(plugin_dirs=[folder / "agent"])
    assert run_plan(plan_run(folder / "guess.yaml", options), options).exit_code == ExitCode.DONE
    metrics = (folder / "checkpoints" / "docs" / "guess" / "metrics.jsonl").read_text().splitlines()
    trained = next(line for line in map(json.loads, metrics) if line["actor"] == "trainer")
    assert trained["sample/rollout_count"] == 8 and trained["sample/experience_count"] >= 8
