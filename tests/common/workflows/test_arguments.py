"""Every argument that a built-in workflow declares is read, and the system prompt reaches the model."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import trinity.common.workflows
from tests.common.workflows.test_judged_workflows import Spoken, run
from trinity.common.workflows import WORKFLOW_CONTENTS, WORKFLOWS, Task
from trinity.utils.entry import Entry

FOLDER = Path(inspect.getfile(trinity.common.workflows)).parent
TOOLS: dict[str, Any] = {"tools": [{"name": "add"}], "conversations": [{"from": "human", "value": "3+4="}]}
ROW = {"question": "3+4=", "answer": "7", "raw_system": "Of the row.", "rubric": [{"description": "so", "weight": 1}]}


class Reads(ast.NodeVisitor):
    """The names that the body of a class takes from mappings, and the argument that its episode counts."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._note(node.slice)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            self._note(node.args[0])
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Name) and target.id == "steps_argument" for target in node.targets):
            self._note(node.value)
        self.generic_visit(node)

    def _note(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.names.add(node.value)


def bodies() -> dict[str, tuple[list[str], set[str]]]:
    """Return the bases of every class of the package, and what its body reads."""
    found = {}
    for file in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                reads = Reads()
                reads.visit(node)
                bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
                found[node.name] = (bases, reads.names)
    return found


def read_by(name: str, known: dict[str, tuple[list[str], set[str]]]) -> set[str]:
    bases, own = known.get(name, ([], set()))
    return own.union(*(read_by(base, known) for base in bases))


def entries() -> dict[str, Entry]:
    return dict(WORKFLOW_CONTENTS)


def test_every_declared_argument_is_read_by_its_workflow() -> None:
    known, declared = bodies(), 0
    for name, entry in entries().items():
        arguments = entry.args.keys() | entry.required
        cls = entry.path.rpartition(":")[2]
        assert cls in known and arguments <= read_by(cls, known), (name, arguments - read_by(cls, known))
        declared += len(arguments)
    assert declared > 60


@pytest.mark.parametrize("name", [name for name, entry in entries().items() if "system_prompt" in entry.args])
def test_the_system_prompt_of_the_arguments_reaches_the_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")

    def asked(arguments: dict[str, Any]) -> Any:
        workflow = Task(
            workflow=WORKFLOWS.get(name),
            raw_task=ROW | TOOLS,
            format_args={"prompt_key": "question", "response_key": "answer"},
            rollout_args={"temperature": 0.5},
            workflow_args=arguments | {"judge_model_name": "judge"},
            reward_fn=lambda response: 1.0,
        ).to_workflow(Spoken("7"), [Spoken("7")])  # type: ignore[arg-type]
        return workflow.format_messages()

    with_own = asked({"system_prompt": "Say it in Latin."})
    assert with_own[0]["role"] == "system" and with_own[0]["content"].startswith("Say it in Latin.")
    assert "Say it in Latin." not in str(asked({}))
    assert "Of the row." not in str(with_own)


@pytest.mark.parametrize("section", ["workflow_args", "reward_fn_args"])
def test_what_a_missing_thought_costs_may_stand_with_the_workflow_or_with_the_reward(section: str) -> None:
    given = {section: {"with_think": True, "format_score_coef": 0.25}}
    (scored,) = run(
        Task(
            workflow=WORKFLOWS.get("math_boxed_workflow"),
            raw_task=ROW,
            format_args={"prompt_key": "question", "response_key": "answer"},
            **given,
        ).to_workflow(model := Spoken("\\boxed{7}"))  # type: ignore[arg-type]
    )
    assert scored.reward == 0.75 and "<think>" in model.asked[0][0][0]["content"]


def test_a_base_model_continues_a_text() -> None:
    task = Task(
        workflow=WORKFLOWS.get("math_boxed_workflow"),
        raw_task=ROW,
        format_args={"prompt_key": "question", "response_key": "answer"},
        workflow_args={"use_base": True, "system_prompt": "Add."},
    )

    class Continuing(Spoken):
        def generate(self, prompts: list[str], **args: Any) -> Any:
            (prompt,) = prompts
            return self.chat([{"role": "text", "content": prompt}], **args)

    model = Continuing("\\boxed{7}")
    (scored,) = run(task.to_workflow(model))  # type: ignore[arg-type]
    assert scored.reward == 1.0
    assert model.asked[0][0] == [{"role": "text", "content": "System:Add.\nUser:\n3+4=\nAssistant:\n"}]
