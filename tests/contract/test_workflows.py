"""Workflows written against the published interface, each in a run of two steps."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.tiny_run import TinyRun
from tests.tiny import tiny_model
from trinity.common.config.buffer import FormatConfig, GenerationConfig
from trinity.common.experience import EID
from trinity.common.rewards.math_reward import MathRewardFn
from trinity.common.workflows import AsyncMathWorkflow, MathWorkflow, Task

PLUGIN = (Path(__file__).parent / "published_workflows.py").read_text(encoding="utf-8")
NAMES = re.findall(r'register_module\("(\w+)"\)', PLUGIN)


@pytest.mark.parametrize("mode", ["sequential", "asynchronous", "multi-threading"])
def test_each_workflow_finds_what_the_interface_promises(tmp_path: Path, mode: str) -> None:
    run = TinyRun(tmp_path, plugin=PLUGIN)
    tiny_model(tmp_path / "judge", "llama", seed=2, scale=3.0)
    run.write_rows([{"question": "1+2=", "answer": "3", "how": name} for name in 2 * NAMES])
    run.change(
        buffer__batch_size=len(NAMES),
        buffer__explorer_input__taskset__workflow_args={"second": True},
        explorer__concurrent_mode=mode,
        explorer__auxiliary_models=[{"model_path": "judge", "dtype": "float32"}],
    )
    run.tree["buffer"]["explorer_input"]["taskset"]["format"]["workflow_key"] = "how"
    end = run.finish()
    assert end.status == 0, end.output[-3000:]
    steps = run.lines("explorer")[:2]
    assert [{name: line.get(f"rollout/{name}/min") for name in NAMES} for line in steps] == 2 * [
        dict.fromkeys(NAMES, 1.0)
    ]
    assert [line["rollout/finished_task_count"] for line in steps] == [len(NAMES)] * 2
    assert not any(line[f"rollout/{what}_run_count"] for line in steps for what in ("failed", "timeout", "rejected"))


@dataclass
class Said:
    """A response as authors of workflows write it for their own tests."""

    response_text: str
    reward: float = 0.0
    metrics: dict[str, float] | None = None
    eid: EID = field(default_factory=EID)


class Script:
    """A model that says what it is told to, and keeps what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers
        self.asked: list[tuple[Any, dict[str, Any]]] = []

    def chat(self, messages: list[dict[str, Any]], **args: Any) -> list[Said]:
        self.asked.append((messages, args))
        return [Said(answer) for answer in self.answers]

    async def chat_async(self, messages: list[dict[str, Any]], **args: Any) -> list[Said]:
        return self.chat(messages, **args)


@pytest.mark.parametrize("kind", [MathWorkflow, AsyncMathWorkflow])
def test_an_author_tries_a_workflow_with_a_model_of_his_own(kind: type[MathWorkflow]) -> None:
    tasks = [
        Task(
            workflow=kind,
            reward_fn=MathRewardFn,
            format_args=FormatConfig(prompt_key="question", response_key="answer", system_prompt=system),
            rollout_args=GenerationConfig(temperature=0.5),
            raw_task={"question": "1+2=", "answer": "3"},
        )
        for system in (None, "Be brief.")
    ]
    model = Script("<think>a</think>\n<answer>3</answer>", "<think>a</think>\n<answer>4</answer>", "3")
    workflow = tasks[0].to_workflow(model=model)  # type: ignore[arg-type]
    for task in tasks:
        workflow.reset(task)
        workflow.set_repeat_times(3, run_id_base=6)
        made = asyncio.run(workflow.run_async()) if workflow.asynchronous else workflow.run()
        assert [said.reward for said in made] == pytest.approx([1.1, 0.1, 0.9])
        assert made[0].metrics["accuracy"] == 1.0
        assert [said.eid.run for said in made] == [6, 7, 8]
    (first, args), (second, _) = model.asked
    assert args["n"] == 3 and args["temperature"] == 0.5
    assert first[0]["role"] == "system" and "<think>" in first[0]["content"]
    assert second == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+2="}]
