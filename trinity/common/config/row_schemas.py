"""The schemas of rows that are trained on: storages, forms and columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MULTI_TURN = "enable_concatenated_multi_turn"
_TEXTS = frozenset({"prompt_key", "system_prompt_key", "system_prompt"})
_CHAT = frozenset({"tools_key", "chat_template", "enable_thinking"})
_PAIR = frozenset({"chosen_key", "rejected_key"})
_IMAGES = frozenset({"image_key"})


@dataclass(frozen=True)
class RowSchema:
    """What the rows of one schema are.

    Attributes:
        forms: the keys of `format` that are read, by form of the rows (`prompt_type`); a single form needs no choice.
        needed: those whose columns must exist; of those for texts and for messages, the ones in use.
        auxiliary: the storages of an auxiliary buffer that may hold such rows.
    """

    forms: Mapping[str, frozenset[str]]
    needed: frozenset[str] = frozenset()
    auxiliary: frozenset[str] = frozenset()


# In this order: a storage that may hold several holds the first where nothing is written.
SCHEMAS: dict[str, RowSchema] = {
    "experience": RowSchema({"plaintext": frozenset(), "messages": frozenset()}, auxiliary=frozenset({"sql", "queue"})),
    "sft": RowSchema(
        {
            "plaintext": _TEXTS | _CHAT | _IMAGES | {"response_key"},
            "messages": _CHAT | _IMAGES | {"messages_key", MULTI_TURN},
        },
        needed=frozenset({"prompt_key", "response_key", "messages_key"}),
        auxiliary=frozenset({"file", "sql"}),
    ),
    "dpo": RowSchema(
        {"plaintext": _TEXTS | _CHAT | _PAIR, "messages": _CHAT | _PAIR | {"messages_key"}},
        needed=_PAIR | {"prompt_key"},
    ),
    "cpt": RowSchema({"plaintext": frozenset({"prompt_key"})}, needed=frozenset({"prompt_key"})),
}


def auxiliary_schemas(storage: str) -> list[str]:
    """Return the schemas that an auxiliary buffer of a storage may have."""
    return [name for name, schema in SCHEMAS.items() if storage in schema.auxiliary]
