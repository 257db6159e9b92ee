"""Every form of calls and thoughts, with and without stop strings: wholes and streams say the same."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tests.common.models.families import family_tokenizer
from tests.common.models.test_answer_parsers import NAMES, SAYINGS, TOOLS, calls
from trinity.common.config.model import InferenceModelConfig, ModelConfig
from trinity.common.constants import REASONING_PARSERS
from trinity.common.models.answer_parsers import AnswerParser
from trinity.common.models.generate_params import GenerateParams
from trinity.common.models.model import ModelWrapper
from trinity.common.models.watching import listener
from trinity.engine.image_prompts import SeenPrompt
from trinity.engine.sample import Sample
from trinity.engine.settings import EngineSettings
from trinity.explorer.api.endpoint import Endpoint
from trinity.explorer.policy_model import PolicyModel

ASK = [{"role": "user", "content": "add"}]
MARKS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
)  # fmt: skip
Message = tuple[str, str, list[tuple[str, Any]]]


class Saying:
    """A policy that always says the same."""

    def __init__(self) -> None:
        self.text = ""

    def answer(self, sample_id: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        return list(tokenizer(self.text, add_special_tokens=False)["input_ids"])


class Watched(PolicyModel):
    """A policy whose tokens are watched, as those of the torch engine."""

    async def _sample(
        self, prompt: SeenPrompt, params: GenerateParams, *, keys: list[int], ids: tuple[str, ...]
    ) -> list[Sample]:
        samples, told = await super()._sample(prompt, params, keys=keys, ids=ids), listener()
        for number, sample in enumerate(samples if told is not None else ()):
            for token in sample.tokens:
                told(number, token, -1.0, ())
        return samples


@pytest.fixture(scope="module", params=["special", "added", "spelled"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose marks are special tokens, other added tokens, or no tokens."""
    made = tmp_path_factory.mktemp(request.param)
    family_tokenizer("gemma3").save_pretrained(made)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(made)
    if request.param != "spelled":
        tokenizer.add_tokens([AddedToken(mark, special=request.param == "special", normalized=False) for mark in MARKS])
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}:"
    tokenizer.save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


def whole(answer: Any) -> Message:
    (choice,) = answer.choices
    made = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()]
    return choice.message.content or "", getattr(choice.message, "reasoning_content", None) or "", made


def streamed(chunks: Any) -> Message:
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    said = [call for delta in deltas for call in delta.tool_calls or ()]
    made = [(call.function.name, json.loads(call.function.arguments)) for call in said]
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    return "".join(delta.content or "" for delta in deltas), "".join(thoughts), made


def asker(folder: Path, endpoint: Endpoint, form: str | None, thoughts: str | None) -> Callable[..., Message]:
    """Return what asks a model, which says a given text, with the real client."""
    policy = Saying()
    section = ModelConfig.model_validate({"model_path": str(folder), "max_model_len": 4096})
    engine = Watched(EngineSettings(section, tool_call_parser=form, reasoning_parser=thoughts), policy)
    asyncio.run(engine.prepare())
    named = InferenceModelConfig.model_validate({"name": "model"})
    model = ModelWrapper(engine, rollout_config=named, clients=endpoint, enable_history=True).for_run(1, 0)
    client = model.get_openai_client()  # its token is valid as long as the model lives

    def ask(text: str, stop: list[str] | str | None, stream: bool) -> Message:
        policy.text = text
        model.history.clear()
        asked = {"model": "model", "messages": ASK, "tools": TOOLS} | ({} if stop is None else {"stop": stop})
        answer = client.chat.completions.create(stream=stream, **asked)
        return streamed(answer) if stream else whole(answer)

    return ask


@pytest.mark.parametrize("thoughts", [None, *REASONING_PARSERS])
@pytest.mark.parametrize(("form", "called"), [(None, ""), *SAYINGS], ids=["none", *NAMES])
def test_stop_strings_change_nothing_before_them(
    folder: Path, endpoint: Endpoint, form: str | None, called: str, thoughts: str | None
) -> None:
    if form is None and thoughts is None:
        return
    thought = "" if thoughts is None else "<think>\nwell 数 </think>\n\n"
    said = thought + ("" if form == "llama3_json" else "I add.\n") + called
    parsed = AnswerParser(form, thoughts).message(said, tools=TOOLS)
    expected = (parsed["content"], parsed.get("reasoning_content", ""), calls(parsed))
    cases = [(said, None), (said, ["never"]), (said, "¶"), (f"{said}\nEND, and more", ["never", "END,"])]
    ask = asker(folder, endpoint, form, thoughts)
    for (text, stop), stream in itertools.product(cases, (False, True)):
        assert ask(text, stop, stream) == expected, (stop, stream)


@pytest.mark.parametrize(("form", "called"), SAYINGS, ids=NAMES)
def test_whatever_is_said_a_stream_is_its_whole(folder: Path, endpoint: Endpoint, form: str, called: str) -> None:
    """Marks stand anywhere, also within what would be a stop string without them."""
    ask, rng = asker(folder, endpoint, form, "qwen3"), random.Random(form)
    pieces = [*MARKS[2:], called, *"abc \n"]
    for _ in range(30):
        thought = "".join(rng.choices(pieces, k=4))
        said = rng.choice(["", f"<think>{thought}</think>", f"<think>{thought}"]) + "".join(rng.choices(pieces, k=6))
        stop = rng.choice([None, ["never"], ["c"], ["ab", "b a"], [" \n", "cab"]])
        one, other = (ask(said, stop, stream) for stream in (False, True))
        assert one == other, (said, stop)
