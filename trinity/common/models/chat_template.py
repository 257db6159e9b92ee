"""Chat templates: which one applies, and rendering in a sandbox.

A template comes with a model or from a user's file, and it is a program. Hugging Face renders it in Jinja's immutable
sandbox, which blocks access to Python internals and files.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from trinity.common.config.model import ModelConfig
from trinity.common.errors import EnvironmentProblem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PLAIN_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
# Rust tokenizers fail in one thread while another changes their padding or truncation ("Already borrowed").
_lock = threading.Lock()


class _Generation(jinja2.ext.Extension):
    """Jinja extension for `generation` tags, which mark the assistant's part."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def load_tokenizer(model: ModelConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer of `model` with the configured chat template.

    `chat_template_path` has priority over `custom_chat_template`, and that over the tokenizer's own. A missing template
    is an error only once a conversation is rendered.

    Raises:
        EnvironmentProblem: no tokenizer (E3102), an unreadable template file, or one with a syntax error
            (E3109, with its line).
    """
    try:
        tokenizer = _tokenizer_class(model.model_path).from_pretrained(
            model.model_path, trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"cannot read the tokenizer of {model.model_path}: {error}", code="E3102") from error
    template = chosen_template(model)
    if template is not None:
        check_template(template, source=model.chat_template_path or "model.custom_chat_template")
        tokenizer.chat_template = template
    return tokenizer


def _tokenizer_class(model_path: str) -> Any:
    """Return the class that reads the tokenizer as it was saved.

    For some model types, Qwen2 among them, AutoTokenizer rebuilds the family's usual tokenizer even if the folder names
    the plain class, and drops the folder's own rules for splitting text.
    """
    import transformers

    file = Path(model_path) / "tokenizer_config.json"
    named = json.loads(file.read_text(encoding="utf-8")).get("tokenizer_class") if file.is_file() else None
    is_plain = named in _PLAIN_CLASSES and (file.parent / "tokenizer.json").is_file()
    return getattr(transformers, "PreTrainedTokenizerFast" if is_plain else "AutoTokenizer")


def chosen_template(model: ModelConfig) -> str | None:
    """Return the configured template, or None for the tokenizer's own.

    Raises:
        EnvironmentProblem: `chat_template_path` cannot be read (E3109).
    """
    if model.chat_template_path is None:
        return model.custom_chat_template
    try:
        return Path(model.chat_template_path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentProblem(
            f"model.chat_template_path {model.chat_template_path} cannot be read: {error}", code="E3109"
        ) from error


def check_template(template: str, *, source: str) -> None:
    """Verify the syntax of a template.

    Raises:
        EnvironmentProblem: the message names `source` and the line (E3109).
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(extensions=[_Generation, jinja2.ext.loopcontrols])
    try:
        environment.parse(template)
    except jinja2.TemplateSyntaxError as error:
        raise EnvironmentProblem(
            f"chat template {source}, line {error.lineno}: {error.message}", code="E3109"
        ) from error


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    is_prompt: bool = True,
    enable_thinking: bool | None = None,
    chat_template: str | None = None,
    with_mask: bool = False,
) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation and its assistant mask.

    The mask has a 1 for each token that the template marks as the assistant's. It is empty without `with_mask`.

    Args:
        tokenizer: tokenizer with its chat template.
        messages: the conversation.
        tools: tool descriptions for the template.
        is_prompt: end with the opening of an assistant message.
        enable_thinking: passed to the template if not None.
        chat_template: replaces the tokenizer's.
        with_mask: return the mask; the template must have `generation` tags.

    Raises:
        EnvironmentProblem: no template (E3107), or the template failed (E3109, with its line).
    """
    options: dict[str, Any] = {
        "tools": tools,
        "chat_template": chat_template,
        "add_generation_prompt": is_prompt,
        "tokenize": True,
        "return_dict": True,
        "return_assistant_tokens_mask": with_mask,
        "enable_thinking": enable_thinking,
    }
    if with_mask:
        options["tokenizer_kwargs"] = {"return_offsets_mapping": True}
    encoded = _apply(tokenizer, messages, options)
    tokens = list(encoded["input_ids"])
    if not with_mask:
        return tokens, []
    mask, offsets = list(encoded["assistant_masks"]), encoded["offset_mapping"]
    for place in range(1, len(tokens)):
        # If a marked part ends in a character of several tokens, transformers marks only the first of them.
        mask[place] |= mask[place - 1] and int(offsets[place][0] < offsets[place - 1][1])
    return tokens, mask


def chat_text(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    is_prompt: bool = True,
    enable_thinking: bool | None = None,
    chat_template: str | None = None,
) -> str:
    """Return the text of a conversation, whose tokens `render_chat` returns."""
    options = {
        "tools": tools,
        "chat_template": chat_template,
        "add_generation_prompt": is_prompt,
        "tokenize": False,
        "enable_thinking": enable_thinking,
    }
    return str(_apply(tokenizer, messages, options))


def _apply(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, Any]], options: dict[str, Any]) -> Any:
    """Return the result of the tokenizer's `apply_chat_template`.

    An `enable_thinking` of None is not passed to the template.

    Raises:
        EnvironmentProblem: see `render_chat`.
    """
    if not (options["chat_template"] or tokenizer.chat_template):
        raise EnvironmentProblem(
            f"the tokenizer in {tokenizer.name_or_path} has no chat template; set model.chat_template_path or "
            "model.custom_chat_template, or use prompts of plain text (generate)",
            code="E3107",
        )
    if options["enable_thinking"] is None:
        del options["enable_thinking"]
    messages = [_with_texts_joined(message) for message in messages]
    if any(isinstance(message.get("content"), Mapping) for message in messages):
        messages = _with_results_written(tokenizer, messages, options)
    return _rendered(tokenizer, messages, options)


def _with_texts_joined(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with one text in place of parts that are texts.

    Templates of models for text write a list as Python shows it; those of models for images write both alike.
    """
    content = message.get("content")
    if not isinstance(content, list) or not content:
        return message
    texts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
    if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
        return message
    return {**message, "content": "".join(map(str, texts))}


def _with_results_written(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, Any]], options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return messages whose mappings, results of tools, are written.

    The template is given them as they are. One that fails on them, or that writes nothing of them as Qwen3's does, is
    given JSON text.
    """
    kept = ("tools", "chat_template", "add_generation_prompt", "enable_thinking")
    plain = {key: options[key] for key in kept if key in options} | {"tokenize": False}
    try:
        text = _rendered(tokenizer, messages, plain)
        if text != _rendered(tokenizer, _replaced(messages, lambda content: ""), plain):
            return list(messages)
    except EnvironmentProblem:
        pass
    return _replaced(messages, lambda content: json.dumps(content, ensure_ascii=False))


def _replaced(messages: Sequence[dict[str, Any]], change: Callable[[Any], str]) -> list[dict[str, Any]]:
    return [
        {**message, "content": change(message["content"])} if isinstance(message.get("content"), Mapping) else message
        for message in messages
    ]


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, Any]], options: dict[str, Any]) -> Any:
    try:
        with _lock:
            return tokenizer.apply_chat_template(list(messages), **options)
    except jinja2.TemplateSyntaxError as error:
        raise EnvironmentProblem(f"chat template, line {error.lineno}: {error.message}", code="E3109") from error
    except jinja2.TemplateError as error:
        raise EnvironmentProblem(
            f"chat template, line {_template_line(error)}: {type(error).__name__}: {error.message}", code="E3109"
        ) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if _template_line(error) is None:
            raise
        raise EnvironmentProblem(
            f"chat template, line {_template_line(error)}: {type(error).__name__}: {error}", code="E3109"
        ) from error


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str, *, is_whole: bool = True) -> list[int]:
    """Return the tokens of a text.

    Args:
        tokenizer: the tokenizer.
        text: the text.
        is_whole: add the tokenizer's special tokens; False for part of a longer text.
    """
    with _lock:
        return list(tokenizer(text, add_special_tokens=is_whole)["input_ids"])


def decode_tokens(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], *, skip_special: bool = False) -> str:
    """Return the text of tokens, with special tokens unless `skip_special`."""
    with _lock:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=skip_special))


def _template_line(error: BaseException) -> int | None:
    """Return the template's line in a traceback; None if it has none."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
