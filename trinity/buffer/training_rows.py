"""What a row of a dataset for training must hold; without torch.

For `sft` a prompt and a response, or a conversation; for `dpo` a prompt, a preferred and a rejected response; for `cpt`
a text; for `experience` the payload of a stored experience.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trinity.buffer.checks import Fault, messages_fault, prompt_type, row_faults, text_fault
from trinity.common.config.buffer import FormatConfig
from trinity.common.config.row_schemas import SCHEMAS
from trinity.utils.nested import as_written, without_null
from trinity.utils.system_prompt import chosen_system_prompt

Message = dict[str, Any]


class Pair(NamedTuple):
    """Two responses to one prompt.

    Attributes:
        prompt: the messages before the responses.
        chosen: the preferred response, a message.
        rejected: the other one.
    """

    prompt: list[Message]
    chosen: Message
    rejected: Message


def form_of(schema: str, fmt: FormatConfig, columns: Iterable[str]) -> str:
    """Return the schema's only form, or that of the rows; see `prompt_type`."""
    forms = list(SCHEMAS[schema].forms) if schema in SCHEMAS else []
    return forms[0] if len(forms) == 1 else prompt_type(fmt, columns)


def decoded(fmt: FormatConfig, values: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    """Return the row with JSON texts of messages and tools as lists.

    Null entries are removed, so that a chat template sees what was written; only the content of a message may be null.
    """
    row = dict(values)
    keys = [fmt.tools_key]
    keys += [fmt.messages_key, fmt.chosen_key, fmt.rejected_key] if kind == "messages" else []
    for key in keys:
        if key in row:
            row[key] = as_written(row[key], kept="" if key == fmt.tools_key else "content")
    if isinstance(row.get(fmt.prompt_key), list):
        row[fmt.prompt_key] = without_null(row[fmt.prompt_key], kept="content")
    return row


def training_row_faults(schema: str, fmt: FormatConfig, values: Mapping[str, Any], *, kind: str) -> Iterator[Fault]:
    """Yield what is wrong with a row, decoded, of a dataset for training.

    Args:
        schema: `sft`, `dpo`, `cpt` or `experience`.
        fmt: names of the columns.
        values: the row.
        kind: `plaintext` or `messages`.
    """
    if schema == "experience":
        if not values.get("size"):
            yield Fault("experience_bytes", "is null: the payload was removed after training, or too large", "E5104")
        return
    if schema == "cpt":
        fault = text_fault(fmt.prompt_key, values.get(fmt.prompt_key))
        if fault is not None:
            yield fault
        return
    if schema == "dpo":
        pair = split_pair(fmt, values, kind=kind)
        if isinstance(pair, Fault):
            yield pair
    else:
        faults = list(row_faults(fmt, values, kind=kind, has_prompt=True, needs_truth=kind == "plaintext"))
        yield from faults
        if kind == "messages" and not faults:
            roles = [message["role"] for message in values[fmt.messages_key]]
            if "assistant" not in roles[1:] or roles[0] == "assistant":
                yield Fault(fmt.messages_key, "no assistant message that answers a user", "E4020")
        answer = values.get(fmt.response_key)
        if kind == "plaintext" and isinstance(answer, list | Mapping):
            yield Fault(fmt.response_key, f"must be text, got {_kind_of(answer)}", "E4011")
    fault = tools_fault(fmt.tools_key, values.get(fmt.tools_key))
    if fault is not None:
        yield fault


def tools_fault(key: str, tools: Any) -> Fault | None:
    """Return why `tools` is not a list of descriptions (E4023), or None.

    Null means no tools.
    """
    if tools is None or (isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools)):
        return None
    return Fault(key, f"must be a list of mappings, one a tool, got {_kind_of(tools)}", "E4023")


def prompt_messages(fmt: FormatConfig, values: Mapping[str, Any]) -> list[Message]:
    """Return the prompt of a plain-text row as messages.

    These are the system prompt, if there is one, and the user's prompt.
    """
    prompt = values[fmt.prompt_key]
    messages = [dict(message) for message in prompt] if isinstance(prompt, list) else []
    if messages:
        return messages
    system = system_prompt_of(fmt, values)
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": prompt}]


def system_prompt_of(fmt: FormatConfig, values: Mapping[str, Any]) -> str | None:
    """Return the system prompt of a plain-text row, as workflows choose it."""
    of_row = values.get(fmt.system_prompt_key) if fmt.system_prompt_key else None
    return chosen_system_prompt(of_row, fmt.system_prompt)


def split_pair(fmt: FormatConfig, values: Mapping[str, Any], *, kind: str) -> Pair | Fault:
    """Return prompt and responses of a DPO row, or its fault.

    In the `messages` form the prompt is the column `messages_key`; without it, the prompt is the common beginning of
    both conversations. Faults are E4011, E4012, E4020 and E4022.
    """
    pair = _pair_of_messages(fmt, values) if kind == "messages" else _pair_of_texts(fmt, values)
    if isinstance(pair, Pair) and pair.chosen == pair.rejected:
        return Fault(fmt.rejected_key, f"is equal to {fmt.chosen_key}, so that nothing is preferred", "E4022")
    return pair


def _pair_of_texts(fmt: FormatConfig, values: Mapping[str, Any]) -> Pair | Fault:
    for key in (fmt.prompt_key, fmt.chosen_key, fmt.rejected_key):
        value = values.get(key)
        if isinstance(value, list | Mapping):
            reason = f"must be text, as prompt_type plaintext says, got {_kind_of(value)}"
            return Fault(key, f"{reason}; write `prompt_type: messages` for conversations", "E4022")
        fault = text_fault(key, value)
        if fault is not None:
            return fault
    chosen, rejected = ({"role": "assistant", "content": values[key]} for key in (fmt.chosen_key, fmt.rejected_key))
    return Pair(prompt_messages(fmt, values), chosen, rejected)


def _pair_of_messages(fmt: FormatConfig, values: Mapping[str, Any]) -> Pair | Fault:
    sides: list[list[Message]] = []
    for key in (fmt.chosen_key, fmt.rejected_key):
        value = values.get(key)
        value = [value] if isinstance(value, Mapping) else value
        if value is None or value == "" or value == []:
            return Fault(key, "is null" if value is None else "is empty", "E4011")
        if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
            reason = f"must be a list of messages, as prompt_type messages says, got {_kind_of(value)}"
            return Fault(key, f"{reason}; write `prompt_type: plaintext` for texts", "E4022")
        sides.append([dict(message) for message in value])
    prompt = values[fmt.messages_key] if fmt.messages_key in values else _common_beginning(*sides)
    if not isinstance(prompt, list):
        return Fault(fmt.messages_key, f"must be a list of messages, got {_kind_of(prompt)}", "E4020")
    answers = [side[len(prompt) :] if side[: len(prompt)] == prompt else side for side in sides]
    for key, answer in zip((fmt.chosen_key, fmt.rejected_key), answers, strict=True):
        fault = messages_fault(key, [*prompt, *answer])
        if fault is not None:
            return fault
        if len(answer) != 1 or answer[0]["role"] != "assistant":
            roles = ", ".join(message["role"] for message in answer) or "nothing"
            return Fault(key, f"must add one assistant message to the prompt, got {roles}", "E4022")
    return Pair([dict(message) for message in prompt], answers[0][0], answers[1][0])


def _common_beginning(first: list[Message], second: list[Message]) -> list[Message]:
    """Return the messages that both begin with, at most all but the last."""
    length = 0
    while length < min(len(first), len(second)) - 1 and first[length] == second[length]:
        length += 1
    return first[:length]


def _kind_of(value: Any) -> str:
    if isinstance(value, list):
        return f"a list with {', '.join(sorted({type(inner).__name__ for inner in value})) or 'nothing'}"
    return type(value).__name__
