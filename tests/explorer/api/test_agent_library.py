"""An agent of a library that knows nothing of Trinity, `smolagents`, whose `api_base` is the endpoint of a rollout."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from smolagents import FinalAnswerTool, LogLevel, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import get_tool_json_schema
from transformers import AutoModelForCausalLM

from tests.common.models.families import family_tokenizer
from tests.docs.pages import page
from tests.explorer.api.test_conversations import Rollouts, write_model
from trinity.common.experience import Experience
from trinity.common.models.chat_template import render_chat
from trinity.common.models.model import ModelWrapper
from trinity.engine.image_prompts import SeenPrompt
from trinity.engine.torch.engine import TorchEngine

CALL = '<tool_call>\n{"name": "plus_two", "arguments": {"number": 1}}\n</tool_call><|im_end|>'
STEPS = 3
TASK = "What is one plus two?"
SHORT = {
    "system_prompt": "Use the tools.",
    "planning": dict.fromkeys(
        ("initial_plan", "update_plan_pre_messages", "update_plan_post_messages"), "Plan."
    ),
    "managed_agent": {"task": "{{task}}", "report": "{{final_answer}}"},
    "final_answer": {"pre_messages": "Answer.", "post_messages": "The task was: {{task}}"},
}  # fmt: skip
given: list[int] = []


@tool
def plus_two(number: int) -> int:
    """Add two.

    Args:
        number: what two is added to.
    """
    given.append(number)
    return number + 2


def conversation(turns: int, begin: str, draw: random.Random) -> list[int]:
    """Return a prompt like those of the agent, which names calls by random identities."""
    messages = [{"role": "system", "content": "Use the tools."}, {"role": "user", "content": "New task:\n" + TASK}]
    for _ in range(turns):
        identity = f"call_{draw.getrandbits(96):024x}"
        call = {"id": identity, "type": "function", "function": {"name": "plus_two", "arguments": {"number": 1}}}
        messages += [
            {"role": "assistant", "content": f"{begin}Calling tools:\n{[call]}"},
            {"role": "user", "content": "Observation:\n3"},
        ]
    tools = [get_tool_json_schema(one) for one in (plus_two, FinalAnswerTool())]
    return render_chat(family_tokenizer("qwen3"), messages, tools=tools)[0]


def teach(folder: Path, prompts: Callable[[int], list[int]], said: str, *, kinds: int) -> None:
    """Train the model of a folder to answer the prompt of each step with `said`; there are `kinds` of prompts."""
    answer = [int(token) for token in family_tokenizer("qwen3")(said, add_special_tokens=False)["input_ids"]]
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = [1.0] * 3 * kinds
        for step in range(800):
            prompt = prompts(step)
            tokens = torch.tensor([prompt + answer])
            labels = torch.tensor([[-100] * len(prompt) + answer])
            loss = model(input_ids=tokens, labels=labels).loss
            losses.append(loss.item())
            if max(losses[-3 * kinds :]) < 0.01:
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert max(losses[-3 * kinds :]) < 0.01, "the model has learned its answer"
    model.save_pretrained(folder)


def write_caller(folder: Path) -> None:
    """Write a model that answers such prompts with `CALL`."""
    write_model(folder, "qwen3")
    draw = random.Random(3)
    # The text of a call begins with a line's end where answers are streamed.
    teach(folder, lambda step: conversation(step % STEPS, "\n" * (step // STEPS % 2), draw), CALL, kinds=2 * STEPS)


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollouts]:
    parsers = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    folder = tmp_path_factory.mktemp("caller")
    made = Rollouts(folder, "qwen3", write=write_caller, max_response_tokens=80, **parsers)
    yield made
    made.close()


def extracted(model: ModelWrapper) -> list[Experience]:
    experiences = model.extract_experience_from_history()
    assert all(e.action_mask is not None and bool(e.action_mask.all()) for e in experiences)
    return experiences


@pytest.mark.parametrize("is_streaming", [False, True])
def test_its_calls_are_recorded_with_the_tokens_that_were_sampled(
    caller: Rollouts, monkeypatch: pytest.MonkeyPatch, is_streaming: bool
) -> None:
    sampled: list[tuple[list[int], list[int], list[float]]] = []
    inner = TorchEngine._sample

    async def watched(engine: TorchEngine, prompt: SeenPrompt, *args: Any, **kwargs: Any) -> list[Any]:
        found = await inner(engine, prompt, *args, **kwargs)
        sampled.extend((list(prompt.tokens), list(sample.tokens), sample.logprobs.tolist()) for sample in found)
        return found

    monkeypatch.setattr(TorchEngine, "_sample", watched)
    given.clear()
    model, before = caller.rollout(), caller.turns()
    with model.get_openai_client() as client:
        policy = OpenAIModel(client.model_path, str(client.base_url), client.api_key, temperature=0.0)
        agent = ToolCallingAgent(
            [plus_two], policy, SHORT, max_steps=STEPS, verbosity_level=LogLevel.OFF, stream_outputs=is_streaming
        )
        answer = agent.run(TASK)
    assert given == [1] * STEPS, "the agent has run the tool at each step"
    history = [(e.tokens.tolist(), e.prompt_length, e.logprobs.tolist()) for e in extracted(model)]
    assert history == [(prompt + response, len(prompt), logprobs) for prompt, response, logprobs in sampled]
    tokenizer = family_tokenizer("qwen3")
    assert [tokenizer.decode(tokens[start:]) for tokens, start, _ in history[:STEPS]] == [CALL] * STEPS
    # The library sends a call back as text of its own, so that no prompt continues from what was sampled.
    later = [tokenizer.decode(tokens[:start]) for tokens, start, _ in history[1:]]
    assert all("Calling tools:\n[{'id': 'call_" in prompt and "Observation:\n3" in prompt for prompt in later)
    assert [now - then for now, then in zip(caller.turns(), before, strict=True)] == [0, 0]
    assert model.turns.foreign == STEPS, "each call but the first has responses in other words"
    assert answer and len(history) == STEPS + 1, "after the last step it is asked for an answer without tools"


@pytest.mark.runs("docs/endpoint.md", "python")
def test_the_lines_of_the_page_record_what_was_sampled(caller: Rollouts) -> None:
    """The model was taught with short instructions, and for fewer steps."""
    (code,) = page("docs/endpoint.md").code("python")

    def agent(tools: list[Any], policy: OpenAIModel, *, max_steps: int) -> ToolCallingAgent:
        return ToolCallingAgent(tools, policy, SHORT, max_steps=min(max_steps, STEPS), verbosity_level=LogLevel.OFF)

    workflow = SimpleNamespace(model=caller.rollout(), task=SimpleNamespace(task_desc=TASK))
    names: dict[str, Any] = {"self": workflow, "tools": [plus_two], "OpenAIModel": OpenAIModel}
    names["ToolCallingAgent"] = agent
    exec(code, names)  # noqa: S102 - as a workflow does
    names["client"].close()
    assert names["answer"] and len(names["experiences"]) == STEPS + 1
    assert all(bool(each.action_mask.all()) for each in names["experiences"])
