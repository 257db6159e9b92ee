"""What an engine sampled is what the history holds and what is trained: every token, once, in eight families."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import trinity
from tests.common.models.families import FAMILIES, family_tokenizer
from tests.e2e.tiny_run import PLAIN
from tests.explorer.api.test_conversations import write_model
from tests.explorer.api.test_tool_calls import write_caller
from tests.explorer.jobs import write_rows
from tests.loaded_plugins import forget_plugins
from trinity.common.experience import Experience
from trinity.engine.image_prompts import SeenPrompt
from trinity.engine.sample import Sample
from trinity.engine.torch.engine import TorchEngine
from trinity.trainer.batch import TrainBatch
from trinity.trainer.verl.dp_actor import DataParallelPPOActor

pytestmark = pytest.mark.slow

WAYS = ("wrapper", "client", "stream", "two", "cut", "stopped", "tools", "branches")
# Families whose templates write what a tool answers though the answer before it calls none.
TAKE_TOOLS = {"qwen2_5", "qwen3", "llama3_1", "glm4_5"}
# Families whose templates write no later turn as a model says it that says anything; GLM writes an empty thought.
WRITES_ANEW = {"deepseek_r1", "glm4_5"}
PLUGIN = """
from trinity.common.workflows import WORKFLOWS, Workflow

CALLS = []
OPTIONS = {"two": {"n": 2}, "stream": {"stream": True}, "cut": {"max_tokens": 3}, "stopped": {"stop": ["e", "a"]}}
OPTIONS["tools"] = {"tools": [{"type": "function", "function": {
    "name": "sum", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]}


@WORKFLOWS.register_module("conversations")
class Conversations(Workflow):
    def run(self):
        way = self.task.task_desc
        self.client = self.model.get_openai_client()
        messages = [{"role": "user", "content": "the sum of one and two"}]
        for text in ("and in 数学?", "system"):
            answer = self.answer(way, messages)
            follows = {"role": "user", "content": text}
            if way == "tools" and (answer.get("tool_calls") or self.task.workflow_args["takes_tools"]):
                identity = answer["tool_calls"][0]["id"] if answer.get("tool_calls") else "a"
                follows = {"role": "tool", "tool_call_id": identity, "content": text}
            before, messages = messages, [*messages, answer, follows]
        self.answer(way, messages)
        if way == "branches":
            for text in ("the size", "the tool"):
                self.answer(way, [*messages[:2], {"role": "user", "content": text}])
            self.answer(way, before)
        CALLS.extend(self.model.extract_experience_from_history(clear_history=False))
        found = self.model.extract_trajectories_from_history()
        for experience in found:
            experience.reward = float(self.run_id_base + len(found)) + self.task.workflow_args["takes_tools"]
        return found

    def answer(self, way, messages):
        if way == "wrapper":
            (said,) = self.model.chat(messages, n=1)
            return {"role": "assistant", "content": said.response_text}
        options = {"max_tokens": self.task.workflow_args["max_tokens"]} | OPTIONS.get(way, {})
        made = self.client.chat.completions.create(model="model", messages=messages, **options)
        if way == "stream":
            text = "".join(chunk.choices[0].delta.content or "" for chunk in made if chunk.choices)
            return {"role": "assistant", "content": text}
        return made.choices[-1].message.model_dump(exclude_none=True)
"""
Call = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], tuple[int, ...]]


def call_of(prompt: list[int], response: list[int], logprobs: Tensor, versions: Any) -> Call:
    """Return prompt, response, log-probabilities and the weights of each token of the response."""
    return tuple(prompt), tuple(response), tuple(logprobs.tolist()), tuple(versions)


class Watch:
    """What passes through engine and trainer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sampled: list[Call] = []
        self.trained: list[TrainBatch] = []
        sample, update = TorchEngine._sample, DataParallelPPOActor.update_policy

        async def watched_sample(engine: TorchEngine, prompt: SeenPrompt, *args: Any, **kwargs: Any) -> list[Sample]:
            samples = await sample(engine, prompt, *args, **kwargs)
            for each in samples:
                versions = each.model_versions or [each.model_version] * len(each.tokens)
                self.sampled.append(call_of(prompt.tokens, each.tokens, each.logprobs, versions))
            return samples

        def watched_update(actor: DataParallelPPOActor, batch: TrainBatch, *, step: int) -> dict[str, float]:
            self.trained.append(batch)
            return update(actor, batch, step=step)

        monkeypatch.setattr(TorchEngine, "_sample", watched_sample)
        monkeypatch.setattr(DataParallelPPOActor, "update_policy", watched_update)

    def trained_calls(self) -> list[Call]:
        """Return the responses of all trained rows, each with what stood before it in its row."""
        return [call for batch in self.trained for row in range(len(batch)) for call in calls_of_row(batch, row)]


def calls_of_row(batch: TrainBatch, row: int) -> list[Call]:
    """Return each run of actions of a row as a call."""
    start = int(batch.prompt_lengths[row])
    tokens = batch.tokens[row, : int(batch.lengths[row])].tolist()
    mask = batch.action_mask[row, : len(tokens) - start].tolist() + [False]
    calls, begin = [], None
    for place, is_action in enumerate(mask):
        if is_action and begin is None:
            begin = place
        elif not is_action and begin is not None:
            logprobs = batch.columns["rollout_logprob"][row, begin:place]
            prompt, response = tokens[: start + begin], tokens[start + begin : start + place]
            calls.append(call_of(prompt, response, logprobs, [int(batch.model_versions[row])] * len(response)))
            begin = None
    return calls


def call_of_history(experience: Experience) -> Call:
    start, own = experience.prompt_length, int(experience.info["model_version"])
    tokens = experience.tokens.tolist()
    assert experience.logprobs is not None and experience.action_mask is not None
    assert bool(experience.action_mask.all())
    versions = experience.info.get("model_versions") or [own] * (len(tokens) - start)
    return call_of(tokens[:start], tokens[start:], experience.logprobs, versions)


def conversations(folder: Path, *, takes_tools: bool, max_tokens: int, **engine: Any) -> dict[str, Any]:
    """Return the configuration of a run that holds conversations in every way."""
    (folder / "plugins").mkdir()
    (folder / "plugins" / "conversations.py").write_text(PLUGIN)
    write_rows(folder / "train.jsonl", [{"question": way, "answer": "none"} for way in WAYS])
    tree = copy.deepcopy(PLAIN)
    tree["model"] = {"model_path": "model", "max_model_len": 1024, "max_response_tokens": max_tokens}
    tree["buffer"] |= {"batch_size": len(WAYS), "total_steps": 2}
    tree["buffer"]["explorer_input"]["default_workflow_type"] = "conversations"
    tree["buffer"]["explorer_input"]["taskset"]["workflow_args"] = {
        "takes_tools": takes_tools, "max_tokens": max_tokens
    }  # fmt: skip
    tree["explorer"]["rollout_model"] |= {"enable_openai_api": True, "enable_history": True, **engine}
    tree["plugin_dirs"] = ["plugins"]
    return tree


@pytest.mark.parametrize("family", [*FAMILIES, "caller"])
def test_sampled_recorded_and_trained_tokens_are_the_same(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_plugins()
    monkeypatch.chdir(tmp_path)
    parsers: dict[str, Any] = {}
    if family == "caller":
        write_caller(tmp_path / "model")
        parsers = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    else:
        write_model(tmp_path / "model", family)
    tree = conversations(tmp_path, takes_tools=family in TAKE_TOOLS, max_tokens=120 if parsers else 24, **parsers)
    watch = Watch(monkeypatch)
    report = trinity.run(tree)
    assert report.stages[0].training_step == 2
    kept = sys.modules["trinity.plugins.conversations"].CALLS
    assert len(watch.sampled) == 2 * 2 * (3 * len(WAYS) + 3 + 3), "three turns each; second choices; branches"
    history = Counter(call_of_history(each) for each in kept)
    sampled, trained = Counter(watch.sampled), Counter(watch.trained_calls())
    assert history == sampled
    assert trained == sampled, f"{len(trained - sampled)} of {len(trained)} calls are trained that were not sampled"
    assert {version for *_, versions in sampled for version in versions} == {0, 1}
    longest = max(len(calls_of_row(batch, row)) for batch in watch.trained for row in range(len(batch)))
    assert longest == (1 if family in WRITES_ANEW else 3)
    if family == "caller":
        begin = family_tokenizer("qwen3").convert_tokens_to_ids("<tool_call>")
        assert sum(begin in response for _, response, *_ in sampled) > 2, "the model calls the tool"
