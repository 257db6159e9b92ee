"""Stop strings end a response as they do in vLLM, whose own code is the judge."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.common.models.families import family_tokenizer
from tests.engine.engines import engine, response, run
from tests.tiny import tiny_tokenizer
from trinity.common.experience import Experience
from trinity.engine.stopping import completed_stop, stop_at_end, text_before

Made = tuple[Path, PreTrainedModel]
STOPS = [["a"], ["aa", "a"], ["ab", "ba"], ["数"], ["é1", "1"], ["\n\n", "\n"], ["数学", "学é"]]


def of_vllm(
    tokenizer: PreTrainedTokenizerFast, tokens: list[int], stops: list[str], min_tokens: int
) -> tuple[int, str | None, str]:
    """Return length, stop string and text of a response that comes token by token, by vLLM's detokenizer."""
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    params = SamplingParams(stop=stops, min_tokens=min_tokens, max_tokens=100, skip_special_tokens=True)
    request = SimpleNamespace(sampling_params=params, prompt_token_ids=[5], request_id="a", prompt_embeds=None)
    made = IncrementalDetokenizer.from_new_request(tokenizer, request)
    for length, token in enumerate(tokens, start=1):
        found = made.update([token], False)
        if found is not None:
            return length, found, made.output_text
    return len(tokens), None, made.output_text


def of_ours(
    tokenizer: PreTrainedTokenizerFast, tokens: list[int], stops: list[str], min_tokens: int
) -> tuple[int, str | None, str]:
    """Return the same by our functions."""
    for length in range(1, len(tokens) + 1):
        found = completed_stop(tokenizer, tokens[:length], stops, min_tokens=min_tokens)
        if found is not None:
            whole = stop_at_end(tokenizer, tokens[:length], [found])
            assert whole is not None
            return length, found, tokenizer.decode(tokens[:length], skip_special_tokens=True)[: whole.start]
    return len(tokens), None, tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("stops", STOPS, ids=str)
@pytest.mark.parametrize("min_tokens", [0, 1, 2, 5])
def test_a_response_ends_where_vllm_ends_it(tmp_path: Path, stops: list[str], min_tokens: int) -> None:
    pytest.importorskip("vllm")
    rng, num_stopped = random.Random(f"{stops}{min_tokens}"), 0
    letters = tiny_tokenizer(tmp_path, characters="abé1数学\n")
    for tokenizer in (family_tokenizer("qwen2_5"), letters):
        pieces = ["a", "b", "é", "1", "数", "学", "\n", "\n\n", "aa", "<|im_end|>"]
        for _ in range(40):
            tokens = tokenizer("".join(rng.choices(pieces, k=12)), add_special_tokens=False)["input_ids"]
            length, found, text = of_vllm(tokenizer, tokens, stops, min_tokens)
            ours = of_ours(tokenizer, tokens, stops, min_tokens)
            # vLLM holds back half a character at the end of a response, which is cut off here.
            assert (ours[0], ours[1], ours[2].rstrip("\ufffd")) == (length, found, text), tokens
            num_stopped += found is not None
    assert num_stopped >= 5


MINIMUM = 6


def test_a_stop_string_counts_once_the_minimum_is_over(llama: Made) -> None:
    """One that was complete too early counts neither then nor later, and stays in the text."""
    arguments = {"max_tokens": 20, "min_tokens": MINIMUM, "ignore_eos": True, "seed": 5, "n": 8}

    async def call() -> tuple[list[Experience], dict[str, list[Experience]]]:
        async with engine(llama[0]) as made:
            free = await made.generate("7*8=", **arguments)
            signs = sorted({sign for one in free[:2] for sign in one.response_text})
            return free, {sign: await made.generate("7*8=", stop=sign, **arguments) for sign in signs}

    free, stopped = run(call())
    seen = set()
    for number, one in enumerate(free):
        # Each character is a token; special tokens have no text.
        places = [place for place, token in enumerate(response(one)) if token > 2]
        for sign, made in stopped.items():
            text, length = made[number].response_text, made[number].response_length
            ends = [n for n, each in enumerate(one.response_text) if each == sign and places[n] >= MINIMUM]
            is_early = sign in one.response_text and one.response_text.index(sign) < (ends or [len(places)])[0]
            assert text == one.response_text[: ends[0]] if ends else text == one.response_text
            assert length == (places[ends[0]] + 1 if ends else 20)
            seen.add((is_early, bool(ends)))
    assert seen == {(False, False), (False, True), (True, False), (True, True)}


@pytest.mark.parametrize(
    ("said", "stop", "expected"),
    [
        ("ab<|im_start|>c", "c", "ab<|im_start|>"),
        ("ab<|im_start|>c", "bc", "a"),
        ("<|im_start|>ab<|im_start|>數a", "數a", "<|im_start|>ab<|im_start|>"),
        ("<|im_start|>數學", "學", "<|im_start|>數"),
        ("a", "a", ""),
    ],
)
def test_the_text_before_a_stop_string_has_the_special_tokens_before_it(said: str, stop: str, expected: str) -> None:
    tokenizer = family_tokenizer("qwen2_5")
    assert text_before(tokenizer, tokenizer(said, add_special_tokens=False)["input_ids"], stop) == expected
