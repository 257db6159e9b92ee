"""How each family of causal language models is trained: read from a table that trying every family has made.

The table is `families.json`; `tools/family_table.py` writes it and its page from tiny models of all families that the
installed transformers knows, and the tests hold both to what is so. Imports neither torch nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("families.json")
REFUSED = "refused"


@dataclass(frozen=True)
class Family:
    """What is known of one `model_type`.

    Attributes:
        trainer: `own` (our forward), `packed` or `padded` (Hugging Face's forward over one list of rows, or over a
            rectangle), or `refused`.
        critic: likewise of its value model.
        engine: how the embedded engine computes it: `own`, `slots` or `rows` (Hugging Face's forward over rows side by
            side, or over one row a call), or `refused`.
        reason: why it is refused; empty where it is not.
    """

    trainer: str
    critic: str
    engine: str
    reason: str = ""

    @property
    def is_packed(self) -> bool:
        """Whether Hugging Face's forward may be given rows as one list; also in forms that our own does not know."""
        return self.trainer in ("own", "packed")


@cache
def families() -> Mapping[str, Family]:
    """Return what is known of each family, by `model_type`."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Family(**entry) for name, entry in table["families"].items()}


def trainer_problem(kind: str) -> str | None:
    """Return why models of type `kind` cannot be trained; None if they can, or if the type is newer than the table."""
    family = families().get(kind)
    if family is None or family.trainer != REFUSED:
        return None
    return (
        f"models of type {kind} cannot be trained: {family.reason}; give a causal language model of another family "
        "(docs/families.md lists them)"
    )


def critic_problem(kind: str) -> str | None:
    """Return why a model of type `kind` cannot be a critic; None if it can, or if the type is newer than the table."""
    family = families().get(kind)
    if family is None or family.critic != REFUSED:
        return None
    fitting = ", ".join(name for name in ("llama", "qwen2", "qwen3", "mistral", "gemma2") if name in families())
    return (
        f"a model of type {kind} cannot be a critic: transformers has no causal model with one number a token for this "
        f"family; give model.critic_model_path a model of another family with the same vocabulary ({fitting}, ...), or "
        "choose an advantage without values (algorithm.advantage_fn: grpo)"
    )
