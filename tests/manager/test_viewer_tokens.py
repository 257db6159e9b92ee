"""Tokens as the viewer shows them: their texts, numbers and colours."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import torch

from tests.manager.viewer_page import HOSTILE, rows
from trinity.common.experience import Experience
from trinity.manager.viewer.tokens import QUANTITIES, TokenColours, coloured, legend, texts_of, token_rows, versions_of


def bytes_of(tokens: Sequence[int]) -> str:
    """Decode tokens that are bytes of UTF-8."""
    return bytes(tokens).decode("utf-8", "replace")


def test_every_token_has_its_place_part_and_numbers() -> None:
    lines = token_rows(rows(1)[0], lambda tokens: "".join(f"<{token}>" for token in tokens))
    assert [line["text"] for line in lines] == ["<5>", "<6>", "<7>", "<8>", "<9>"]
    assert [line["part"] for line in lines] == ["prompt"] * 2 + ["response"] * 3
    assert [line.get("mask") for line in lines] == [None, None, True, True, False]
    assert [line.get("logprob") for line in lines] == [None, None, -0.5, -1.0, 0.0]
    assert [line.get("advantage") for line in lines] == [None, None, 0.25, 0.25, 0.0]
    assert [line.get("weights") for line in lines] == [None, None, 3, 3, 3]
    assert [line.get("probability") for line in lines[2:]] == pytest.approx([0.60653, 0.36788, 1.0], abs=1e-5)
    assert "return" not in lines[2]
    assert token_rows(rows(1)[0], None, first=1, last=3) == [
        {name: value for name, value in line.items() if name != "text"} for line in lines[1:3]
    ]


def test_a_character_of_several_tokens_is_the_text_of_the_last_one() -> None:
    tokens = list("a中é".encode())
    assert texts_of(tokens, bytes_of) == ["a", "", "", "中", "", "é"]
    assert "".join(texts_of([0xFF] * 9, bytes_of)) == "\ufffd" * 8, "the ninth waits for the rest of a character"
    spaced = {1: "▁hello", 2: "▁world"}  # the space at the begin of a text is not shown

    def decode(ids: Sequence[int]) -> str:
        return "".join(spaced[token] for token in ids).replace("▁", " ").removeprefix(" ")

    assert texts_of([1, 2, 2], decode) == ["hello", " world", " world"]
    assert texts_of([2], decode, before=[1]) == [" world"]


def test_each_token_has_the_version_of_the_weights_that_sampled_it() -> None:
    own = rows(1)[0]
    assert versions_of(own) == [3, 3, 3]
    own.info["model_versions"] = [3, 4, 4]
    assert versions_of(own) == [3, 4, 4] and TokenColours.of(own, "weights") == TokenColours("weights", versions=(3, 4))
    for damaged in ([3, 4], "344", [3, None, 4]):
        own.info["model_versions"] = damaged
        assert versions_of(own) == [3, 3, 3]
    own.info["model_version"] = None
    assert versions_of(own) == [] and TokenColours.of(own, "weights") is None


def test_colours_follow_the_values() -> None:
    one = rows(1)[0]
    one.advantages, one.returns = torch.tensor([0.5, -0.25, float("nan")]), None
    scale = TokenColours.of(one, "advantage")
    assert scale is not None and scale.most == 0.5
    assert scale.colour(0.0) == "#ffffff" and scale.colour(0.5) == "#5ca4f0" and scale.colour(-0.5) == "#f59e42"
    assert scale.colour(None) == TokenColours("mask").colour(None), "a prompt has no colour of its own"
    assert token_rows(one, None)[-1]["advantage"] is None, "what is no number is not shown as one"
    logprob = TokenColours.of(one, "logprob")
    assert logprob is not None and logprob.colour(-5.0) == logprob.colour(-50.0) != logprob.colour(-1.0)
    assert TokenColours.of(one, "return") is None and TokenColours("advantage").colour(0.0) == "#ffffff"
    mask = TokenColours.of(one, "mask")
    assert mask is not None and mask.colour(True) != mask.colour(False)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_html_of_tokens_holds_what_a_model_wrote_as_text_alone(quantity: str) -> None:
    """X21."""
    hostile = HOSTILE + "\n\"onmouseover='x'"
    lines = token_rows(rows(1)[0], lambda tokens: hostile * len(tokens))
    scale = TokenColours.of(rows(1)[0], quantity) or TokenColours(quantity)
    page = coloured(lines, scale, name_of=lambda name: name, label='a "label"')
    assert set(re.findall(r"<(/?\w+)", page)) == {"div", "/div", "span", "/span"}
    attributes = re.findall(r"<span ([^>]*)>", page)
    assert len(attributes) == 5 and all(
        re.fullmatch(r'data-place="\d" title="[^"]*" style="[^"<]*"', each) for each in attributes
    )
    assert "\x1b" not in page and "\u202e" not in page and "\x00" not in page and "\\x1b[31m" in page
    meaning = legend(scale, text_of=lambda value: f"<{value}>", without="<b>")
    assert set(re.findall(r"<(/?\w+)", meaning)) == {"div", "/div", "span", "/span"} and "&lt;b&gt;" in meaning


def test_tokens_without_a_tokenizer_are_their_ids() -> None:
    long = Experience(tokens=torch.arange(1, 9), prompt_length=3, logprobs=[-0.1] * 5)
    page = coloured(token_rows(long, None, first=2, last=5), TokenColours("logprob"), name_of=str.upper, label="x")
    assert re.findall(r">(\[\d\])<", page) == ["[3]", "[4]", "[5]"] and "LOGPROB: -0.1" in page
