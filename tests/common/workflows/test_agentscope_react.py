"""AgentScope's agents that reason and act, on a model that calls their tool: what was sampled is trained.

The package is the installed one, else one of the tests' own that has its interface; see `test_agentscope`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.common.models.families import family_tokenizer
from tests.common.workflows.test_agentscope import package as package
from tests.explorer.api.test_agent_library import teach
from tests.explorer.api.test_conversations import Rollouts, write_model
from trinity.common.errors import EnvironmentProblem, WorkflowError
from trinity.common.experience import Experience
from trinity.common.rewards.reward_fn import RewardError
from trinity.common.workflows import WORKFLOWS, Task
from trinity.engine.image_prompts import SeenPrompt
from trinity.engine.torch.engine import TorchEngine

Sampled = list[tuple[list[int], list[int], list[float]]]
MATHS = (
    "agentscope_react_workflow",
    "as_react_workflow",
    "agentscope_react_math_workflow",
    "agentscopev0_react_math_workflow",
)
SEARCH = "agentscope_v1_react_search_workflow"
ROW = {"question": "the sum of one and two", "answer": "one and two\n#### 3"}
CALL = (
    '<tool_call>\n{"name": "generate_response", "arguments": {"result": "\\\\boxed{3}", "response": "3"}}\n'
    "</tool_call><|im_end|>"
)
PARSERS: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
SERVER = """\
from mcp.server.fastmcp import FastMCP

server = FastMCP("search")

@server.tool()
def search(query: str) -> str:
    \"\"\"Search.\"\"\"
    return "one and two is three"

server.run()
"""


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Sampled:
    found: Sampled = []
    inner = TorchEngine._sample

    async def watched(engine: TorchEngine, prompt: SeenPrompt, *args: Any, **kwargs: Any) -> list[Any]:
        samples = await inner(engine, prompt, *args, **kwargs)
        found.extend((list(prompt.tokens), list(sample.tokens), sample.logprobs.tolist()) for sample in samples)
        return samples

    monkeypatch.setattr(TorchEngine, "_sample", watched)
    return found


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollouts]:
    made = Rollouts(tmp_path_factory.mktemp("random"), "qwen3", **PARSERS)
    yield made
    made.close()


def reply(
    name: str, made: Rollouts, judge: Rollouts | None = None, max_tokens: int = 20, **args: Any
) -> list[Experience]:
    task = Task(
        workflow=WORKFLOWS.get(name),
        workflow_args=args,
        rollout_args={"temperature": 0.0, "max_tokens": max_tokens},
        raw_task=ROW,
        format_args={"prompt_key": "question", "response_key": "answer"},
        batch_id=1,
    )
    judges = [] if judge is None else [judge.rollout()]
    found: list[Experience] = asyncio.run(task.to_workflow(made.rollout(), judges).run_async())
    return found


def held(experiences: list[Experience]) -> Sampled:
    return [
        (e.tokens[: e.prompt_length].tolist(), e.tokens[e.prompt_length :].tolist(), e.logprobs.tolist())
        for e in experiences
        if e.logprobs is not None
    ]


@contextmanager
def taught(folder: Path, prompt: list[int], said: str) -> Iterator[Rollouts]:
    """Give a model that answers one prompt with a text."""
    write_model(folder, "qwen3")
    teach(folder, lambda _: prompt, said, kinds=1)
    made = Rollouts(folder, "qwen3", write=lambda _: None, max_response_tokens=120, **PARSERS)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("name", MATHS)
def test_an_agent_without_an_answer_is_trained_on_all_that_it_said(
    package: None, random_model: Rollouts, sampled: Sampled, name: str
) -> None:
    experiences = reply(name, random_model)
    assert held(experiences) == sampled and len(sampled) == 11, "ten turns, and a last one in words"
    assert [e.eid.step for e in experiences] == list(range(11)) and {e.reward for e in experiences} == {0.0}
    assert (experiences[-1].metrics or {})["accuracy"] == 0.0


@pytest.mark.parametrize("name", [MATHS[0], MATHS[2]])
def test_the_form_of_the_answer_is_what_is_rewarded(
    package: None, random_model: Rollouts, sampled: Sampled, tmp_path: Path, name: str
) -> None:
    reply(name, random_model)
    prompt = sampled[0][0]
    sampled.clear()
    with taught(tmp_path, prompt, CALL) as solver:
        experiences = reply(name, solver, max_tokens=120)
    assert held(experiences) == sampled and len(sampled) == 2
    assert family_tokenizer("qwen3").decode(sampled[0][1]) == CALL
    assert (experiences[-1].metrics or {})["accuracy"] == 1.0 and experiences[0].reward == experiences[1].reward == 1.0


@pytest.mark.parametrize(("verdict", "reward"), [("true", 1.0), ("False", 0.0)])
def test_an_answer_that_was_searched_is_judged(
    package: None, random_model: Rollouts, sampled: Sampled, tmp_path: Path, verdict: str, reward: float
) -> None:
    """A verdict that cannot be read is no reward."""
    (tmp_path / "server.py").write_text(SERVER)
    args = {"max_turns": 2, "search_command": [sys.executable, str(tmp_path / "server.py")]}
    with pytest.raises(RewardError, match="must say true or false"):
        reply(SEARCH, random_model, random_model, **args)
    *_, (prompt, _, _) = sampled
    assert f"Reference: {ROW['answer']}" in family_tokenizer("qwen3").decode(prompt)
    with taught(tmp_path / "judge", prompt, f"{verdict}<|im_end|>") as judge:
        sampled.clear()
        experiences = reply(SEARCH, random_model, judge, **args)
        assert [*held(experiences), sampled[-1]] == sampled and len(experiences) == 3
        assert {e.reward for e in experiences} == {reward}
        longest = max(len(e.tokens) for e in experiences)
        fewer = reply(SEARCH, random_model, judge, max_model_tokens=longest - 1, **args)
        assert 0 < len(fewer) < 3, "a sequence that is too long is left out"


def test_what_a_workflow_needs_is_said(package: None, random_model: Rollouts, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SEARXNG_URL", "TAVILY_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(WorkflowError, match="needs a judge"):
        reply(SEARCH, random_model)
    with pytest.raises(EnvironmentProblem, match="needs the environment variable TAVILY_API_KEY"):
        reply(SEARCH, random_model, random_model, search_client_type="tavily")
    with pytest.raises(WorkflowError, match="must be one of searxng, tavily, got 'other'"):
        reply(SEARCH, random_model, random_model, search_client_type="other")
    with pytest.raises(WorkflowError, match=r"workflow_args.type must be 'gsm8k'"):
        reply(MATHS[0], random_model, type="other")
