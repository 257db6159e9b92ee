"""Turn a dataset row into tokens.

A row is a conversation to imitate, a pair of responses for preference training, or a text to continue. The prompt's
tokens are those that the engine sees in a chat: the chat template with the opening of an assistant's message. A
response ends with the end-of-turn token that the template writes.

Rows without images need no torch, so that a preview of them does not wait for its import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from trinity.buffer.checks import Fault
from trinity.buffer.prepared_images import answers_have_images, with_row_images
from trinity.buffer.training_rows import Message, prompt_messages, split_pair
from trinity.common.config.buffer import FormatConfig
from trinity.common.errors import ConfigError, DataError
from trinity.common.images.messages import has_images
from trinity.common.models.answers import AnswerRenderer
from trinity.common.models.chat_template import encode_text
from trinity.common.models.vocabulary import stop_token_ids

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from trinity.common.images.picture import Picture
    from trinity.common.images.prepared import PreparedImages


@dataclass(frozen=True)
class TokenizedRow:
    """A row as tokens.

    Attributes:
        tokens: all token ids; of a pair those of the prompt and the chosen response.
        prompt_length: tokens before the first one to learn.
        action_mask: one entry a token after the prompt, true where the loss counts it.
        rejected: token ids of the rejected response of a pair; None for all else.
        is_truncated: the end of a response was cut off.
        images: `multi_modal_inputs` of the prompt; None without images.
    """

    tokens: list[int]
    prompt_length: int
    action_mask: list[bool]
    rejected: list[int] | None = None
    is_truncated: bool = False
    images: dict[str, Tensor] | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the longest sequence: prompt and response."""
        return max(len(self.tokens), self.prompt_length + len(self.rejected or ()))

    @property
    def num_bytes(self) -> int:
        """Memory of tokens (8 bytes each) and encoded images, in bytes."""
        images = 0 if self.images is None else sum(each.numel() * each.element_size() for each in self.images.values())
        return 8 * self.num_tokens + images

    def shortened(self, limit: int) -> TokenizedRow | None:
        """Return the row with each sequence cut to `limit` tokens.

        Only responses are cut. Return None if nothing is left, or if the cut makes both responses of a pair equal.
        """
        room = limit - self.prompt_length
        if room < 1:
            return None
        tokens, rejected = self.tokens[:limit], None if self.rejected is None else self.rejected[:room]
        if rejected is not None and tokens[self.prompt_length :] == rejected:
            return None
        return replace(self, tokens=tokens, action_mask=self.action_mask[:room], rejected=rejected, is_truncated=True)


class Formatter(Protocol):
    """Turns rows of texts or messages into rows of tokens."""

    kind: str

    def __call__(self, values: Mapping[str, Any]) -> TokenizedRow:
        """Return the tokens of a row that passed `training_row_faults`.

        Raises:
            DataError: the row cannot be used.
            EnvironmentProblem: no chat template, or one that fails.
        """
        ...


def make_formatter(
    schema: str,
    fmt: FormatConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    kind: str,
    images: PreparedImages | None = None,
) -> Formatter:
    """Return the formatter of a kind of training.

    Args:
        schema: `sft`, `dpo` or `cpt`.
        fmt: names of the columns and the form of the rows.
        tokenizer: with its chat template.
        kind: `plaintext` or `messages`.
        images: prepares images for the model, for `sft` only; None: the model reads no images.

    Raises:
        ConfigError: another schema (E1613).
    """
    if schema == "sft":
        return SFTFormatter(fmt, tokenizer, kind=kind, images=images)
    formatters: dict[str, type[DPOFormatter] | type[CPTFormatter]] = {
        "dpo": DPOFormatter,
        "cpt": CPTFormatter,
    }
    if schema not in formatters:
        known = ", ".join(["sft", *formatters])
        raise ConfigError(f"a dataset is read for one of {known}, got {schema!r}", code="E1613")
    return formatters[schema](fmt, tokenizer, kind=kind)


class _ChatFormatter:
    """Renders conversations with a chat template.

    The template of the format is used; without one, that of the tokenizer.
    """

    def __init__(self, fmt: FormatConfig, tokenizer: PreTrainedTokenizerBase, *, kind: str) -> None:
        self.fmt = fmt
        self.tokenizer = tokenizer
        self.kind = kind
        self.answers = AnswerRenderer(
            tokenizer,
            chat_template=fmt.chat_template,
            enable_thinking=fmt.enable_thinking,
            stop_ids=stop_token_ids(tokenizer.name_or_path, tokenizer) if tokenizer.name_or_path else (),
        )

    def tools_of(self, values: Mapping[str, Any]) -> list[Message] | None:
        """Return the tools of a row; None without any."""
        return values.get(self.fmt.tools_key) or None

    def each_answer(
        self, prompt: list[Message], answers: list[Message], tools: list[Message] | None
    ) -> tuple[list[int], list[list[int]]]:
        """Return the tokens of the prompt and of each response.

        Raises:
            DataError: the template writes nothing for a response; or a response has no text, and the template does
                not continue from the opening that it writes in a prompt (E4021).
        """
        tokens, responses = self.answers.each(prompt, answers, tools)
        return tokens, [self.ended(response) for response in responses]

    def ended(self, response: list[int]) -> list[int]:
        """Return the response with an end token.

        The end-of-text token is added where the template writes no end-of-turn token.
        """
        eos = self.tokenizer.eos_token_id
        return response if eos is None or self.answers.has_end(response) else [*response, eos]


class SFTFormatter(_ChatFormatter):
    """Turns conversations into rows whose responses are imitated.

    Images are in the prompt, as parts of its messages or in the column `image_key`.

    Args:
        fmt: names of the columns and the form of the rows.
        tokenizer: with its chat template.
        kind: `plaintext` or `messages`.
        images: prepares images for the model; None: the model reads no images.
    """

    def __init__(
        self,
        fmt: FormatConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        kind: str,
        images: PreparedImages | None = None,
    ) -> None:
        super().__init__(fmt, tokenizer, kind=kind)
        self.images = images

    def __call__(self, values: Mapping[str, Any]) -> TokenizedRow:
        """Return the tokens of a row.

        The last response is learned, or all responses with `enable_concatenated_multi_turn`.

        Raises:
            DataError: a template that writes no response or rewrites earlier turns (E4021), or images that cannot be
                used (E4031, E4032, E4035).
            EnvironmentProblem: no chat template, or one that fails (E3107, E3109).
        """
        if self.kind == "messages":
            messages = [dict(message) for message in values[self.fmt.messages_key]]
        else:
            answer = {"role": "assistant", "content": str(values[self.fmt.response_key])}
            messages = [*prompt_messages(self.fmt, values), answer]
        tools = self.tools_of(values)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        is_all = self.kind == "messages" and self.fmt.enable_concatenated_multi_turn
        messages, pictures = self._seen(messages[: answers[-1] + 1], values, is_all=is_all)
        if is_all:
            return self._with_images(self._all_answers(messages, tools), pictures)
        prompt, (response,) = self.each_answer(messages[:-1], messages[-1:], tools)
        return self._with_images(TokenizedRow(prompt + response, len(prompt), [True] * len(response)), pictures)

    def _seen(
        self, messages: list[Message], values: Mapping[str, Any], *, is_all: bool
    ) -> tuple[list[Message], list[Picture]]:
        """Return the messages for the chat template, and the row's images."""
        messages = with_row_images(messages, values, self.fmt.image_key)
        if not has_images(messages):
            return messages, []
        if self.images is None:
            raise DataError("the row has an image, and the model reads none here", code="E4035")
        if has_images(messages[-1:]) or (is_all and answers_have_images(messages)):
            raise DataError("an image stands after the first trained response; it must stand before it", code="E4035")
        return self.images.split(messages)

    def _with_images(self, row: TokenizedRow, pictures: list[Picture]) -> TokenizedRow:
        """Return the row with the tokens of its images in its prompt."""
        if not pictures or self.images is None:
            return row
        from trinity.common.images.picture import as_inputs, plain  # with torch, whose import takes seconds

        response = row.tokens[row.prompt_length :]
        if self.images.image_token in response:
            raise DataError("a response has the token of an image, and no image", code="E4032")
        keys = self.images.expanded(row.tokens[: row.prompt_length], pictures)
        tokens = plain(keys, self.images.image_token) + response
        return replace(row, tokens=tokens, prompt_length=len(keys), images=as_inputs(keys, pictures))

    def _all_answers(self, messages: list[Message], tools: list[Message] | None) -> TokenizedRow:
        tokens, spans = self.answers.all(
            messages, tools, as_said=False, way_out="set format.enable_concatenated_multi_turn to false"
        )
        begin, end = spans[-1]
        spans[-1] = (begin, begin + len(self.ended(tokens[begin:end])))
        tokens = tokens[:begin] + self.ended(tokens[begin:end])
        start = spans[0][0]
        mask = [False] * (len(tokens) - start)
        for begin, end in spans:
            mask[begin - start : end - start] = [True] * (end - begin)
        return TokenizedRow(tokens, start, mask)


class DPOFormatter(_ChatFormatter):
    """Turns a prompt with a chosen and a rejected response into a pair.

    Args:
        fmt: names of the columns and the form of the rows.
        tokenizer: with its chat template.
        kind: `plaintext` or `messages`.
    """

    def __call__(self, values: Mapping[str, Any]) -> TokenizedRow:
        """Return the pair of a row.

        Raises:
            DataError: no pair (E4011, E4012, E4020, E4022), one whose responses have the same tokens (E4022), or a
                template that writes no response (E4021).
            EnvironmentProblem: no chat template, or one that fails (E3107, E3109).
        """
        pair = split_pair(self.fmt, values, kind=self.kind)
        if isinstance(pair, Fault):
            raise DataError(f"{pair.key} {pair.reason}", code=pair.code)
        tools = self.tools_of(values)
        prompt, (chosen, rejected) = self.each_answer(pair.prompt, [pair.chosen, pair.rejected], tools)
        if chosen == rejected:
            raise DataError("chosen and rejected have the same tokens, so that nothing is preferred", code="E4022")
        return TokenizedRow(prompt + chosen, len(prompt), [True] * len(chosen), rejected)


class CPTFormatter:
    """Turns a text into a row whose tokens, except the first, are all learned.

    Args:
        fmt: names of the columns.
        tokenizer: ends the text with its end-of-text token, if it has one.
        kind: `plaintext`.
    """

    def __init__(self, fmt: FormatConfig, tokenizer: PreTrainedTokenizerBase, *, kind: str) -> None:
        self.fmt = fmt
        self.tokenizer = tokenizer
        self.kind = kind

    def __call__(self, values: Mapping[str, Any]) -> TokenizedRow:
        """Return the tokens of a row.

        Raises:
            DataError: fewer than two tokens (E4024).
        """
        tokens = encode_text(self.tokenizer, values[self.fmt.prompt_key])
        eos = self.tokenizer.eos_token_id
        if eos is not None and tokens[-1:] != [eos]:
            tokens = [*tokens, eos]
        if len(tokens) < 2:
            raise DataError(f"a text needs two tokens to learn from, got {len(tokens)}", code="E4024")
        return TokenizedRow(tokens, 1, [True] * (len(tokens) - 1))
