"""What workflows, rewards, operators and the like declare is known before they are imported, or refused by name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.common.config.conftest import MINIMAL
from tests.common.config.registered_shapes import HEAD, SHAPES
from tests.loaded_plugins import forget_plugins
from trinity.buffer.operators import EXPERIENCE_OPERATORS
from trinity.buffer.priority import PRIORITY_FUNC
from trinity.buffer.selector import SELECTORS
from trinity.catalogue import BUILT_IN, catalogue_of
from trinity.common.config import Catalogue, Config, Finding, examine
from trinity.common.models.reward_models import REWARD_MODELS
from trinity.common.rewards import REWARD_FUNCTIONS
from trinity.common.workflows import WORKFLOWS
from trinity.monitor import MONITOR
from trinity.preflight.data import check_data
from trinity.preflight.extras import check_extras
from trinity.utils.kinds import KINDS
from trinity.utils.plugin_loader import load_plugins

REGISTRIES = {
    registry.kind: registry
    for registry in (
        WORKFLOWS, REWARD_FUNCTIONS, REWARD_MODELS, EXPERIENCE_OPERATORS, SELECTORS, PRIORITY_FUNC, MONITOR,
    )
}  # fmt: skip
TASKSET = "buffer.explorer_input.taskset"
OPERATORS = "data_processor.experience_pipeline.operators"
REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
MODEL = "trainer.trainer_config.reward_model"


@pytest.fixture(autouse=True)
def _no_plugins_after_each_test() -> Iterator[None]:
    yield
    forget_plugins()


def _catalogue(folder: Path, text: str) -> tuple[Catalogue, list[Finding]]:
    (folder / "plugins").mkdir(exist_ok=True)
    (folder / "plugins" / "mine.py").write_text(text, encoding="utf-8")
    return catalogue_of([folder / "plugins"])


def _examined(folder: Path, *overrides: str, text: str = SHAPES) -> tuple[Config, Catalogue, list[Finding]]:
    catalogue, problems = _catalogue(folder, text)
    assert not [problem for problem in problems if problem.is_error]
    (folder / "run.yaml").write_text(MINIMAL, encoding="utf-8")
    plan, found = examine(folder / "run.yaml", overrides, catalogue=catalogue, cwd=folder, schema_only=True)
    return plan.stages[0].config, catalogue, [problem for problem in found if problem.is_error]


def test_the_source_of_a_plugin_says_what_its_classes_say(tmp_path: Path) -> None:
    catalogue, problems = _catalogue(tmp_path, SHAPES)
    assert not problems
    load_plugins(tmp_path / "plugins")
    for kind, registry in REGISTRIES.items():
        read = catalogue.plugin_entries[kind]
        assert read.keys() == catalogue.plugins[kind] - {"by_function"}
        for name, entry in read.items():
            assert entry == registry.contents[name], (kind, name)
    assert REWARD_FUNCTIONS.get("by_function")("x") == {"one": 1.0}


def test_what_the_source_says_is_what_is_meant(tmp_path: Path) -> None:
    read = _catalogue(tmp_path, SHAPES)[0].plugin_entries
    needs = {name: set(entry.needs) for name, entry in read["workflow"].items()}
    assert needs == {
        "plain": set(),
        "stepwise": {"prompt", "auxiliary_model"},
        "simple": {"prompt", "reward_fn"},
        "chooses": {"prompt"},
        "with_default": {"prompt", "reward_fn"},
    }
    assert read["workflow"]["simple"].doc == "Has nothing to say."
    assert read["workflow"]["with_default"].default_reward_fn == "own_accuracy"
    rewards = read["reward_fn"]
    assert (rewards["own_accuracy"].needs, rewards["other"].needs) == ({"truth"}, set())
    assert dict(rewards["own_accuracy"].args) == {"answer_parser": None, "deadline_s": 5.0}
    other = rewards["other"]
    assert (dict(other.args), other.required, other.is_open) == (
        {"answer_parser": None, "deadline_s": 1.0}, {"weight"}, True,
    )  # fmt: skip
    assert dict(other.ranges) == {"deadline_s": "(0, inf]", "weight": "[0, 5.0]"}
    assert (rewards["silent"].gives_scores, rewards["not_silent"].gives_scores) == (False, True)
    operators = read["operator"]
    assert operators["filter"].drops_experiences and dict(operators["filter"].args) == {"threshold": 0.0}
    assert operators["bonus"].changes_rewards and not operators["bonus"].drops_experiences
    assert dict(operators["bonus"].args) == {"bonus": 0.5, "where": ("a", "b")}
    assert not operators["late"].args and not operators["late"].is_open
    assert dict(read["priority_fn"]["newest"].args) == {"most": 3}
    assert (read["reward_model"]["classifier"].is_classifier, dict(read["reward_model"]["letters"].args)) == (
        True, {"weight": 1.0},
    )  # fmt: skip
    assert read["monitor"]["elsewhere"].package == "no_such_tracker"
    assert dict(read["monitor"]["elsewhere"].args) == {"url": "http://localhost"}


@pytest.mark.difference("Arguments of reward functions and operators")
@pytest.mark.parametrize(
    ("overrides", "code", "key", "words"),
    [
        ([f"{OPERATORS}=[{{name: reward_filter, args: {{treshold: 1}}}}]"], "E1703", f"{OPERATORS}[0].args.treshold",
         "`reward_filter` has no argument `treshold`; known: threshold"),
        ([f"{OPERATORS}=[{{name: reward_filter, args: {{threshold: much}}}}]"], "E1704",
         f"{OPERATORS}[0].args.threshold", "must be a number, got 'much'"),
        ([f"{OPERATORS}=[{{name: bonus}}, {{name: bonus, args: {{bonuss: 1}}}}]"], "E1703",
         f"{OPERATORS}[1].args.bonuss", "`bonus` has no argument `bonuss`; known: bonus, where"),
        ([f"{TASKSET}.reward_fn_args={{deadline: 1}}"], "E1703", f"{TASKSET}.reward_fn_args.deadline",
         "`math_reward` has no argument `deadline`"),
        ([f"{TASKSET}.reward_fn_args={{deadline_s: 0}}"], "E1302", f"{TASKSET}.reward_fn_args.deadline_s",
         "of math_reward must be a number > 0, got 0"),
        ([f"{TASKSET}.default_reward_fn_type=other"], "E1706", f"{TASKSET}.reward_fn_args",
         "weight` of other must be given"),
        ([f"{TASKSET}.default_workflow_type=with_default", f"{TASKSET}.reward_fn_args={{a: 1}}"], "E1703",
         f"{TASKSET}.reward_fn_args.a", "`own_accuracy` has no argument `a`"),
        ([f"{TASKSET}.default_workflow_type=simple"], "E1864", f"{TASKSET}.default_reward_fn_type",
         "workflow simple needs a reward function"),
        ([f"{TASKSET}.default_workflow_type=stepwise"], "E1880", "explorer.auxiliary_models",
         f"workflow stepwise of `{TASKSET}` needs a teacher"),
        ([f"{TASKSET}.default_workflow_type=on_policy_distill_workflow"], "E1880", "explorer.auxiliary_models",
         "is empty: workflow on_policy_distill_workflow"),
        ([f"{TASKSET}.default_reward_fn_type=silent"], "E1862", f"{TASKSET}.default_reward_fn_type",
         "default_reward_fn_type: silent` leaves every reward at 0"),
        (["algorithm.algorithm_type=remax", f"{OPERATORS}=[{{name: bonus}}]"], "E1884", f"{OPERATORS}[0].name",
         "changes the reward"),
        ([f"{REPLAY}.enable=true", f"{REPLAY}.reuse_cooldown_time=0", f"{REPLAY}.priority_fn=newest",
          f"{REPLAY}.priority_fn_args.most=-1"], "E1302", f"{REPLAY}.priority_fn_args.most", "must be a number >= 0"),
        ([f"{MODEL}.enable=true", f"{MODEL}.worker=classifier"], "E1860", f"{MODEL}.model.path", "is missing"),
        ([f"{MODEL}.enable=true", f"{MODEL}.worker=letters", f"{MODEL}.worker_args={{weigth: 1}}"], "E1703",
         f"{MODEL}.worker_args.weigth", "`letters` has no argument `weigth`"),
    ],
)  # fmt: skip
def test_what_would_fail_in_the_run_is_refused_before(
    tmp_path: Path, overrides: list[str], code: str, key: str, words: str
) -> None:
    (problem,) = _examined(tmp_path, *overrides)[2]
    assert (problem.code, problem.key) == (code, key) and words in problem.message, problem


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{TASKSET}.default_workflow_type=chooses"],
        [f"{TASKSET}.default_workflow_type=plain", f"{TASKSET}.reward_fn_args={{anything: 1}}"],
        [f"{TASKSET}.default_workflow_type=with_default", f"{TASKSET}.reward_fn_args={{deadline_s: 1}}"],
        [f"{TASKSET}.default_reward_fn_type=other", f"{TASKSET}.reward_fn_args={{weight: 1, more: 2}}"],
        [f"{TASKSET}.default_reward_fn_type=not_silent"],
        [f"{TASKSET}.default_reward_fn_type=by_function"],
        [f"{TASKSET}.default_workflow_type=stepwise", "explorer.auxiliary_models=[{model_path: teacher}]"],
        ["buffer.train_batch_size=16", "synchronizer.sync_style=fixed", f"{OPERATORS}=[{{name: filter}}]"],
        ["algorithm.algorithm_type=remax", f"{OPERATORS}=[{{name: filter}}]"],
        [f"{MODEL}.enable=true", f"{MODEL}.worker=letters", f"{MODEL}.worker_args={{weight: 2}}"],
        [f"{TASKSET}.data_selector.selector_type=backwards", "monitor.monitor_type=elsewhere"],
    ],
)
def test_what_a_run_takes_is_valid(tmp_path: Path, overrides: list[str]) -> None:
    assert _examined(tmp_path, *overrides)[2] == []


DATACLASS = """
from dataclasses import dataclass

@EXPERIENCE_OPERATORS.register_module("made")
@dataclass
class Made(ExperienceOperatorV1):
    share: float = 0.5

    async def process(self, exps):
        return exps, {}
"""


def test_arguments_of_a_constructor_that_is_made_are_left_to_the_run(tmp_path: Path) -> None:
    overrides = f"{OPERATORS}=[{{name: made, args: {{share: 1}}}}]"
    assert _examined(tmp_path, overrides, text=HEAD + DATACLASS)[2] == []
    load_plugins(tmp_path / "plugins")
    entry = EXPERIENCE_OPERATORS.contents["made"]
    assert (dict(entry.args), entry.is_open) == ({"share": 0.5}, False)


def test_an_operator_that_says_nothing_drops_nothing(tmp_path: Path) -> None:
    overrides = ("buffer.train_batch_size=16", "synchronizer.sync_style=fixed", f"{OPERATORS}=[{{name: late}}]")
    assert [problem.code for problem in _examined(tmp_path, *overrides)[2]] == ["E1824"]


def _data(folder: Path, row: dict[str, Any], *overrides: str) -> list[str]:
    (folder / "data.jsonl").write_text(json.dumps(row) + "\n")
    config, catalogue, problems = _examined(folder, f"{TASKSET}.path={folder / 'data.jsonl'}", *overrides)
    assert not problems
    return [finding.code for finding in check_data(config, catalogue=catalogue)]


def test_rows_hold_what_workflow_and_reward_function_read(tmp_path: Path) -> None:
    workflow, reward = f"{TASKSET}.default_workflow_type", f"{TASKSET}.default_reward_fn_type"
    own, question = {"riddle": "1+1=", "solution": "2"}, {"prompt": "1+1="}
    assert _data(tmp_path, own, f"{workflow}=plain") == [], "it says that it reads no prompt"
    assert "E4004" in _data(tmp_path, own, f"{workflow}=chooses")
    assert "E4004" in _data(tmp_path, question), "math_reward compares with the answer"
    assert "E4004" in _data(tmp_path, question, f"{reward}=own_accuracy")
    assert "E4004" in _data(tmp_path, question, f"{workflow}=with_default")
    assert _data(tmp_path, question, f"{reward}=not_silent") == []


def test_the_package_of_a_monitor_is_looked_for(tmp_path: Path) -> None:
    config, catalogue, problems = _examined(tmp_path, "monitor.monitor_type=elsewhere")
    (finding,) = check_extras(config, catalogue=catalogue)
    assert not problems and (finding.code, finding.key) == ("E3301", "monitor.monitor_type")
    assert "needs the package no_such_tracker" in finding.message
    assert "run `pip install no_such_tracker`" in str(finding.suggestion)


OWN = """
@{}.register_module("mine")
class Mine({}):
    {}
"""


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (OWN.format("WORKFLOWS", "Workflow", "needs = make()"), "E3906", "needs of Mine is computed by `make()`"),
        (OWN.format("WORKFLOWS", "Workflow", "needs = 'prompt'"), "E3906",
         "needs of Mine must be a set of names, got 'prompt'"),
        (OWN.format("WORKFLOWS", "Workflow", "needs = {'rewards'}"), "E3907",
         "`needs` of Mine names `rewards`, which nothing provides"),
        (OWN.format("EXPERIENCE_OPERATORS", "ExperienceOperatorV1", "drops_experiences = bool(1)"), "E3906",
         "drops_experiences of Mine is computed by `bool(1)`"),
        (OWN.format("REWARD_FUNCTIONS", "RewardFn", "ranges = {'a': '0 to 1'}"), "E3906",
         "ranges of Mine must be a dict"),
        (OWN.format("MONITOR", "Monitor", "@classmethod\n    def default_args(cls):\n        return make()"), "W3906",
         "default_args of Mine is computed by `make()`"),
        (OWN.format("WORKFLOWS", "Unknown", "pass"), "W3906", "the base of Mine (Unknown)"),
        ("from numpy import RewardModel\n" + OWN.format("REWARD_MODELS", "RewardModel", "pass"), "W3906",
         "the base of Mine (RewardModel)"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_by_name(tmp_path: Path, text: str, code: str, words: str) -> None:
    catalogue, (problem,) = _catalogue(tmp_path, HEAD.replace("REWARD_MODELS, RewardModel", "REWARD_MODELS") + text)
    assert (problem.code, problem.file) == (code, str(tmp_path / "plugins" / "mine.py")) and words in problem.message
    assert not any(catalogue.plugin_entries.values())


@pytest.mark.parametrize("body", ["formula = make()", "summary = make()", "schema = make()"])
def test_attributes_that_say_nothing_of_a_workflow_are_its_own(tmp_path: Path, body: str) -> None:
    assert _catalogue(tmp_path, HEAD + OWN.format("WORKFLOWS", "Workflow", body))[1] == []


@pytest.mark.parametrize("kind", ["reward_fn", "operator", "priority_fn", "reward_model"])
def test_the_tables_state_the_constructors_arguments(kind: str) -> None:
    for name in BUILT_IN.names(kind):
        cls, entry = REGISTRIES[kind].get(name), BUILT_IN.contents(kind)[name]
        parameters = {} if cls.__init__ is object.__init__ else dict(inspect.signature(cls).parameters)
        is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        named = {key: p.default for key, p in parameters.items() if key != "config" and p.kind is not p.VAR_KEYWORD}
        own = {key: default for key, default in named.items() if default is not inspect.Parameter.empty}
        assert own == dict(entry.args) and entry.required == named.keys() - own.keys() and entry.doc, name
        assert cls.default_args() == own | dict.fromkeys(entry.required)
        # What continues to a package of its own has the arguments of that package.
        assert entry.is_open == is_open == bool(entry.package), name


SELECTOR, WORKFLOW = f"{TASKSET}.data_selector", f"{TASKSET}.workflow_args"
AUXILIARY = "buffer.trainer_input.auxiliary_buffers.mine"


@pytest.mark.parametrize(
    ("overrides", "code", "key", "words"),
    [
        ([f"{WORKFLOW}={{system_promt: a}}"], "E1703", f"{WORKFLOW}.system_promt",
         "`math_workflow` has no argument `system_promt`; known: system_prompt"),
        ([f"{WORKFLOW}={{system_prompt: [1]}}"], "E1302", f"{WORKFLOW}.system_prompt", "must be a text, got [1]"),
        ([f"{TASKSET}.default_workflow_type=null", "buffer.explorer_input.default_workflow_type=simple_workflow",
          f"{TASKSET}.default_reward_fn_type=math_reward", f"{WORKFLOW}={{prompt: a}}"], "E1703",
         f"{WORKFLOW}.prompt", "`simple_workflow` has no argument `prompt`"),
        (["buffer.explorer_input.eval_tasksets=[{path: t.jsonl, default_workflow_type: math_workflow, "
          "workflow_args: {temperature: 1}}]"], "E1703",
         "buffer.explorer_input.eval_tasksets[0].workflow_args.temperature", "has no argument `temperature`"),
        ([f"{TASKSET}.default_workflow_type=on_policy_distill_workflow", f"{WORKFLOW}={{temperature: hot}}",
          "explorer.auxiliary_models=[{model_path: teacher}]"], "E1302", f"{WORKFLOW}.temperature",
         "must be a finite number >= 0, got 'hot'"),
        ([f"{SELECTOR}.kwargs={{window: 1}}"], "E1703", f"{SELECTOR}.kwargs.window",
         "`sequential` has no argument `window`; known: none"),
        (["buffer.trainer_input.experience_buffer.data_selector.kwargs={window: 1}"], "E1703",
         "buffer.trainer_input.experience_buffer.data_selector.kwargs.window", "`sequential` has no argument"),
        ([f"{AUXILIARY}={{path: a.jsonl, data_selector: {{kwargs: {{window: 1}}}}}}", "algorithm.algorithm_type=mix",
          "algorithm.sample_strategy_args.sft_dataset_name=mine"], "E1703",
         f"{AUXILIARY}.data_selector.kwargs.window", "`sequential` has no argument"),
        (["monitor.monitor_args={projcet: a}"], "E1703", "monitor.monitor_args.projcet",
         "`tensorboard` has no argument `projcet`; known: none"),
        (["monitor.monitor_type=mlflow", "monitor.monitor_args={uri: 5}"], "E1704", "monitor.monitor_args.uri",
         "of mlflow must be a text, got 5"),
        (["monitor.monitor_type=wandb", "monitor.monitor_args={api_key_env: 5}"], "E1302",
         "monitor.monitor_args.api_key_env", "of wandb must be a text, got 5"),
    ],
)  # fmt: skip
def test_arguments_that_a_class_does_not_read_are_refused(
    tmp_path: Path, overrides: list[str], code: str, key: str, words: str
) -> None:
    (problem,) = _examined(tmp_path, *overrides, text=HEAD)[2]
    assert (problem.code, problem.key) == (code, key) and words in problem.message, problem


def test_arguments_of_another_monitor_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL, encoding="utf-8")
    overrides = ["monitor.monitor_args={base_url: 'http://localhost:1'}"]
    found = examine(tmp_path / "run.yaml", overrides, catalogue=BUILT_IN, cwd=tmp_path, schema_only=True)[1]
    (problem,) = [p for p in found if p.key.startswith("monitor")]
    assert (problem.code, problem.key, problem.is_error) == ("W1902", "monitor.monitor_args.base_url", False)
    assert "no effect with monitor_type tensorboard: it is an argument of wandb" in problem.message


READING = """
@WORKFLOWS.register_module("open")
class Open(MathWorkflow):
    def reset(self, task):
        super().reset(task)
        self.hint = task.workflow_args.get("hint")

@WORKFLOWS.register_module("closed")
class Closed(MathWorkflow):
    arguments = {"hint": "think", "tries": 3}
    ranges = {"tries": "[1, inf)"}

    def reset(self, task):
        super().reset(task)
        self.hint = task.workflow_args["hint"]

@WORKFLOWS.register_module("as_its_base")
class AsItsBase(Closed):
    pass

@SELECTORS.register_module("open")
class OpenSelector(BaseSelector):
    def row_at(self, position):
        return self.config.kwargs.get("first", 0)

@SELECTORS.register_module("closed")
class ClosedSelector(OpenSelector):
    arguments = {"first": 0}

@MONITOR.register_module("closed")
class ClosedMonitor(Monitor):
    arguments = {"url": "http://localhost"}

    def log(self, data, step, commit=False):
        pass
"""


@pytest.mark.parametrize(
    ("overrides", "codes"),
    [
        ([f"{TASKSET}.default_workflow_type=open", f"{WORKFLOW}={{hint: 1, anything: 2}}"], []),
        ([f"{TASKSET}.default_workflow_type=open", f"{WORKFLOW}={{system_prompt: 1}}"], ["E1302"]),
        ([f"{TASKSET}.default_workflow_type=closed", f"{WORKFLOW}={{hint: a, tries: 2, system_prompt: b}}"], []),
        ([f"{TASKSET}.default_workflow_type=closed", f"{WORKFLOW}={{hints: a}}"], ["E1703"]),
        ([f"{TASKSET}.default_workflow_type=closed", f"{WORKFLOW}={{tries: 0}}"], ["E1302"]),
        ([f"{TASKSET}.default_workflow_type=closed", f"{WORKFLOW}={{tries: many}}"], ["E1704"]),
        ([f"{TASKSET}.default_workflow_type=as_its_base", f"{WORKFLOW}={{hints: a}}"], ["E1703"]),
        ([f"{TASKSET}.default_workflow_type=closed", f"{TASKSET}.format.workflow_key=how", f"{WORKFLOW}={{a: 1}}"], []),
        ([f"{SELECTOR}.selector_type=open", f"{SELECTOR}.kwargs={{anything: 2}}"], []),
        ([f"{SELECTOR}.selector_type=closed", f"{SELECTOR}.kwargs={{last: 2}}"], ["E1703"]),
        (["monitor.monitor_type=closed", "monitor.monitor_args={ulr: a}"], ["E1703"]),
        (["monitor.monitor_type=closed", "monitor.monitor_args={url: a}"], []),
    ],
)
def test_a_plugin_is_checked_as_far_as_it_declares(tmp_path: Path, overrides: list[str], codes: list[str]) -> None:
    assert [p.code for p in _examined(tmp_path, *overrides, text=HEAD + READING)[2]] == codes
    load_plugins(tmp_path / "plugins")
    for kind, table in catalogue_of([tmp_path / "plugins"])[0].plugin_entries.items():
        assert {name: REGISTRIES[kind].contents[name] for name in table} == table


@pytest.mark.parametrize("kind", [kind for kind, of in KINDS.items() if of.reads_mapping])
def test_built_in_classes_say_all_that_they_read(kind: str) -> None:
    assert not [name for name, entry in BUILT_IN.contents(kind).items() if entry.is_open]
