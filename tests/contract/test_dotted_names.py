"""Classes that a configuration names by their place: found without an import, imported by the run, never by a row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.plugin_run import prepared_plugin
from tests.e2e.plugin_texts import REWARD
from tests.e2e.short_run import ROOT
from tests.e2e.tiny_run import TinyRun
from trinity.buffer.task_reader import TaskReader
from trinity.catalogue import builtin_catalogue
from trinity.common.config import ConfigErrors, TasksetConfig, load_plan
from trinity.common.rewards import REWARD_FUNCTIONS
from trinity.common.workflows import WORKFLOWS
from trinity.utils.module_source import NotFoundError, find_definition, module_file

LOSS = """
from __future__ import annotations

from own_pack.bases.scaled import Scaled


class Loss(Scaled):
    def __call__(self, logprob, action_mask, advantages, **kwargs):
        loss = -(advantages * logprob)[action_mask].mean() * self.scale
        return loss, {"pg_loss": loss.item(), "own_scale": self.scale}
"""
SCALED = """
from trinity.algorithm import PolicyLossFn


class Scaled(PolicyLossFn):
    def __init__(self, backend="verl", scale=1.0):
        super().__init__(backend)
        self.scale = scale

    @classmethod
    def default_args(cls):
        return {"scale": 3.0}
"""
OTHERS = '''
from trinity.buffer.operators import ExperienceOperator
from trinity.buffer.selector.selector import SequentialSelector
from trinity.common.workflows.workflow import SimpleWorkflow
from trinity.utils.monitor import Monitor


class Operator(ExperienceOperator):
    def process(self, exps):
        return exps, {"mine": 1.0}


class Selector(SequentialSelector):
    def row_at(self, position):
        return self.num_rows - 1 - super().row_at(position)


class Flow(SimpleWorkflow):
    """As its base."""


class Place(Monitor):
    def log(self, data, step, commit=False):
        open("place.txt", "a").write("logged")


def reward(response, truth=None):
    return len(set(response)) / 100
'''
NAMES: dict[str, Any] = {
    "algorithm__policy_loss_fn": "own_pack.Handed",
    "buffer__explorer_input__taskset__data_selector": {"selector_type": "own_pack.others.Selector"},
    "buffer__explorer_input__default_workflow_type": "own_pack.others.Flow",
    "data_processor__experience_pipeline__operators": [{"name": "own_pack.others.Operator"}],
    "monitor__monitor_type": "own_pack.others.Place",
}


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    pack = tmp_path / "own_pack"
    (pack / "bases").mkdir(parents=True)  # a namespace package: it has no __init__
    (pack / "__init__.py").write_text("from .losses import Loss as Handed\n")
    (pack / "losses.py").write_text(LOSS)
    (pack / "bases" / "scaled.py").write_text(SCALED)
    (pack / "others.py").write_text(OTHERS)
    return prepared_plugin(tmp_path, "", **NAMES)


VALIDATE = """
import json
import sys
from pathlib import Path
from trinity.launch.validation import check
found = check(Path("run.yaml"), plugin_dirs=(Path("plugins"),), schema_only=True)[1]
assert not {"own_pack", "torch"} & set(sys.modules)
print(json.dumps([[each.code, each.key, each.message, each.suggestion] for each in found if each.code != "W3906"]))
"""


def validated(run: TinyRun) -> Any:
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    (run.folder / "plugins").mkdir(exist_ok=True)
    (run.folder / "plugins" / "own.py").write_text(REWARD)
    command = [sys.executable, "-c", VALIDATE]
    environment = {"PYTHONPATH": f"{ROOT}:{run.folder}", "PATH": "/usr/bin"}
    done = subprocess.run(command, cwd=run.folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_registry_reads_classes_by_their_place_and_imports_none(run: TinyRun) -> None:
    assert validated(run) == []
    run.change(algorithm__policy_loss_fn_args={"scal": 1.0})
    ((code, key, _, hint),) = validated(run)
    assert (code, key, hint) == ("E1703", "algorithm.policy_loss_fn_args.scal", "did you mean `scale`?")


@pytest.mark.difference("A class by its path, `package.module.Class`, in place of a name")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("own_pack.losses.Los", "losses.py defines no Los"),
        ("own_pak.losses.Loss", "no module own_pak.losses was found on Python's path"),
        ("own_pack.others.reward", "defines reward as a function, not as a class"),
    ],
)
def test_what_is_not_found_is_refused_with_the_way_out(run: TinyRun, name: str, reason: str) -> None:
    run.change(algorithm__policy_loss_fn=name)
    ((code, key, message, hint),) = validated(run)
    assert (code, key) == ("E1701", "algorithm.policy_loss_fn") and f"{name}` names no policy_loss_fn" in message
    assert reason in message and "PYTHONPATH" in hint and "--plugin-dir" in hint


@pytest.mark.slow
def test_a_run_imports_them(run: TinyRun) -> None:
    process = run.start(environment={"PYTHONPATH": f"{ROOT}:{run.folder}"}, is_real=True)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output[-3000:]
    lines = [line for line in run.lines("trainer") if "actor/pg_loss" in line]
    assert [line["actor/own_scale"] for line in lines] == [3.0, 3.0]
    assert run.lines("explorer")[0]["experience_pipeline/own_pack.others.Operator/mine"] == 1.0
    assert "logged" in (run.folder / "place.txt").read_text()


@pytest.mark.difference("A class by its path, `package.module.Class`, in place of a name")
def test_a_row_of_data_names_registered_classes_only(tmp_path: Path) -> None:
    """B101, X14."""
    place = "trinity.common.workflows.workflow.MathWorkflow"
    assert WORKFLOWS.get(place) is WORKFLOWS.get("math_workflow") and place not in WORKFLOWS
    rows = [{"question": "1+1=", "flow": place}, {"question": "1+2=", "flow": "simple_workflow"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    form = {"prompt_key": "question", "workflow_key": "flow"}
    config = TasksetConfig(path=str(tmp_path / "rows.jsonl"), default_workflow_type=place, format=form)
    reader = TaskReader(config, max_bad_row_ratio=0.5)
    assert [row.code for row in reader.quarantined] == ["E4050"] and len(reader) == 1
    assert reader.workflow is WORKFLOWS.get("math_workflow")


def test_a_function_is_a_reward_by_its_place_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rewards.py").write_text("def length(response, truth=None):\n    return float(len(response))\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert REWARD_FUNCTIONS.get("own_rewards.length")("four") == 4.0
    file = tmp_path / "run.yaml"
    run = {"buffer": {"explorer_input": {"default_reward_fn_type": "own_rewards.length"}}}
    file.write_text(yaml.safe_dump(run))
    with pytest.raises(ConfigErrors) as caught:
        load_plan(file, catalogue=builtin_catalogue())
    assert not [each for each in caught.value.problems if "own_rewards" in each.message]


def test_what_cannot_be_imported_is_named() -> None:
    with pytest.raises(ValueError, match=r"'no_such_pack.Class' cannot be imported.*PYTHONPATH.*--plugin-dir"):
        WORKFLOWS.get("no_such_pack.Class")
    with pytest.raises(ValueError, match=r"has no attribute 'Nothing'"):
        WORKFLOWS.get("trinity.common.workflows.workflow.Nothing")


def test_a_name_is_followed_to_where_it_stands() -> None:
    place = find_definition("xml.sax.InputSource")
    assert (place.module, place.name, place.path.name) == ("xml.sax.xmlreader", "InputSource", "xmlreader.py")
    assert module_file("trinity.utils").name == "__init__.py"
    with pytest.raises(NotFoundError, match="defines no Nothing"):
        find_definition("json.decoder.Nothing")
