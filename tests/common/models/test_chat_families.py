"""With the templates of eight families: every token that the policy said carries the mask, and no other, or a refusal.

What is expected is written by hand from the formats, with `«` and `»` around what was said.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.common.models.families import FAMILIES, family_tokenizer, marked_tokens, stop_ids
from tests.common.models.family_cases import (
    CASES,
    END,
    OPENED,
    QWEN,
    REWRITTEN,
    TURNS,
    Message,
    answer,
    call,
    result,
    system,
    user,
)
from trinity.common.errors import DataError, EnvironmentProblem
from trinity.common.models.chat_template import render_chat
from trinity.common.models.masking import masked_conversation, tokenize_and_mask_messages_default


@pytest.mark.parametrize(("family", "options", "messages", "marked"), CASES)
def test_exactly_what_the_policy_said_carries_the_mask(
    family: str, options: dict[str, Any], messages: list[Message], marked: str
) -> None:
    tokenizer = family_tokenizer(family)
    if marked == REWRITTEN:
        with pytest.raises(
            DataError, match=r"the prompt of messages\[\d\] .* response messages\[\d\].*otherwise"
        ) as caught:
            masked_conversation(tokenizer, messages, stop_ids=stop_ids(family), **options)
        assert caught.value.code == "E4021"
        return
    tokens, mask, start = masked_conversation(tokenizer, messages, stop_ids=stop_ids(family), **options)
    expected, expected_mask = marked_tokens(family, marked)
    said = [token for token, is_said in zip(tokens, mask, strict=True) if is_said]
    told = [token for token, is_said in zip(expected, expected_mask, strict=True) if is_said]
    assert tokenizer.decode(said) == tokenizer.decode(told)
    assert tokenizer.decode(tokens) == tokenizer.decode(expected)
    assert (tokens, mask, start) == (expected, expected_mask, expected_mask.index(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_conversation_that_is_right(family: str) -> None:
    assert any(name == family and marked != REWRITTEN for name, _, _, marked in CASES)


def drawn(rng: random.Random, family: str) -> list[Message]:
    """Return a conversation of texts that templates treat specially: thoughts, blanks, nothing, bytes of several."""
    texts = ["", "hi", "größe 数学", "<think>\nwhy\n</think>\n\nso", "a</think>b", "two\n\nlines"]
    # Phi's headers take in the blanks behind them, those of a message, too.
    texts += [] if family == "phi3_5" else ["\n3", " pad \n"]
    messages = [system(rng.choice(texts))] if rng.random() < 0.3 else []
    for _ in range(rng.randrange(1, 4)):
        said = texts[1:] if family == "glm4_5" else texts  # GLM writes nothing for an empty answer
        messages += [user(rng.choice(texts)), answer(rng.choice(said))]
    return messages + [user("bye")] * (rng.random() < 0.3)


def runs(mask: list[int]) -> list[tuple[int, int]]:
    """Return begin and end of the runs of ones."""
    edges = [place for place, (before, here) in enumerate(zip([0, *mask], [*mask, 0], strict=True)) if before != here]
    return list(zip(edges[::2], edges[1::2], strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_trained_is_what_the_engine_showed_and_the_policy_said(family: str) -> None:
    """The oracle is the engine's own way: the prompt of each call, then the answer; a refusal must be a rewriting."""
    tokenizer, rng = family_tokenizer(family), random.Random(family)
    num_right = num_refused = 0
    for _ in range(80):
        messages, options = drawn(rng, family), {"enable_thinking": rng.choice([None, False])}
        places = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        said = [messages[index]["content"].removeprefix(OPENED.get(family, "")) for index in places]
        shown = [tokenizer.decode(render_chat(tokenizer, messages[:index], **options)[0]) for index in places]
        try:
            tokens, mask, _ = masked_conversation(tokenizer, messages, stop_ids=stop_ids(family), **options)
        except DataError:
            num_refused += 1
            assert any(
                not any(after.startswith(before + blank + text + END[family]) for blank in ("", " ", "\n"))
                for before, text, after in zip(shown, said, shown[1:], strict=False)
            ), (messages, options)
            continue
        num_right += 1
        text, last = "", 0
        for (start, end), prompt, content in zip(runs(mask), shown, said, strict=True):
            assert prompt == text + tokenizer.decode(tokens[last:start])
            response = tokenizer.decode(tokens[start:end])
            is_open = family == "glm4_5" and end == len(tokens)
            assert response in {blank + content + ("" if is_open else END[family]) for blank in ("", " ", "\n")}
            text, last = prompt + response, end
        assert last == len(tokens)
    assert num_right >= 10 and (num_refused > 0 or family in ("qwen2_5", "phi3_5"))


def test_blanks_that_a_header_would_take_in_stay_the_policys() -> None:
    tokenizer = family_tokenizer("phi3_5")
    tokens, mask, start = masked_conversation(tokenizer, [user("a"), answer("\n3")], stop_ids=stop_ids("phi3_5"))
    assert tokenizer.decode(tokens[start:]) == "\n3<|end|>" and mask == [0] * start + [1] * 3


def test_a_greeting_is_no_answer_and_what_follows_the_last_answer_is_left_out() -> None:
    messages = [answer("hello"), user("a"), answer("3"), user("b")]
    tokens, mask, start = tokenize_and_mask_messages_default(family_tokenizer("qwen2_5"), messages)
    expected, expected_mask = marked_tokens(
        "qwen2_5",
        f"{QWEN}<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\n«3<|im_end|>»",
    )
    assert (tokens.tolist(), mask.tolist(), start) == (expected, expected_mask, expected_mask.index(1))


def test_tags_of_a_template_take_tokens_out_of_the_mask() -> None:
    """A template that marks the text of an answer alone leaves the end of its turn to nobody."""
    tagged = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokens, mask, _ = masked_conversation(family_tokenizer("qwen2_5"), TURNS, chat_template=tagged)
    assert (tokens, mask) == marked_tokens(
        "qwen2_5",
        "<|im_start|>user\n1+2, größe?<|im_end|>\n<|im_start|>assistant\n«3 数学»<|im_end|>\n"
        "<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n«naïve 九»<|im_end|>",
    )


def test_a_template_without_special_tokens_ends_a_turn_with_its_text() -> None:
    """A beginning that the end of the text and a header share is no end of a turn."""
    plain = (
        "{% for m in messages %}#{{ m.role }}#{{ m.content }}{% endfor %}"
        "{{ '#assistant#' if add_generation_prompt else '#!' }}"
    )
    tokenizer = family_tokenizer("qwen2_5")
    tokens, mask, _ = masked_conversation(tokenizer, TURNS, chat_template=plain)
    said = [tokenizer.decode(tokens[start:end]) for start, end in runs(mask)]
    assert said == ["3 数学", "naïve 九"]


def test_an_answer_that_the_template_leaves_out_is_refused() -> None:
    only_users = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(DataError, match="writes nothing for the response") as caught:
        masked_conversation(family_tokenizer("qwen2_5"), TURNS, chat_template=only_users)
    assert caught.value.code == "E4021"


def test_tool_calls_that_do_not_go_on_from_the_opening_are_refused() -> None:
    """DeepSeek-R1 opens a thought; what it writes for a call has none."""
    messages = [user("a"), call('{"a": 1}', content=None), result("2"), answer("3")]
    with pytest.raises(DataError, match="does not continue from the opening") as caught:
        masked_conversation(family_tokenizer("deepseek_r1"), messages)
    assert caught.value.code == "E4021"


def test_what_a_template_refuses_says_so() -> None:
    with pytest.raises(EnvironmentProblem, match="E3109.*must alternate"):
        masked_conversation(family_tokenizer("gemma3"), [user("a"), user("b"), answer("c")])
