"""What a workflow can do, and its reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trinity.common.errors import WorkflowError
from trinity.common.workflows.task import Task
from trinity.common.workflows.workflow import Workflow


@dataclass(frozen=True)
class Traits:
    """What a workflow can do.

    Attributes:
        can_reset: `reset(task)` prepares the object for another task.
        can_repeat: one `run` returns the experiences of all repeats.
        is_async: `run_async` is awaited instead of calling `run` in a thread.
    """

    can_reset: bool
    can_repeat: bool
    is_async: bool


_OLD_NAMES = {"can_reset": "resettable", "can_repeat": "repeatable", "is_async": "asynchronous"}


def _declared(cls: type[Any], owner: Any, new_name: str) -> bool | None:
    """Return the most derived class's declaration, in either style.

    Return `None` if no class below `Workflow` declares it.
    """
    below = cls.__mro__[: cls.__mro__.index(Workflow)]
    for base in below:
        said = [vars(base)[name] for name in (new_name, _OLD_NAMES[new_name]) if name in vars(base)]
        if said:
            return bool(said[0].__get__(owner) if isinstance(said[0], property) else said[0])
    return None


def describe(workflow: Workflow | type[Workflow]) -> Traits:
    """Return what a workflow can do.

    It is declared by attributes or by the older properties. The most derived class that declares it decides; an
    attribute set on the object itself comes first. A class that defines only `run_async` is asynchronous. Pass the
    object where a property reads the object's attributes.

    Raises:
        WorkflowError: a class was given whose property can only be read on an object.
    """
    is_class = isinstance(workflow, type)
    cls: type[Any] = workflow if isinstance(workflow, type) else type(workflow)
    # A property that returns a constant can be read on an object that was never initialised.
    owner = object.__new__(cls) if is_class else workflow
    values: dict[str, bool] = {}
    for name in _OLD_NAMES:
        own = vars(owner).get(name)
        try:
            declared = _declared(cls, owner, name) if own is None else bool(own)
        except AttributeError as error:
            raise WorkflowError(f"{cls.__name__}: cannot read {name}: {error}", code="E5107") from error
        if declared is None:
            only_async = cls.run_async is not Workflow.run_async and cls.run is Workflow.run
            declared = only_async if name == "is_async" else False
        values[name] = declared
    return Traits(**values)


def reset_workflow(workflow: Workflow, task: Task) -> None:
    """Pass another task to `workflow`, even if its `reset` omits `super()`."""
    workflow._forget(task)
    workflow.reset(task)
