"""The limit on the length of prompts, counted with the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trinity.common.config.buffer import FormatConfig
from trinity.common.models.chat_template import render_chat
from trinity.utils.nested import as_written

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PromptLimit:
    """The longest prompt of a taskset.

    Attributes:
        tokenizer: of the model, with its chat template.
        max_tokens: tokens of the longest prompt.
    """

    tokenizer: PreTrainedTokenizerBase
    max_tokens: int

    def num_tokens(self, fmt: FormatConfig, values: Mapping[str, Any], *, kind: str) -> int:
        """Return the number of tokens of a row's prompt.

        The prompt is in the columns of the format; `kind` is `plaintext` or `messages`. The chat template and the
        opening of the response count as well. An image counts as its placeholder in the text.

        Raises:
            EnvironmentProblem: no chat template, or it fails.
        """
        prompt = values.get(fmt.messages_key if kind == "messages" else fmt.prompt_key)
        messages = [dict(message) for message in prompt] if isinstance(prompt, list) else []
        if isinstance(prompt, str):
            system = (values.get(fmt.system_prompt_key) if fmt.system_prompt_key else None) or fmt.system_prompt
            messages = [{"role": "system", "content": system}] if system else []
            messages.append({"role": "user", "content": prompt})
        tools = as_written(values.get(fmt.tools_key)) or None
        return len(render_chat(self.tokenizer, messages, tools=tools, chat_template=fmt.chat_template)[0])
