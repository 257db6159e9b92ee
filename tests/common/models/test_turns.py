"""A conversation continues from the tokens that were sampled, with the templates of eight families."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tests.common.models.families import FAMILIES, family_tokenizer, stop_ids
from trinity.common.experience import Experience
from trinity.common.models import turns as turns_of
from trinity.common.models.answers import AnswerRenderer
from trinity.common.models.chat_template import decode_tokens, render_chat
from trinity.common.models.said import Said
from trinity.common.models.turns import Turns

ASK = [{"role": "user", "content": "the sum of one and two"}]
MORE = {"role": "user", "content": "and in 数学?"}
SYSTEM = {"role": "system", "content": "think"}
TOOL = {"role": "tool", "content": "3"}


def renderer(family: str) -> AnswerRenderer:
    return AnswerRenderer(family_tokenizer(family), stop_ids=stop_ids(family))


def cut_apart(family: str, text: str) -> list[int]:
    """Return the tokens of a text that no tokenizer gives: one for each of its bytes."""
    tokenizer = family_tokenizer(family)
    parts = [tokenizer(character, add_special_tokens=False)["input_ids"] for character in text]
    return [int(token) for part in parts for token in part]


def token_id(family: str, text: str) -> int:
    found = family_tokenizer(family).convert_tokens_to_ids(text)
    assert isinstance(found, int)
    return found


def end_of(family: str, following: str = "user") -> int:
    """Return the token that ends an answer."""
    texts = {
        "qwen2_5": "<|im_end|>", "qwen3": "<|im_end|>", "llama3_1": "<|eot_id|>", "mistral": "</s>",
        "gemma3": "<end_of_turn>", "phi3_5": "<|end|>", "deepseek_r1": "<｜end▁of▁sentence｜>",
        "glm4_5": "<|user|>" if following == "user" else "<|observation|>",
    }  # fmt: skip
    return token_id(family, texts[family])


def further(
    family: str, answer: str, *, before: list[dict[str, Any]] = ASK, ended: bool = True, content: str | None = None
) -> tuple[list[int] | None, list[int], list[dict[str, Any]]]:
    """Return the prompt of the second turn, the tokens of the first, and the messages."""
    tokenizer = family_tokenizer(family)
    prompt, _ = render_chat(tokenizer, before)
    tokens = prompt + cut_apart(family, answer) + [end_of(family)] * ended
    messages = [*before, {"role": "assistant", "content": answer if content is None else content}, MORE]
    ids = stop_ids(family) | {end_of(family)}
    found = AnswerRenderer(tokenizer, stop_ids=ids).after(messages, None, Said(len(before) + 1, tokens, len(prompt)))
    return found, tokens, messages


# DeepSeek's template opens a thought in the prompt which it does not write in later ones.
SPLIT = {"deepseek_r1"}
# What GLM's template writes into later prompts, and the model therefore says.
OPENING = {"glm4_5": "\n<think></think>\n", "mistral": " "}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "cut"])
def test_the_next_prompt_begins_with_the_sampled_tokens(family: str, ended: bool) -> None:
    found, tokens, messages = further(family, OPENING.get(family, "") + "the size is größe", ended=ended)
    if family in SPLIT:
        assert found is None
        return
    whole, _ = render_chat(family_tokenizer(family), messages)
    assert found is not None and found[: len(tokens)] == tokens
    assert found != whole, "the tokenizer cuts the answer otherwise"
    text = decode_tokens(family_tokenizer(family), found)
    assert text == decode_tokens(family_tokenizer(family), whole), "the text is that of the template"


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - SPLIT))
def test_answers_as_the_tokenizer_cuts_them_give_the_prompt_of_the_template(family: str) -> None:
    tokenizer = family_tokenizer(family)
    prompt, _ = render_chat(tokenizer, ASK)
    text = OPENING.get(family, "") + "the size is größe"
    messages = [*ASK, {"role": "assistant", "content": text}, MORE]
    answer = [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    said = Said(2, [*prompt, *answer, end_of(family)], len(prompt))
    ids = stop_ids(family) | {end_of(family)}
    assert AnswerRenderer(tokenizer, stop_ids=ids).after(messages, None, said) == render_chat(tokenizer, messages)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_any_answer_is_gone_on_from_exactly_or_not_at_all(family: str) -> None:
    """Either the prompt begins with the sampled tokens and reads as the template's, blanks aside, or it is refused."""
    source = random.Random(family)
    parts = ["the", " sum", "\n", "  ", "größe", "<think>", "</think>", "<tool_call>", "{}", "数", "", "system", "<|"]
    outcomes = set()
    for _ in range(150):
        answer = OPENING.get(family, "") + "".join(source.choice(parts) for _ in range(source.randint(0, 6)))
        before = [SYSTEM, *ASK] if source.random() < 0.3 and family != "gemma3" else ASK
        found, tokens, messages = further(family, answer, before=before, ended=source.random() < 0.7)
        outcomes.add(found is None)
        if found is None:
            continue
        tokenizer = family_tokenizer(family)
        assert found[: len(tokens)] == tokens
        whole = decode_tokens(tokenizer, render_chat(tokenizer, messages)[0])
        assert "".join(decode_tokens(tokenizer, found).split()) == "".join(whole.split())
    assert (False in outcomes) == (family not in SPLIT)


def test_thoughts_that_a_template_drops_are_not_kept_and_those_that_it_keeps_are() -> None:
    assert further("qwen3", "<think>\nwell\n</think>\n\nthree")[0] is None
    assert further("qwen2_5", "<think>\nwell\n</think>\n\nthree")[0] is not None


def test_a_system_prompt_that_moves_is_no_beginning() -> None:
    assert further("mistral", "three", before=[SYSTEM, *ASK])[0] is None
    assert further("qwen2_5", "three", before=[SYSTEM, *ASK])[0] is not None


def test_an_answer_that_the_caller_changed_is_not_gone_on_from() -> None:
    """A stop string, for example, is in the tokens and not in the text."""
    assert further("qwen2_5", "three Observation:", content="three ")[0] is None


def test_an_answer_that_another_token_ended_is_not_gone_on_from() -> None:
    tokenizer = family_tokenizer("qwen2_5")
    prompt, _ = render_chat(tokenizer, ASK)
    eos = token_id("qwen2_5", "<|endoftext|>")
    said = Said(2, [*prompt, *cut_apart("qwen2_5", "three"), eos], len(prompt))
    messages = [*ASK, {"role": "assistant", "content": "three"}, MORE]
    assert AnswerRenderer(tokenizer, stop_ids={eos}).after(messages, None, said) is None


def test_what_follows_in_glm_is_the_header_that_ended_the_answer() -> None:
    tokenizer = family_tokenizer("glm4_5")
    prompt, _ = render_chat(tokenizer, ASK)
    answer = cut_apart("glm4_5", "<think></think>\nthree")
    messages = [*ASK, {"role": "assistant", "content": "<think></think>\nthree"}]
    for header, follows, goes_on in (("user", MORE, True), ("tool", MORE, False), ("tool", TOOL, True)):
        said = Said(2, [*prompt, *answer, end_of("glm4_5", header)], len(prompt))
        found = renderer("glm4_5").after([*messages, follows], None, said)
        assert (found is not None and found[: len(said.tokens)] == said.tokens) == goes_on, header


# ------------------------------------------------------------------------------ finding them
def sample(text: str, tokens: list[int], **fields: Any) -> Experience:
    return Experience(tokens=torch.tensor(tokens), prompt_length=1, response_text=text, **fields)


def test_the_longest_beginning_is_found_and_only_by_equal_messages_and_tools() -> None:
    turns, tools = Turns(), [{"type": "function", "function": {"name": "add"}}]
    turns.conversation(ASK).add(sample("one", [1, 2]))
    second: list[Mapping[str, Any]] = [*ASK, {"role": "assistant", "content": "one"}, MORE]
    turns.conversation(second).add(sample("two", [1, 2, 3, 4]))
    third = [*second, {"content": "two", "role": "assistant", "tool_calls": None}, MORE]
    assert turns.conversation(third).said == Said(4, [1, 2, 3, 4], 1)
    assert turns.conversation(second).said == Said(2, [1, 2], 1)
    assert turns.conversation(ASK).said is None
    assert turns.conversation([{"role": "user", "content": "another"}, *second[1:]]).said is None
    assert turns.conversation(second, tools).said is None


def test_branches_of_a_conversation_go_on_from_their_own_answers() -> None:
    turns = Turns()
    first = turns.conversation(ASK)
    for text, tokens in (("one", [1, 2]), ("two", [1, 3])):
        first.add(sample(text, tokens))
    for text, tokens in (("one", [1, 2]), ("two", [1, 3])):
        said = turns.conversation([*ASK, {"role": "assistant", "content": text}, MORE]).said
        assert said is not None and said.tokens == tokens


def test_an_answer_is_found_by_the_message_that_stands_for_it() -> None:
    """As a client sends a tool call back: its arguments are text, and those of the template a mapping."""
    turns = Turns()
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    message = {"role": "assistant", "content": "", "reasoning_content": "well", "tool_calls": [call]}
    turns.conversation(ASK).add(sample("<tool_call>", [1, 2], info={"message": message}))
    sent = {**call, "function": {"name": "add", "arguments": '{ "a":1 }'}}
    assert turns.conversation([*ASK, {"role": "assistant", "content": None, "tool_calls": [sent]}, TOOL]).said
    sent = {**call, "function": {"name": "add", "arguments": '{"a": 2}'}}
    assert not turns.conversation([*ASK, {"role": "assistant", "content": None, "tool_calls": [sent]}, TOOL]).said


def test_a_cut_prompt_is_nothing_to_go_on_from() -> None:
    turns = Turns()
    turns.conversation(ASK).add(sample("", [1, 2], truncate_status="prompt_truncated"))
    assert turns.conversation([*ASK, {"role": "assistant", "content": ""}, MORE]).said is None


def test_the_answers_used_last_are_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(turns_of, "MAX_ANSWERS", 2)
    turns = Turns()
    asked = [[{"role": "user", "content": str(number)}] for number in range(4)]
    answered = [[*one, {"role": "assistant", "content": "x"}] for one in asked]
    turns.conversation(asked[0]).add(sample("x", [1, 10]))
    turns.conversation(asked[1]).add(sample("x", [1, 11]))
    assert turns.conversation(answered[0]).said is not None
    for number in (2, 3):
        turns.conversation(answered[0])
        turns.conversation(asked[number]).add(sample("x", [1, 10 + number]))
    assert [turns.conversation(one).said is not None for one in answered] == [True, False, False, True]
    assert caplog.text.count("are tokenised again") == 1


def test_a_conversation_with_a_response_of_elsewhere_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Two rewritten responses, one of them after a known one; what begins a conversation is no response."""
    turns_of._tell_of_foreign.cache_clear()
    turns, other = Turns(), {"role": "assistant", "content": "other"}
    with caplog.at_level("INFO", "trinity"):
        turns.conversation(ASK).add(sample("one", [1, 2]))
        known = [*ASK, {"role": "assistant", "content": "one"}, MORE]
        for messages in (ASK, known, [{"role": "assistant", "content": "hello"}, MORE]):
            turns.conversation(messages)
        assert turns.foreign == 0
        turns.conversation([*ASK, other, MORE])
        assert turns.conversation([*known, other, MORE]).said == Said(2, [1, 2], 1)
    assert turns.foreign == 2 and caplog.text.count("was not sampled in it") == 1
