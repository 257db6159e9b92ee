"""Conversations through the endpoint and the wrapper: each further prompt begins with the tokens that were sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from tests.common.models.families import FAMILIES, family_tokenizer, stop_ids
from tests.tiny import tiny_config
from trinity.common.config import Config
from trinity.common.constants import RETOKENISED
from trinity.common.experience import Experience
from trinity.common.models import create_inference_model
from trinity.common.models.chat_template import render_chat
from trinity.common.models.model import ModelWrapper
from trinity.common.models.whole import unfolded
from trinity.explorer.api.endpoint import Endpoint

ENDS = {"qwen2_5": "<|im_end|>", "qwen3": "<|im_end|>"}
USER = [{"role": "user", "content": "the sum of one and two"}]
FOLLOWING = ({"role": "user", "content": "and in 数学?"}, {"role": "user", "content": "system"})


def write_model(folder: Path, family: str) -> None:
    """Write a random model with the tokenizer, the template and the stop tokens of a family."""
    tokenizer = family_tokenizer(family)
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        config = tiny_config("llama", vocab_size=len(tokenizer), max_position_embeddings=2048)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            parameter.data.mul_(3.0 if parameter.dim() > 1 else 1.0)
    ids = stop_ids(family) | ({int(tokenizer.convert_tokens_to_ids(ENDS[family]))} if family in ENDS else set())
    model.generation_config = GenerationConfig(eos_token_id=sorted(ids))
    model.save_pretrained(folder)


class Rollouts:
    """An engine of a family, whose rollouts are asked through the wrapper or through a client."""

    def __init__(
        self,
        folder: Path,
        family: str,
        *,
        write: Callable[[Path], None] | None = None,
        max_response_tokens: int = 24,
        **section: Any,
    ) -> None:
        if write is None:
            write_model(folder, family)
        else:
            write(folder)
        engine = {"dtype": "float32", "enable_openai_api": True, "name": "model", **section}
        self.config = Config.model_validate({
            "model": {"model_path": str(folder), "max_model_len": 2048, "max_response_tokens": max_response_tokens},
            "explorer": {"rollout_model": engine, "max_timeout": 60},
            "algorithm": {"repeat_times": 2},
        })  # fmt: skip
        self.loop = asyncio.new_event_loop()
        self.endpoint = Endpoint()
        self.engine = create_inference_model(self.config)
        self.on_loop(self.engine.prepare())

    def on_loop(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    def rollout(self) -> ModelWrapper:
        model = ModelWrapper(self.engine, config=self.config, clients=self.endpoint, enable_history=True)
        return model.for_run(1, 0)

    def turns(self) -> tuple[float, float]:
        stats = self.on_loop(self.engine.stats())
        return stats["continued_turns"], stats["split_turns"]

    def close(self) -> None:
        self.endpoint.close()
        self.on_loop(self.engine.shutdown())
        self.loop.close()


@pytest.fixture(params=FAMILIES, scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Rollouts]]:
    rollouts = Rollouts(tmp_path_factory.mktemp(request.param), request.param)
    yield request.param, rollouts
    rollouts.close()


def converse(model: ModelWrapper, **options: Any) -> list[list[dict[str, Any]]]:
    """Hold a conversation of three turns by the client, which continues from each last answer; return the prompts."""
    messages: list[dict[str, Any]] = list(USER)
    prompts = []
    with model.get_openai_client() as client:
        for following in (*FOLLOWING, None):
            prompts.append(list(messages))
            answers = client.chat.completions.create(model="model", messages=messages, **options)
            if options.get("stream"):
                text = "".join(chunk.choices[0].delta.content or "" for chunk in answers if chunk.choices)
            else:
                text = answers.choices[-1].message.content
            messages += [{"role": "assistant", "content": text}, following]
    return prompts


@pytest.mark.parametrize(
    "options", [{}, {"n": 2}, {"stream": True}, {"max_tokens": 3}, {"stop": ["e", "a"]}],
    ids=["one", "two", "stream", "cut", "stopped"],
)  # fmt: skip
def test_each_prompt_begins_with_what_was_sampled_or_counts_as_split(
    made: tuple[str, Rollouts], options: dict[str, Any]
) -> None:
    family, rollouts = made
    before = rollouts.turns()
    model = rollouts.rollout()
    prompts = converse(model, **options)
    continued, split = (now - then for now, then in zip(rollouts.turns(), before, strict=True))
    history = model.extract_experience_from_history()
    count = options.get("n", 1)
    assert len(history) == 3 * count and continued + split == 2
    calls = [history[place : place + count] for place in range(0, len(history), count)]
    found = [begins_with(after[0], any_of) for any_of, after in zip(calls, calls[1:], strict=False)]
    assert sum(found) >= continued, "a turn that is counted as continued is one"
    for prompt, is_continued, (call, *_) in zip(prompts[1:], found, calls[1:], strict=True):
        if not is_continued:
            assert call.tokens[: call.prompt_length].tolist() == render_chat(family_tokenizer(family), prompt)[0]
    if family in ("qwen2_5", "llama3_1", "phi3_5"):
        expected = [is_plain(family, answers[-1]) for answers in calls[:-1]]
        assert continued == sum(expected), "these templates write every answer as it was said"


def is_plain(family: str, answer: Experience) -> bool:
    """Return whether the text of an answer says all of its tokens but the last, which ends the turn."""
    tokenizer = family_tokenizer(family)
    response = answer.tokens[answer.prompt_length :].tolist()
    end = int(tokenizer.convert_tokens_to_ids(ENDS.get(family, {"phi3_5": "<|end|>"}.get(family, tokenizer.eos_token))))
    is_cut = answer.truncate_status == "response_truncated"
    said = response[:-1] if response[-1] == end else response
    has_special = any(
        tokenizer.added_tokens_decoder[token].special for token in set(said) & tokenizer.added_tokens_decoder.keys()
    )
    return not has_special and (is_cut or response[-1] == end)


def begins_with(after: Experience, answers: list[Experience]) -> bool:
    """Return whether a prompt begins with one of the answers before it."""
    prompt = after.tokens[: after.prompt_length].tolist()
    return any(prompt[: len(answer.tokens)] == answer.tokens.tolist() for answer in answers)


@pytest.mark.parametrize("options", [{}, {"max_tokens": 3}], ids=["ended", "cut"])
def test_a_conversation_as_one_experience_has_the_sampled_tokens_and_logprobs(
    made: tuple[str, Rollouts], options: dict[str, Any]
) -> None:
    """By the messages of the workflow and by the history alike; split turns are trajectories of their own."""
    family, rollouts = made
    before = rollouts.turns()
    model = rollouts.rollout()
    prompts = converse(model, **options)
    split = rollouts.turns()[1] - before[1]
    calls = model.extract_experience_from_history(clear_history=False)
    found = model.extract_trajectories_from_history()
    assert len(found) == 1 + split and not model.history
    sampled = [float(value) for exp in calls for value in exp.logprobs.tolist()]
    kept = [value for exp in found for value, on in zip(exp.logprobs.tolist(), exp.action_mask, strict=True) if on]
    assert sorted(kept) == sorted(sampled), "every sampled token is trained once, with its log-probability"
    talk = [*prompts[-1], {"role": "assistant", "content": calls[-1].response_text}, *USER]
    whole = rollouts.on_loop(model.convert_messages_to_experience_async(talk))
    assert whole.messages == talk and whole.truncate_status is None and RETOKENISED not in whole.info
    parts = unfolded([whole])
    assert [trained(exp) for exp in parts] == [trained(exp) for exp in found]
    scored = unfolded([rollouts.on_loop(model.convert_messages_to_experience_async(talk, temperature=1.0))])
    for again, exp in zip(scored, parts, strict=True):
        torch.testing.assert_close(again.logprobs[exp.action_mask], exp.logprobs[exp.action_mask])


def trained(exp: Experience) -> tuple[list[int], list[bool], list[float]]:
    assert exp.action_mask is not None and exp.logprobs is not None
    return exp.tokens.tolist(), exp.action_mask.tolist(), exp.logprobs.tolist()
