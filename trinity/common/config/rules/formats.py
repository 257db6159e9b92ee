"""Columns of a dataset that is trained on: which keys each algorithm and each form of rows reads."""

from __future__ import annotations

from trinity.common.config.buffer import FormatConfig
from trinity.common.config.draft import Draft

_TEXTS = frozenset({"prompt_key", "system_prompt_key", "system_prompt"})
_CHAT = frozenset({"tools_key", "chat_template", "enable_thinking"})
_PAIR = frozenset({"chosen_key", "rejected_key"})
_CONTENT = ("messages_key", "prompt_key", "response_key", "chosen_key", "rejected_key")
# Algorithm -> form of the rows -> keys that are read.
FORMS: dict[str, dict[str, frozenset[str]]] = {
    "sft": {
        "plaintext": _TEXTS | _CHAT | {"response_key"},
        "messages": _CHAT | {"messages_key", "enable_concatenated_multi_turn"},
    },
    "dpo": {"plaintext": _TEXTS | _CHAT | _PAIR, "messages": _CHAT | _PAIR | {"messages_key"}},
    "cpt": {"plaintext": frozenset({"prompt_key"})},
    "experience": {"plaintext": frozenset(), "messages": frozenset()},
}
# What says of itself which form the rows have, and what is refused elsewhere.
_NOT_CHECKED = ("prompt_type", "image_key", "video_key")
MULTI_TURN = "enable_concatenated_multi_turn"


def check_format(draft: Draft, section: str, algorithm: str) -> None:
    """Note a form that the algorithm cannot read, and keys that have no effect with it (E1834)."""
    forms = FORMS[algorithm]
    kind = draft.get(f"{section}.prompt_type")
    if kind is not None and kind not in forms:
        draft.problem(
            "E1834",
            f"{section}.prompt_type",
            f"`{section}.prompt_type: {kind}` does not fit algorithm_type {algorithm}",
            rule=f"one of {', '.join(forms)}",
            involves=("algorithm.algorithm_type",),
            suggestion=f"write `prompt_type: {next(iter(forms))}`",
        )
        return
    read = forms[kind] if kind is not None else frozenset().union(*forms.values())
    written = [name for name in FormatConfig.model_fields if name not in _NOT_CHECKED and _is_set(draft, section, name)]
    for name in written:
        if name not in read:
            _note_unread(draft, section, name, algorithm)
    if kind is None:
        _check_mixture(draft, section, [name for name in written if name in read], forms)
    _check_distinct(draft, section, written, [forms[kind]] if kind is not None else list(forms.values()))


def check_multi_turn(draft: Draft, section: str) -> None:
    """Refuse `enable_concatenated_multi_turn` where no conversations are imitated (E1834)."""
    if _is_set(draft, section, MULTI_TURN):
        _note_unread(draft, section, MULTI_TURN, draft.get("algorithm.algorithm_type"))


def _is_set(draft: Draft, section: str, name: str) -> bool:
    key = f"{section}.{name}"
    return draft.is_own(key) and draft.get(key) is not False


def _note_unread(draft: Draft, section: str, name: str, algorithm: str) -> None:
    form = next((form for form, keys in FORMS.get(algorithm, {}).items() if name in keys), None)
    readers = [other for other, forms in FORMS.items() if any(name in keys for keys in forms.values())]
    if form is not None:
        why = f"is read with prompt_type {form}, and prompt_type is {draft.get(f'{section}.prompt_type')}"
    elif readers:
        is_other = algorithm in FORMS and draft.get("algorithm.algorithm_type") != algorithm
        own = "demonstrations" if is_other else algorithm
        why = f"is read for algorithm_type {' and '.join(readers)}, not for {own}"
    else:
        why = "belongs to tasks, not to a dataset that is trained on"
    draft.problem(
        "E1834",
        f"{section}.{name}",
        f"`{section}.{name}` has no effect: it {why}",
        involves=("algorithm.algorithm_type", f"{section}.prompt_type"),
        suggestion="remove it",
    )


def _check_distinct(draft: Draft, section: str, written: list[str], forms: list[frozenset[str]]) -> None:
    """Refuse one column for two purposes, such as the prompt and the answer."""
    for name in (name for name in _CONTENT if name in written):
        beside = {other for keys in forms if name in keys for other in keys} - {name}
        column = draft.get(f"{section}.{name}")
        same = [other for other in _CONTENT if other in beside and draft.get(f"{section}.{other}") == column]
        if not same or (same[0] in written and _CONTENT.index(same[0]) > _CONTENT.index(name)):
            continue
        draft.problem(
            "E1834",
            f"{section}.{name}",
            f"`{section}.{name}` is the column {column}, and so is {same[0]}",
            rule="a column of its own for each",
            involves=("algorithm.algorithm_type", f"{section}.prompt_type"),
            suggestion="name another column",
        )


def _check_mixture(draft: Draft, section: str, written: list[str], forms: dict[str, frozenset[str]]) -> None:
    """Note keys of both forms where none is chosen."""
    own = {
        form: [name for name in written if not any(name in keys for other, keys in forms.items() if other != form)]
        for form in forms
    }
    if len(forms) < 2 or not all(own.values()):
        return
    texts, messages = own["plaintext"][0], own["messages"][0]
    draft.problem(
        "E1834",
        f"{section}.{messages}",
        f"`{section}.{messages}` is for rows of messages, and {texts} for rows of texts",
        involves=(f"{section}.{texts}",),
        suggestion="keep one of them, or write `prompt_type`",
    )
