"""Workflows with a planted fault each, and what the checks say of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.e2e.tiny_run import TinyRun
from tests.loaded_plugins import forget_plugins
from trinity.catalogue import builtin_catalogue
from trinity.common.config import Config, load_plan
from trinity.common.errors import ExitCode
from trinity.launch.env_check.checks import CheckOptions, check_environment
from trinity.launch.env_check.findings import CheckFinding, exit_code
from trinity.launch.trial.stage import alone
from trinity.utils.plugin_loader import load_plugins

OPTIONS = CheckOptions(tasks=2, repetitions=3)
PLUGIN = '''
import itertools, os, subprocess, sys, threading, time
from trinity.common.workflows import WORKFLOWS, Workflow

COUNT, KEPT, OWNER = itertools.count(), [], []


class Faulty(Workflow):
    """Right, but for what a subclass does."""

    def run(self):
        (answer,) = self.model.chat([{"role": "user", "content": self.prompt()}], n=1)
        answer.reward = self.reward(answer.response_text or "")
        return [answer]

    def prompt(self):
        return self.task.task_desc

    def reward(self, answer):
        return float(answer == self.task.truth)


@WORKFLOWS.register_module("fine")
class Fine(Faulty):
    pass


@WORKFLOWS.register_module("clock")
class Clock(Faulty):
    def prompt(self):
        return f"{self.task.task_desc} {next(COUNT)}"


@WORKFLOWS.register_module("dice")
class Dice(Faulty):
    def reward(self, answer):
        return float(next(COUNT))


@WORKFLOWS.register_module("threads")
class Threads(Faulty):
    def prompt(self):
        threading.Thread(target=KEPT_EVENT.wait, args=(60,), daemon=True).start()
        return super().prompt()


KEPT_EVENT = threading.Event()


@WORKFLOWS.register_module("files")
class Files(Faulty):
    def prompt(self):
        KEPT.append(open(__file__))
        return super().prompt()


@WORKFLOWS.register_module("children")
class Children(Faulty):
    def prompt(self):
        KEPT.append(subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(60)"]))
        return super().prompt()


@WORKFLOWS.register_module("memory")
class Memory(Faulty):
    def prompt(self):
        KEPT.append(bytearray(os.urandom(1 << 16) * 128))
        return super().prompt()


@WORKFLOWS.register_module("nan")
class Nan(Faulty):
    def reward(self, answer):
        return float("nan") if "1 + 1" in answer else super().reward(answer)


@WORKFLOWS.register_module("first_word")
class FirstWord(Faulty):
    def reward(self, answer):
        return float(answer.split()[0] == self.task.truth)


@WORKFLOWS.register_module("hang")
class Hang(Faulty):
    def prompt(self):
        KEPT_EVENT.wait(60)
        return super().prompt()


@WORKFLOWS.register_module("slow")
class Slow(Faulty):
    def prompt(self):
        time.sleep(0.1)
        return super().prompt()


@WORKFLOWS.register_module("shared")
class Shared(Faulty):
    """Works in the thread that was first, as a connection to a database does that all attempts share."""

    def reward(self, answer):
        OWNER.append(threading.get_ident())
        return float(OWNER[0] == threading.get_ident())


@WORKFLOWS.register_module("constant")
class Constant(Faulty):
    def reward(self, answer):
        return 0.5


@WORKFLOWS.register_module("likes_talk")
class LikesTalk(Faulty):
    def reward(self, answer):
        return float(len(answer))


@WORKFLOWS.register_module("outgrows")
class Outgrows(Faulty):
    def prompt(self):
        (answer,) = self.model.chat([{"role": "user", "content": self.task.task_desc}], n=1)
        return (answer.response_text or "") * 6 + self.task.task_desc


@WORKFLOWS.register_module("asynchronous")
class Asynchronous(Workflow):
    is_async = True

    async def run_async(self):
        (answer,) = await self.model.chat_async([{"role": "user", "content": self.task.task_desc}], n=1)
        answer.reward = float(answer.response_text == self.task.truth)
        return [answer]


def end():
    KEPT_EVENT.set()
    for each in KEPT:
        if isinstance(each, subprocess.Popen):
            each.kill()
            each.wait()
        elif hasattr(each, "close"):
            each.close()
    KEPT.clear()
'''


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyRun]:
    """A configuration, and the plugin with the workflows."""
    forget_plugins()
    folder = tmp_path_factory.mktemp("env_check")
    (folder / "plugins").mkdir()
    (folder / "plugins" / "faulty.py").write_text(PLUGIN)
    load_plugins(folder / "plugins")
    made = TinyRun(folder)
    made.change(
        model__model_path=str(folder / "model"),
        checkpoint_root_dir=str(folder / "out"),
        buffer__explorer_input__taskset__path=str(folder / "train.jsonl"),
    )
    yield made
    forget_plugins()


@pytest.fixture(autouse=True)
def _ended(run: TinyRun) -> Iterator[None]:
    """What a workflow keeps is given up after each test."""
    from trinity.plugins import faulty  # type: ignore[attr-defined]

    faulty.KEPT_EVENT.clear()
    yield
    faulty.end()


def config_of(run: TinyRun, workflow: str) -> Config:
    """Return the configuration with a workflow of the plugin."""
    run.change(buffer__explorer_input__default_workflow_type=workflow)
    plan = load_plan(run.tree, catalogue=builtin_catalogue((run.folder / "plugins",)))
    return alone(plan.stages[0].config)


def checked(run: TinyRun, workflow: str, options: CheckOptions = OPTIONS) -> list[CheckFinding]:
    """Return what is found of a workflow."""
    return asyncio.run(check_environment(config_of(run, workflow), options))


@pytest.mark.parametrize("workflow", ["fine", "asynchronous", "simple_workflow"])
def test_a_good_workflow_has_no_finding(run: TinyRun, workflow: str) -> None:
    findings = checked(run, workflow)
    assert {finding.level for finding in findings} == {"ok"}, findings
    assert exit_code(findings) == ExitCode.DONE
    assert {finding.check for finding in findings} == {
        "rollouts", "rewards", "timeouts", "determinism", "leaks", "concurrency",
    }  # fmt: skip
    assert any("oracle 'answer' gets the most, 1 on average" in finding.message for finding in findings)
    assert not (run.folder / "out").exists()


@pytest.mark.parametrize(
    ("workflow", "check", "said"),
    [
        ("clock", "determinism", "the prompt differs, '0+1= "),
        ("dice", "determinism", "the reward is "),
        ("threads", "leaks", "4 more threads after 4 rollouts"),
        ("files", "leaks", "4 more open files after 4 rollouts"),
        ("children", "leaks", "4 more child processes after 4 rollouts"),
        ("nan", "rewards", "very long: 2 of 2 rejected: Nan: reward must be a finite number"),
        ("first_word", "rollouts", "silent: 2 of 2 failed: IndexError: list index out of range"),
        ("shared", "concurrency", "the reward is 1, then 0"),
    ],
)
def test_a_fault_is_an_error(run: TinyRun, workflow: str, check: str, said: str) -> None:
    findings = checked(run, workflow)
    errors = [finding for finding in findings if finding.level == "error"]
    assert any(finding.check == check and said in finding.message for finding in errors), findings
    assert findings[0].level == "error" and exit_code(findings) == ExitCode.RUNTIME


def test_a_failure_names_the_line_of_the_plugin(run: TinyRun) -> None:
    line = PLUGIN[: PLUGIN.index("return float(answer.split()[0]")].count("\n") + 1
    (error,) = [finding for finding in checked(run, "first_word") if "silent" in finding.message]
    assert f"plugins/faulty.py:{line} in reward" in error.message


@pytest.mark.parametrize(
    ("workflow", "check", "said"),
    [
        ("memory", "leaks", "in every repetition: something is kept between rollouts"),
        ("constant", "rewards", "every rollout of every policy has the reward 0.5"),
        ("likes_talk", "rewards", "look whether the reward function reads the response"),
        ("outgrows", "rollouts", "prompt was cut to model.max_prompt_tokens"),
    ],
)
def test_what_may_not_be_meant_is_a_warning(run: TinyRun, workflow: str, check: str, said: str) -> None:
    findings = checked(run, workflow)
    warnings = [finding for finding in findings if finding.level == "warning"]
    assert any(finding.check == check and said in finding.message for finding in warnings), findings
    assert exit_code(findings) == ExitCode.DONE, findings


def test_a_conversation_that_outgrows_the_model_is_a_warning(run: TinyRun) -> None:
    run.change(model__enable_prompt_truncation=False)
    try:
        findings = checked(run, "outgrows")
    finally:
        del run.tree["model"]["enable_prompt_truncation"]
    said = [
        finding for finding in findings if "leaves no room for a response within model.max_model_len" in finding.message
    ]
    assert said and {finding.level for finding in said} == {"warning"}, findings


def test_attempts_that_never_end_are_an_error_and_the_check_ends(run: TinyRun) -> None:
    findings = checked(run, "hang", CheckOptions(tasks=2, timeout_s=0.2))
    assert [finding.check for finding in findings] == ["timeouts", "timeouts"]
    assert "2 of 2 timed out: no result within 0.2 s" in findings[0].message
    assert "no further checks were made" in findings[1].message


def test_an_environment_that_needs_most_of_its_deadline_is_a_warning(run: TinyRun) -> None:
    findings = checked(run, "slow", CheckOptions(tasks=1, repetitions=2, timeout_s=0.19))
    slow = [finding for finding in findings if finding.check == "timeouts" and finding.level != "ok"]
    assert slow and ("without the model" in slow[0].message or "no result within" in slow[0].message)


def test_rows_without_answers_have_no_oracle(run: TinyRun) -> None:
    run.write_rows([{"question": "1+1="}, {"question": "2+2="}], "bare.jsonl")
    taskset = run.tree["buffer"]["explorer_input"]["taskset"]
    bare = {"path": str(run.folder / "bare.jsonl"), "format": {"prompt_key": "question"}}
    run.change(buffer__explorer_input__taskset={**taskset, **bare}, buffer__explorer_input__default_reward_fn_type=None)
    try:
        findings = checked(run, "likes_talk")
    finally:
        run.change(
            buffer__explorer_input__taskset=taskset, buffer__explorer_input__default_reward_fn_type="accuracy_reward"
        )
    assert any("the rows have no truth to compare with" in finding.message for finding in findings)
    assert not any("oracle" in finding.message for finding in findings)
