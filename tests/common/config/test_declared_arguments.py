"""`default_args` of a plugin, in every registry, is what the run gives its class; or it is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.algorithm.plugin_shapes import HEAD as OF_ALGORITHMS
from tests.common.config.conftest import MINIMAL
from tests.common.config.registered_shapes import HEAD as OF_OTHERS
from tests.loaded_plugins import forget_plugins
from trinity.algorithm.building import build
from trinity.buffer.buffer import replay_of
from trinity.buffer.operators import build_operators
from trinity.buffer.selector import make_selector
from trinity.buffer.task_reader import TaskReader
from trinity.catalogue import catalogue_of
from trinity.common.config import Catalogue, Config, Finding, examine
from trinity.common.errors import ConfigError
from trinity.common.rewards import REWARD_FUNCTIONS
from trinity.explorer.assembly import build_reward_model
from trinity.monitor import MONITOR, Monitor
from trinity.utils.kinds import KINDS
from trinity.utils.plugin_loader import load_plugins

TASKSET = "buffer.explorer_input.taskset"
REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
MODEL = "trainer.trainer_config.reward_model"
OPERATORS = "data_processor.experience_pipeline.operators"
CLASS = """
@{variable}.register_module("mine")
class Mine({base}):
    {init}

    @classmethod
    def default_args(cls):
        return {{"factor": 3.0}}

    {body}
"""
# Kind -> base class, constructor, and what the base leaves to a class.
CLASSES: dict[str, tuple[str, str, str]] = {
    "algorithm_type": ("AlgorithmType", "", ""),
    "advantage_fn": (
        "GroupAdvantage",
        "def __init__(self, factor=1.0):\n        self.factor = factor",
        "def calculate_group_advantage(self, group_id, exps):\n        return exps, {}",
    ),
    "policy_loss_fn": (
        "Base",
        "def __init__(self, backend='verl', factor=1.0):\n        self.factor = factor",
        "def __call__(self, logprob, action_mask, advantages):\n        return logprob.sum(), {}",
    ),
    "kl_fn": (
        "KLFn",
        "def __init__(self, factor=1.0, **kwargs):\n        super().__init__(**kwargs)\n        self.factor = factor",
        "def calculate_kl(self, logprob, ref_logprob, old_logprob=None):\n        return logprob",
    ),
    "entropy_loss_fn": (
        "EntropyLossFn",
        "def __init__(self, entropy_coef=0.1, factor=1.0):\n"
        "        super().__init__(entropy_coef)\n        self.factor = factor",
        "def __call__(self, entropy, action_mask, loss_agg_mode='token-mean'):\n        return entropy.sum(), {}",
    ),
    "sample_strategy": (
        "SampleStrategy",
        "def __init__(self, source, *, batch_size, factor=1.0):\n        self.factor = factor",
        "async def sample(self, step):\n        return [], {}, []",
    ),
    "workflow": ("Workflow", "", ""),
    "reward_fn": (
        "RewardFn",
        "def __init__(self, factor=1.0):\n        self.factor = factor",
        "def __call__(self, response, prompt=None, truth=None, **kwargs):\n        return {'one': 1.0}",
    ),
    "reward_model": (
        "RewardModel",
        "def __init__(self, config, factor=1.0):\n        self.factor = factor",
        "def score(self, experiences):\n        return []",
    ),
    "operator": (
        "ExperienceOperatorV1",
        "def __init__(self, factor=1.0):\n        self.factor = factor",
        "async def process(self, exps):\n        return exps, {}",
    ),
    "selector": ("BaseSelector", "", "def row_at(self, position):\n        return 0"),
    "monitor": ("Monitor", "", "def log(self, data, step, commit=False):\n        pass"),
    "priority_fn": (
        "PriorityFunction",
        "def __init__(self, factor=1.0):\n        self.factor = factor",
        "def __call__(self, item):\n        return 0.0, True",
    ),
}
# Kind -> what chooses the class, the key of its arguments, and what the object has that the run makes of them.
Made = Callable[[Config, Path], Any]
RUNS: dict[str, tuple[tuple[str, ...], str, Made]] = {
    "advantage_fn": (
        ("algorithm.advantage_fn=mine",),
        "algorithm.advantage_fn_args",
        lambda config, _: build(config.algorithm, "advantage_fn").factor,
    ),
    "policy_loss_fn": (
        ("algorithm.policy_loss_fn=mine",),
        "algorithm.policy_loss_fn_args",
        lambda config, _: build(config.algorithm, "policy_loss_fn").factor,
    ),
    "kl_fn": (
        ("algorithm.kl_loss_fn=mine",),
        "algorithm.kl_loss_fn_args",
        lambda config, _: build(config.algorithm, "kl_loss_fn").factor,
    ),
    "entropy_loss_fn": (
        ("algorithm.entropy_loss_fn=mine",),
        "algorithm.entropy_loss_fn_args",
        lambda config, _: build(config.algorithm, "entropy_loss_fn").factor,
    ),
    "sample_strategy": (
        ("algorithm.sample_strategy=mine",),
        "algorithm.sample_strategy_args",
        lambda config, _: build(config.algorithm, "sample_strategy", None, batch_size=1).factor,
    ),
    "workflow": (
        (f"{TASKSET}.default_workflow_type=mine",),
        f"{TASKSET}.workflow_args",
        lambda config, _: _task(config).workflow_args["factor"],
    ),
    "reward_fn": (
        (f"{TASKSET}.default_reward_fn_type=mine",),
        f"{TASKSET}.reward_fn_args",
        lambda config, _: _reward_fn(config).factor,
    ),
    "reward_model": (
        (f"{MODEL}.enable=true", f"{MODEL}.worker=mine"),
        f"{MODEL}.worker_args",
        lambda config, _: _existing(build_reward_model(config)).factor,
    ),
    "operator": (
        (f"{OPERATORS}=[{{name: mine}}]",),
        f"{OPERATORS}[0].args",
        lambda config, _: build_operators(config.data_processor.experience_pipeline.operators)[0][1].factor,
    ),
    "selector": (
        (f"{TASKSET}.data_selector.selector_type=mine",),
        f"{TASKSET}.data_selector.kwargs",
        lambda config, _: _selector(config).config.kwargs["factor"],
    ),
    "monitor": (
        ("monitor.monitor_type=mine",),
        "monitor.monitor_args",
        lambda config, folder: _monitor(config, folder),
    ),
    "priority_fn": (
        (f"{REPLAY}.enable=true", f"{REPLAY}.reuse_cooldown_time=0", f"{REPLAY}.priority_fn=mine"),
        f"{REPLAY}.priority_fn_args",
        lambda config, _: _existing(replay_of(config)).priority.factor,
    ),
}


@pytest.fixture(autouse=True)
def _no_plugins_after_each_test() -> Iterator[None]:
    yield
    forget_plugins()


def _existing(value: Any) -> Any:
    assert value is not None
    return value


def _task(config: Config) -> Any:
    (task,) = TaskReader(_existing(config.buffer.explorer_input.taskset)).tasks()
    return task


def _reward_fn(config: Config) -> Any:
    task = _task(config)
    assert task.reward_fn is REWARD_FUNCTIONS.get("mine")
    return task.workflow(task=task, model=None).reward_fn


def _selector(config: Config) -> Any:
    return make_selector([1], _existing(config.buffer.explorer_input.taskset).data_selector)


def _monitor(config: Config, folder: Path) -> Any:
    heard: list[Any] = []
    MONITOR.get("mine").log = lambda self, *_, **__: heard.append(self.config.monitor.monitor_args["factor"])
    section = config.monitor
    monitor = Monitor(
        folder, project="p", name="n", actor="trainer", monitor_type="mine", monitor_args=section.monitor_args
    )
    monitor.log({"x": 1.0}, 1)
    monitor.close()
    return heard[0]


def _text(kind: str, **changed: str) -> str:
    base, init, body = CLASSES[kind]
    values = {"variable": KINDS[kind].variable, "base": base, "init": init or "pass", "body": body}
    return OF_ALGORITHMS + OF_OTHERS + CLASS.format(**values | changed)


def _examined(folder: Path, text: str, *overrides: str) -> tuple[Config, Catalogue, list[Finding]]:
    (folder / "plugins").mkdir()
    (folder / "plugins" / "mine.py").write_text(text, encoding="utf-8")
    (folder / "data.jsonl").write_text(json.dumps({"question": "1+1=", "answer": "2"}) + "\n")
    tree = yaml.safe_load(MINIMAL)
    tree["buffer"]["explorer_input"]["taskset"] |= {
        "path": str(folder / "data.jsonl"),
        "format": {"prompt_key": "question", "response_key": "answer"},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    catalogue, problems = catalogue_of([folder / "plugins"])
    plan, found = examine(folder / "run.yaml", overrides, catalogue=catalogue, cwd=folder, schema_only=True)
    return plan.stages[0].config, catalogue, [p for p in (*problems, *found) if p.is_error]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "algorithm_type"])
@pytest.mark.parametrize(("written", "factor"), [((), 3.0), (("factor=5.0",), 5.0)])
def test_the_run_makes_its_objects_of_the_arguments_that_were_checked(
    tmp_path: Path, kind: str, written: tuple[str, ...], factor: float
) -> None:
    chosen, key, made = RUNS[kind]
    overrides = (*chosen, *(f"{key}.{one}" for one in written))
    config, catalogue, problems = _examined(tmp_path, _text(kind), *overrides)
    assert not problems
    load_plugins(tmp_path / "plugins")
    assert catalogue.plugin_entries[kind]["mine"].args["factor"] == 3.0
    assert made(config, tmp_path) == factor


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "algorithm_type"])
def test_a_default_out_of_range_is_refused(tmp_path: Path, kind: str) -> None:
    chosen, key, _ = RUNS[kind]
    text = _text(kind, init=f"ranges = {{'factor': '[0, 2]'}}\n    {CLASSES[kind][1]}")
    problems = _examined(tmp_path, text, *chosen)[2]
    assert [(p.code, p.key) for p in problems] == [("E1302", f"{key}.factor")]


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.unread])
def test_a_declaration_of_another_kind_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    is_type = kind == "algorithm_type"
    stray = "default_args" if is_type else "default_config"
    text = _text(kind) if is_type else _text(kind).replace("def default_args", "def default_config")
    (problem,) = _examined(tmp_path, text)[2]
    way_out = "default_config" if is_type else "default_args"
    assert problem.code == "E3907" and f"`{stray}` of Mine is not read" in problem.message
    assert problem.suggestion == f"return it from `{way_out}`"
    with pytest.raises(ConfigError, match=f"`{stray}` of .*Mine is not read") as caught:
        load_plugins(tmp_path / "plugins")
    assert caught.value.code == "E3907"


@pytest.mark.parametrize("kind", [kind for kind, of in KINDS.items() if not of.is_type and not of.reads_mapping])
def test_a_default_that_the_constructor_does_not_take_is_refused(tmp_path: Path, kind: str) -> None:
    text = _text(kind).replace('"factor": 3.0', '"fcator": 3.0').replace(", **kwargs)", ")").replace("(**kwargs)", "()")
    (problem,) = _examined(tmp_path, text)[2]
    assert problem.code == "E3907" and "names `fcator`, which the constructor does not take" in problem.message
    with pytest.raises(ConfigError, match="names `fcator`"):
        load_plugins(tmp_path / "plugins")
