"""Rules for the columns of a row.

Nothing here imports torch, so that `trinity validate` can use it. The further rules for the rows of a dataset that is
trained on are in `trinity.buffer.training_rows`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from trinity.common.config.buffer import FormatConfig
from trinity.common.images.messages import IMAGE_PARTS

ROLES = ("system", "developer", "user", "assistant", "tool")
CONTROL_TOKEN = re.compile(r"<\|[A-Za-z0-9_]{1,40}\|>")
_SHOWN = 120
_COLUMN_KEYS = (
    "prompt_key", "response_key", "messages_key", "system_prompt_key", "chosen_key", "rejected_key", "tools_key",
    "workflow_key", "reward_fn_key", "image_key",
)  # fmt: skip
_DEFAULT_NAMES = dict(FormatConfig())


class Fault(NamedTuple):
    """What is wrong with a value.

    Attributes:
        key: the column.
        reason: what is wrong.
        code: identifier of the rule.
    """

    key: str
    reason: str
    code: str


def prompt_type(fmt: FormatConfig, columns: Iterable[str]) -> str:
    """Return `plaintext` or `messages`.

    The configured type is used; without one, the existing columns decide.
    """
    if fmt.prompt_type is not None:
        return str(fmt.prompt_type)
    names = set(columns)
    return "messages" if fmt.messages_key in names and fmt.prompt_key not in names else "plaintext"


def missing_columns(fmt: FormatConfig, columns: Sequence[str], *, needs: Iterable[str]) -> list[Fault]:
    """Return a fault (E4004) for every column that the dataset lacks.

    Columns that are needed and columns that are named explicitly are checked.

    Args:
        fmt: names of the columns.
        columns: columns of the dataset.
        needs: format keys that must exist, such as `prompt_key`.
    """
    faults = []
    names = {key: value for key, value in fmt if key in _COLUMN_KEYS and value is not None}
    named = {key for key, value in names.items() if value != _DEFAULT_NAMES.get(key)}
    kind = prompt_type(fmt, columns)
    unused = {"messages_key"} if kind == "plaintext" else {"prompt_key", "response_key"}
    for key in sorted((named | set(needs)) - unused):
        column = names[key]
        if column not in columns:
            near = difflib.get_close_matches(column, columns, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            if key == "prompt_key" and not near and "messages" in columns and fmt.prompt_type is None:
                hint = "for conversations write `messages_key: messages`; "
            reason = f"format.{key} is {column!r}, which is not a column; {hint}columns: {', '.join(sorted(columns))}"
            faults.append(Fault(column, reason, "E4004"))
    return faults


def missing_features(keys: Sequence[str], columns: Sequence[str]) -> list[Fault]:
    """Return a fault (E4004) for every feature column that the dataset lacks."""
    shown = ", ".join(sorted(columns))
    faults = []
    for key in (key for key in keys if key not in columns):
        near = difflib.get_close_matches(key, columns, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        reason = f"data_selector.feature_keys has {key!r}, which is not a column; {hint}columns: {shown}"
        faults.append(Fault(key, reason, "E4004"))
    return faults


def feature_of(value: Any) -> float | None:
    """Return the finite number in a feature column, else None.

    Numbers that are written as text, as in CSV files, are converted.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def feature_fault(keys: Sequence[str], values: Mapping[str, Any]) -> Fault | None:
    """Return the first feature of a row that is not a finite number (E4013)."""
    for key in keys:
        if feature_of(values.get(key)) is None:
            return Fault(key, f"must be a number, got {_shown(values.get(key))}", "E4013")
    return None


def text_fault(key: str, value: Any, *, may_be_number: bool = False) -> Fault | None:
    """Return why `value` cannot be a prompt, a response or a truth, or None."""
    if value is None:
        return Fault(key, "is null", "E4011")
    if not isinstance(value, str):
        is_number = may_be_number and isinstance(value, (int, float, list, dict))
        return None if is_number else Fault(key, f"must be text, got {type(value).__name__}", "E4011")
    if not value.strip():
        return Fault(key, "is empty", "E4011")
    if "\0" in value:
        return Fault(key, "contains NUL", "E4012")
    try:
        value.encode()  # finds a surrogate a hundred times faster than a check of each character
    except UnicodeEncodeError:
        return Fault(key, "contains a lone surrogate or invalid UTF-8", "E4012")
    return None


def messages_fault(key: str, messages: Any) -> Fault | None:
    """Return why `messages` is not a conversation (E4020), or None."""
    if not isinstance(messages, list) or not messages:
        return Fault(key, f"must be a list of messages, got {_shown(messages)}", "E4020")
    before = ""
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ROLES:
            return _bad_message(key, number, message, f"role must be one of {', '.join(ROLES)}")
        if role == before == "assistant":
            return _bad_message(key, number, message, "two assistant messages in a row")
        content = message.get("content")
        is_call = role == "assistant" and message.get("tool_calls")
        is_result = role == "tool" and isinstance(content, Mapping)
        if isinstance(content, list):
            fault = parts_fault(key, content)
        else:
            fault = None if is_call or is_result else text_fault(key, content)
        if fault is not None:
            return _bad_message(key, number, message, f"content {fault.reason}")
        before = role
    if all(message["role"] != "user" for message in messages):
        return Fault(key, f"no user message in {_shown(messages)}", "E4020")
    return None


def parts_fault(key: str, parts: Sequence[Any]) -> Fault | None:
    """Return why the parts of a content are not texts and images, or None.

    Whether the images can be read is not checked here.
    """
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind in IMAGE_PARTS:
            continue
        if kind != "text":
            known = ", ".join(("text", *IMAGE_PARTS))
            return Fault(key, f"part {number} must have one of the types {known}, got {kind!r}", "E4020")
        text = part.get("text")
        fault = text_fault(key, text)
        if fault is not None and text != "":
            return Fault(key, f"part {number}: text {fault.reason}", fault.code)
    if any(part.get("text") or part["type"] in IMAGE_PARTS for part in parts):
        return None
    return Fault(key, "has no text and no image in its parts", "E4020")


def _bad_message(key: str, number: int, message: Any, why: str) -> Fault:
    return Fault(key, f"message {number}: {why}: {_shown(message)}", "E4020")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def row_faults(
    fmt: FormatConfig, values: Mapping[str, Any], *, kind: str, has_prompt: bool, needs_truth: bool
) -> Iterator[Fault]:
    """Yield what is wrong with the columns of a row.

    Args:
        fmt: names of the columns.
        values: the row.
        kind: `plaintext` or `messages`.
        has_prompt: the dataset has the prompt's column.
        needs_truth: check the column `response_key` too, which holds the truth or, in a dataset that is trained on, the
            response.
    """
    if kind == "messages" and has_prompt:
        fault = messages_fault(fmt.messages_key, values.get(fmt.messages_key))
    elif has_prompt:
        value = values.get(fmt.prompt_key)
        is_chat = isinstance(value, list)
        fault = messages_fault(fmt.prompt_key, value) if is_chat else text_fault(fmt.prompt_key, value)
    else:
        fault = None
    if fault is not None:
        yield fault
    system = values.get(fmt.system_prompt_key) if fmt.system_prompt_key and kind == "plaintext" else None
    if system is not None and not (isinstance(system, str) and not system.strip()):  # which means none
        fault = text_fault(str(fmt.system_prompt_key), system)
        if fault is not None:
            yield fault
    if needs_truth:
        fault = text_fault(fmt.response_key, values.get(fmt.response_key), may_be_number=True)
        if fault is not None:
            yield fault


def control_token(fmt: FormatConfig, values: Mapping[str, Any], *, kind: str) -> str | None:
    """Return a control token such as `<|im_end|>` in a row's text, or None."""
    content = values.get(fmt.messages_key if kind == "messages" else fmt.prompt_key)
    texts = [content] if isinstance(content, str) else []
    if isinstance(content, list):
        texts = [m["content"] for m in content if isinstance(m, Mapping) and isinstance(m.get("content"), str)]
    for text in texts:
        found = CONTROL_TOKEN.search(text)
        if found is not None:
            return found.group()
    return None
