"""The prompts and responses of a conversation as tokens.

A chat template writes text. Its text for a whole conversation need not contain what was said in it: many templates
drop the thoughts of earlier turns, and some move the system prompt or strip whitespace. So each response is taken from
the place where it was given: after its prompt, which is the conversation so far with the opening of an assistant
message. The responses of a conversation form one sequence only if each prompt begins with all earlier prompts and
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from trinity.common.errors import DataError, EnvironmentProblem
from trinity.common.models.chat_template import chat_text, decode_tokens, encode_text
from trinity.common.models.said import Said

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
_ASK, _SAID, _GO_ON = "QuestionOne", "AnswerOne", "QuestionTwo"


@dataclass(frozen=True)
class Frame:
    """The text that a template writes around an answer.

    Attributes:
        lead: text between the opening and the answer.
        end: text after the answer, up to the token that ends the turn, as far as it does not depend on what follows; ""
            if the template writes none.
    """

    lead: str
    end: str


class AnswerRenderer:
    """Renders prompts and answers with one chat template.

    Args:
        tokenizer: tokenizer with its chat template.
        chat_template: replaces the tokenizer's.
        enable_thinking: passed to the template if not None.
        stop_ids: token ids that end a response. If a template writes no end of turn, like GLM's, the first token of the
            next message ends the answer if it is one of these.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat_template: str | None = None,
        enable_thinking: bool | None = None,
        stop_ids: Collection[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self._options: dict[str, Any] = {"chat_template": chat_template, "enable_thinking": enable_thinking}

    def each(
        self, prompt: Sequence[Message], answers: Sequence[Message], tools: list[Message] | None = None
    ) -> tuple[list[int], list[list[int]]]:
        """Return the tokens of a prompt and of each of its answers.

        An answer is what the template writes after the opening of the prompt, which may hold more than its text (an
        empty thought) or less (stripped whitespace).

        Args:
            prompt: the messages before the answers.
            answers: messages of the assistant; each alone follows the prompt.
            tools: tool descriptions for the template.

        Raises:
            DataError: the template writes nothing for an answer, or an answer without text differs from its opening
                (E4021).
        """
        text = self._text(prompt, tools, is_prompt=True)
        written = [self._answer([*prompt, answer], tools, text, as_said=False) for answer in answers]
        tokens = self._tokens(text)
        return tokens, [self._response(tokens, text, answer) for answer in written]

    def all(
        self, messages: Sequence[Message], tools: list[Message] | None = None, *, as_said: bool, way_out: str
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return a conversation's tokens and the token spans of its answers.

        The tokens end with the last response; a span is [start, end). An assistant message at the very beginning is not
        an answer.

        Args:
            messages: the conversation.
            tools: tool descriptions for the template.
            as_said: take a message's text literally, not what the template writes of it; see `each`. An answer that is
                more than text, such as tool calls, is always taken as the template writes it.
            way_out: advice in the error for a conversation that is not one sequence.

        Raises:
            DataError: see `each`; or a later prompt rewrites earlier prompts or answers (E4021).
        """
        tokens: list[int] = []
        text = ""
        spans: list[tuple[int, int]] = []
        before = 0
        for index in _answers(messages):
            prompt = self._text(messages[:index], tools, is_prompt=True)
            if not prompt.startswith(text):
                raise DataError(
                    f"the chat template rewrites earlier turns: in the prompt of messages[{index}] it writes the "
                    f"response messages[{before}], or what stands before that, otherwise than when it was "
                    "given, so that "
                    f"the conversation is not one sequence; {way_out}",
                    code="E4021",
                )
            whole = self._tokens(prompt)
            tokens = whole if whole[: len(tokens)] == tokens else tokens + self._tokens(prompt[len(text) :])
            if spans and not self._frame.end and tokens[spans[-1][1]] in self.stop_ids:
                spans[-1] = (spans[-1][0], spans[-1][1] + 1)
            answer = self._answer(messages[: index + 1], tools, prompt, as_said=as_said)
            response = self._response(tokens, prompt, answer)
            spans.append((len(tokens), len(tokens) + len(response)))
            tokens, text, before = tokens + response, prompt + answer, index
        return tokens, spans

    def after(
        self,
        messages: Sequence[Message],
        tools: list[Message] | None,
        said: Said,
        *,
        parse: Callable[[str], Message] | None = None,
    ) -> list[int] | None:
        """Return the tokens of a prompt that continues from what was said.

        They begin with `said.tokens`, whether or not the tokenizer would cut the text so. None if the template does not
        write in this prompt what was said, as one that drops earlier thoughts, or moves the system prompt; blanks
        around an answer do not count.

        Args:
            messages: the conversation.
            tools: tool descriptions for the template.
            said: tokens of its beginning, through an answer.
            parse: reads an answer as a message; the template may write its tool calls otherwise than they were said.
        """
        prompt = self._text(messages[: said.messages - 1], tools, is_prompt=True)
        whole = self._text(messages, tools, is_prompt=True)
        if not whole.startswith(prompt):
            return None
        response = said.tokens[said.prompt_length :]
        last = response[-1] if response and response[-1] in self.stop_ids else None
        body = decode_tokens(self.tokenizer, response if last is None else response[:-1])
        end, written = self._frame.end, whole[len(prompt) :].lstrip()
        texts = [body.lstrip(), body.strip()]
        if parse is not None and messages[said.messages - 1].get("tool_calls"):
            again = self._text(messages[: said.messages], tools, is_prompt=False)[len(prompt) :]
            again = self._through_end(again).removesuffix(end).strip()
            texts += [again] if parse(again) == parse(body) else []
        text = next((text for text in texts if written.startswith(text + end)), None)
        if text is None:
            return None
        rest = written[len(text + end) :]
        if last is None:
            following = self._tokens(end + rest)
            is_next = bool(end) or following[0] in self._special.values()
            return said.tokens + following if is_next else None
        ending = decode_tokens(self.tokenizer, [last])
        if end and end.strip() != ending.strip():
            return None  # the template ends turns otherwise
        following = self._tokens(ending + rest if end else rest)
        return said.tokens + following[1:] if following[:1] == [last] else None

    def has_end(self, response: Sequence[int]) -> bool:
        """Return whether a response ends with a token that ends a turn."""
        last = response[-1] if response else None
        return last in self.stop_ids or last in self._special.values() or last == self._added.get(self._frame.end)

    def _text(self, messages: Sequence[Message], tools: list[Message] | None, *, is_prompt: bool) -> str:
        return chat_text(self.tokenizer, messages, tools=tools, is_prompt=is_prompt, **self._options)

    def _tokens(self, text: str) -> list[int]:
        return encode_text(self.tokenizer, text, is_whole=False)

    def _response(self, tokens: list[int], prompt: str, answer: str) -> list[int]:
        """Return the tokens of a response, given those of its prompt.

        Sampled tokens never merge with the prompt's. So the response is tokenised alone if the tokenizer would merge
        the two or let a prompt token absorb whitespace of the response. Otherwise its tokens are taken from the whole
        text, since some tokenizers begin every text with a space.
        """
        whole = self._tokens(prompt + answer)
        if whole[: len(tokens)] != tokens:
            return self._tokens(answer)
        response = whole[len(tokens) :]
        if decode_tokens(self.tokenizer, response) == answer:
            return response
        alone = self._tokens(answer)
        return alone if decode_tokens(self.tokenizer, alone) == answer else response

    def _answer(self, messages: Sequence[Message], tools: list[Message] | None, prompt: str, *, as_said: bool) -> str:
        """Return the text of the last message through the end of its turn."""
        through = self._text(messages, tools, is_prompt=False)
        goes_on = through.startswith(prompt)
        written = self._through_end(through[len(prompt) :]) if goes_on else ""
        content = self._text_alone(messages, tools, through)
        if goes_on and not written and (content is None or content or not as_said):
            raise DataError("the chat template writes nothing for the response", code="E4021")
        if goes_on and not (as_said and content is not None):
            return written
        if content is None or not (content or as_said):
            raise DataError(
                "the chat template does not continue from the opening that it writes before a response, and only for a "
                "response that is text alone can this be corrected; leave enable_thinking out, or use another "
                "chat_template",
                code="E4021",
            )
        body = written.removesuffix(self._frame.end)
        if goes_on and content in body and content.strip() == body.strip():
            return written
        said = content if goes_on else _without_opening(content, prompt, through)
        lead = self._frame.lead if self._frame.lead.isspace() and not said[:1].isspace() else ""
        return lead + said + self._frame.end

    def _text_alone(self, messages: Sequence[Message], tools: list[Message] | None, through: str) -> str | None:
        """Return the last message's text, or None if it holds anything else.

        Fields that the template ignores do not count.
        """
        last = messages[-1]
        content = last.get("content")
        if not isinstance(content, str):
            return None
        if not any(value for key, value in last.items() if key not in ("role", "content")):
            return content
        plain = {"role": last["role"], "content": content}
        try:
            is_all = self._text([*messages[:-1], plain], tools, is_prompt=False) == through
        except EnvironmentProblem:
            return None
        return content if is_all else None

    def _through_end(self, answer: str) -> str:
        """Return an answer's text, cut after the end of its turn."""
        end = self._frame.end
        if end and end in answer:
            return answer[: answer.rindex(end) + len(end)]
        closed = answer.rstrip()
        return closed if closed.endswith(tuple(self._special)) else answer

    @cached_property
    def _added(self) -> dict[str, int]:
        """Ids of added tokens by text; these never merge with other text."""
        return {token.content: number for number, token in self.tokenizer.added_tokens_decoder.items() if token.content}

    @cached_property
    def _special(self) -> dict[str, int]:
        """Ids of special tokens by text, with or without names like `eos_token`."""
        tokens = self.tokenizer.added_tokens_decoder
        return {token.content: number for number, token in tokens.items() if token.special and token.content}

    @cached_property
    def _frame(self) -> Frame:
        """Determine what the template writes around an answer.

        It renders a known answer. The end of the turn is the text that follows the answer both at the end of a
        conversation and before another message: templates write the end of the text in the first case and the next
        header in the second.
        """
        asked = [{"role": "user", "content": _ASK}]
        answered = [*asked, {"role": "assistant", "content": _SAID}]
        opening = self._text(asked, None, is_prompt=True)
        through = self._text(answered, None, is_prompt=False)
        if _SAID not in through:
            return Frame("", "")
        further = self._text([*answered, {"role": "user", "content": _GO_ON}], None, is_prompt=False)
        start = through.rindex(_SAID)
        lead = through[len(opening) : start] if through.startswith(opening) else ""
        closing = commonprefix([through[start + len(_SAID) :], further.partition(_SAID)[2]])
        found = [closing.index(text) + len(text) for text in self._added if text in closing]
        if found:
            return Frame(lead, closing[: min(found)])
        # A prefix that an end of text and a header happen to share, such as `<|`, does not end a turn.
        return Frame(lead, closing.rstrip() if through.endswith(_SAID + closing) else "")


def _answers(messages: Sequence[Message]) -> list[int]:
    return [index for index, message in enumerate(messages) if index and message["role"] == "assistant"]


def _without_opening(content: str, prompt: str, through: str) -> str:
    """Return an answer without an opening that repeats the prompt's end.

    An example of such an opening is `<think>`.
    """
    opening = prompt[len(commonprefix([prompt, through])) :]
    if opening.strip() and content.startswith(opening.strip()):
        return (
            content.removeprefix(opening) if content.startswith(opening) else content[len(opening.strip()) :].lstrip()
        )
    return content
