"""From a dataset row to the tokens of a conversation whose answers are imitated.

The prompt's tokens are those that the engine would see in a chat: the chat template with the opening of an
assistant's message. The response ends with the end-of-turn token that the template writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trinity.common.config.buffer import FormatConfig
from trinity.common.errors import DataError
from trinity.common.models.chat_template import render_chat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """A conversation as tokens.

    Attributes:
        tokens: all token ids (T of them).
        prompt_length: tokens before the first one to imitate.
        action_mask: one entry a token after the prompt, true where the assistant speaks.
        is_truncated: the end of the response was cut off.
    """

    tokens: list[int]
    prompt_length: int
    action_mask: list[bool]
    is_truncated: bool = False


def to_messages(fmt: FormatConfig, values: Mapping[str, Any], *, kind: str) -> list[Message]:
    """Return the conversation of a row, the answer last.

    Args:
        fmt: names of the columns.
        values: the row.
        kind: `plaintext` (a prompt and a response) or `messages`.
    """
    if kind == "messages":
        return [dict(message) for message in values[fmt.messages_key]]
    prompt = values[fmt.prompt_key]
    messages = [dict(message) for message in prompt] if isinstance(prompt, list) else []
    if not messages:
        system = values.get(fmt.system_prompt_key) if fmt.system_prompt_key else None
        system = system or fmt.system_prompt
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
    return [*messages, {"role": "assistant", "content": str(values[fmt.response_key])}]


class SFTFormatter:
    """Turns conversations into samples.

    Args:
        fmt: names of the columns and the form of the rows.
        tokenizer: with its chat template.
        kind: `plaintext` or `messages`.
    """

    def __init__(self, fmt: FormatConfig, tokenizer: PreTrainedTokenizerBase, *, kind: str) -> None:
        self.fmt = fmt
        self.tokenizer = tokenizer
        self.kind = kind

    def __call__(self, values: Mapping[str, Any]) -> Sample:
        """Return the sample of a row: the last answer, or all answers with `enable_concatenated_multi_turn`.

        Raises:
            DataError: no answer to imitate (E4020), or a template that rewrites earlier turns (E4021).
            EnvironmentProblem: no chat template, or one that fails (E3107, E3109).
        """
        messages = to_messages(self.fmt, values, kind=self.kind)
        tools = values.get(self.fmt.tools_key) or None
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not answers or answers[0] == 0:
            raise DataError("no assistant message that answers a user", code="E4020")
        if self.kind == "messages" and self.fmt.enable_concatenated_multi_turn:
            return self._all_answers(messages, answers, tools)
        return self._last_answer(messages[: answers[-1] + 1], tools)

    def _render(self, messages: list[Message], tools: list[Message] | None, *, is_prompt: bool) -> list[int]:
        tokens, _ = render_chat(
            self.tokenizer,
            messages,
            tools=tools,
            is_prompt=is_prompt,
            enable_thinking=self.fmt.enable_thinking,
            chat_template=self.fmt.chat_template,
        )
        return tokens

    def _last_answer(self, messages: list[Message], tools: list[Message] | None) -> Sample:
        prompt = self._render(messages[:-1], tools, is_prompt=True)
        whole = self._render(messages, tools, is_prompt=False)
        if whole[: len(prompt)] == prompt:
            response = self._end_of_turn(whole[len(prompt) :])
        else:
            # The template or the tokenizer joins the opening and the answer: keep the engine's prompt.
            text = str(messages[-1].get("content") or "")
            response = self._end_of_turn(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return Sample(prompt + response, len(prompt), [True] * len(response))

    def _all_answers(self, messages: list[Message], answers: list[int], tools: list[Message] | None) -> Sample:
        tokens: list[int] = []
        spans: list[tuple[int, int]] = []
        for i in answers:
            prompt = self._render(messages[:i], tools, is_prompt=True)
            through = self._render(messages[: i + 1], tools, is_prompt=False)
            if through[: len(prompt)] != prompt or prompt[: len(tokens)] != tokens:
                raise DataError(
                    "the chat template rewrites earlier turns, so that the conversation is not one sequence; set "
                    "format.enable_concatenated_multi_turn to false",
                    code="E4021",
                )
            tokens = prompt + self._end_of_turn(through[len(prompt) :])
            spans.append((len(prompt), len(tokens)))
        start = spans[0][0]
        mask = [False] * (len(tokens) - start)
        for begin, end in spans:
            mask[begin - start : end - start] = [True] * (end - begin)
        return Sample(tokens, start, mask)

    def _end_of_turn(self, response: list[int]) -> list[int]:
        """Return the response up to its end-of-turn token; the end-of-text token where the template writes none."""
        eos = self.tokenizer.eos_token_id
        ends = {eos} if eos in response else set(self.tokenizer.all_special_ids)
        last = max((i for i, token in enumerate(response) if token in ends), default=None)
        if last is None:
            return response if eos is None else [*response, eos]
        return response[: last + 1]
