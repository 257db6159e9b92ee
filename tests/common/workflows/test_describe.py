"""What a workflow can do, said in either of the two styles of the published API."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from trinity.common.errors import WorkflowError
from trinity.common.workflows import Task, Traits, Workflow, describe
from trinity.common.workflows.workflow import AsyncSimpleWorkflow, SimpleWorkflow

TASK = Task(workflow=Workflow, raw_task={})


class OldStyle(Workflow):
    @property
    def resettable(self) -> bool:
        return True

    @property
    def repeatable(self) -> bool:
        return True

    @property
    def asynchronous(self) -> bool:
        return True


class NewStyle(Workflow):
    can_reset = True
    can_repeat = True
    is_async = True


class OldOverNew(SimpleWorkflow):
    @property
    def repeatable(self) -> bool:
        return False


class NewOverOld(OldStyle):
    can_repeat = False


class OnlyAsync(Workflow):
    async def run_async(self) -> list:
        return []


class Both(Workflow):
    def run(self) -> list:
        return []

    async def run_async(self) -> list:
        return []


@pytest.mark.parametrize(
    ("cls", "traits"),
    [
        (Workflow, Traits(can_reset=False, can_repeat=False, is_async=False)),
        (SimpleWorkflow, Traits(can_reset=True, can_repeat=True, is_async=False)),
        (AsyncSimpleWorkflow, Traits(can_reset=True, can_repeat=True, is_async=True)),
        (OldStyle, Traits(can_reset=True, can_repeat=True, is_async=True)),
        (NewStyle, Traits(can_reset=True, can_repeat=True, is_async=True)),
        (OldOverNew, Traits(can_reset=True, can_repeat=False, is_async=False)),
        (NewOverOld, Traits(can_reset=True, can_repeat=False, is_async=True)),
        (OnlyAsync, Traits(can_reset=False, can_repeat=False, is_async=True)),
        (Both, Traits(can_reset=False, can_repeat=False, is_async=False)),
    ],
)
def test_the_most_derived_class_decides_in_either_style(cls: type[Workflow], traits: Traits) -> None:
    assert describe(cls) == traits
    if not issubclass(cls, SimpleWorkflow):
        assert describe(cls(task=TASK, model=None)) == traits  # type: ignore[arg-type]


def test_the_object_can_say_it_too() -> None:
    class Chosen(Workflow):
        def __init__(self, *, task: Task, model: object, auxiliary_models: object = None) -> None:
            super().__init__(task=task, model=model)  # type: ignore[arg-type]
            self.can_repeat = task.repeat_times == 4
            self.resets = True

        @property
        def resettable(self) -> bool:
            return self.resets

    chosen = Chosen(task=Task(workflow=Chosen, repeat_times=4), model=None)
    assert describe(chosen) == Traits(can_reset=True, can_repeat=True, is_async=False)
    with pytest.raises(WorkflowError, match="E5107.*Chosen: cannot read can_reset"):
        describe(Chosen)


def test_old_names_read_the_new_attributes() -> None:
    workflow = NewStyle(task=TASK, model=None)  # type: ignore[arg-type]
    assert (workflow.resettable, workflow.repeatable, workflow.asynchronous) == (True, True, True)


def test_a_workflow_without_run_says_what_to_define() -> None:
    workflow = Workflow(task=TASK, model=None)  # type: ignore[arg-type]
    with pytest.raises(WorkflowError, match=r"Workflow must define run\(\) or, with is_async = True, run_async\(\)"):
        workflow.run()
    with pytest.raises(WorkflowError, match=r"must define run_async\(\)"):
        asyncio.run(workflow.run_async())


def test_importing_workflows_imports_no_torch() -> None:
    code = (
        "import sys; from trinity.common.workflows import WORKFLOWS, Task, Workflow;"
        "WORKFLOWS.get('async_math_workflow');"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
