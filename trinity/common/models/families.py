"""How trainer, critic and engines compute each model family, or why not.

The table of causal language model families is `families.json`; no other list of families exists.
`tools/family_table.py` writes it and its docs page from tiny models of all families that the installed transformers
knows, and tests verify both. The tool keeps three kinds of entries that it cannot find by trying: which families the
torch engine refuses, whose modules are renamed, and what `tools/vllm_families.py` has measured of vLLM. Imports
neither torch nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("families.json")
OWN = ("llama", "qwen2", "qwen3")
"""Families for which trainer and torch engine have their own forward pass; it uses every weight of the family."""
QKV_BIAS = ("qwen2", "qwen2_5_vl_text")
"""Types of language models whose queries, keys and values have a bias, and whose other products have none."""
VISION = ("qwen2_5_vl",)
"""Families with images that trainer and torch engine compute, with their own forward pass of the language model."""

REFUSED = "refused"
REFUSED_ON_CPU = "refused on a CPU"
ENGINE_WAY_OUT = "use explorer.rollout_model.engine_type: vllm, which may serve it"


@dataclass(frozen=True)
class Family:
    """Support for one `model_type`.

    Attributes:
        trainer: `own` (our forward), `packed` or `padded` (Hugging Face's forward over one packed list of rows, or over
            a padded rectangle), or `refused`.
        critic: the same for its value model.
        engine: how the torch engine computes it: `own`, `slots` or `rows` (Hugging Face's forward over rows side by
            side, or over one row a call), or `refused`.
        vllm: `right` (log-probabilities differ from transformers' by less than 2e-5 nats, before and after an update),
            `refused` (they differ more), `refused on a CPU` (they differ more there; other kernels were not measured),
            `not started` (vLLM fails to start, E3222), `not served` (vLLM has no model of it; for some families it
            falls back to transformers', which was not measured), or empty (not measured).
        is_renamed: its modules have other names than its files, or its output layer is one of several of that name.
        is_encoder: the torch engine serves it only if it was made a decoder (`is_decoder: true`).
        reasons: why it is not served, by the name of an attribute above.
    """

    trainer: str
    critic: str
    engine: str
    vllm: str = ""
    is_renamed: bool = False
    is_encoder: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_packed(self) -> bool:
        """Whether Hugging Face's forward accepts rows packed as one list.

        Also true for `own` families, whose unusual forms our forward pass does not cover.
        """
        return self.trainer in ("own", "packed")


@cache
def table() -> dict[str, Any]:
    """Return the table of families, with the package versions of its making."""
    made: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return made


@cache
def families() -> Mapping[str, Family]:
    """Return the support for each family, by `model_type`."""
    return {name: Family(**entry) for name, entry in table()["families"].items()}


def trainer_problem(kind: str) -> str | None:
    """Return why models of type `kind` cannot be trained, or None.

    None also for a type that is newer than the table.
    """
    family = families().get(kind)
    if family is None or family.trainer != REFUSED:
        return None
    return (
        f"models of type {kind} cannot be trained: {family.reasons['trainer']}; give a causal language model of "
        "another family (docs/families.md lists them)"
    )


def critic_problem(kind: str) -> str | None:
    """Return why a model of type `kind` cannot be a critic, or None.

    None also for a type that is newer than the table.
    """
    family = families().get(kind)
    if kind not in VISION and (family is None or family.critic != REFUSED):
        return None
    fitting = ", ".join(name for name, entry in families().items() if entry.critic == "own")
    return (
        f"a model of type {kind} cannot be a critic: transformers has no causal model with one number a token for this "
        f"family; give model.critic_model_path a model of another family with the same vocabulary ({fitting}, ...), or "
        "choose an advantage without values (algorithm.advantage_fn: grpo)"
    )


def engine_problem(config: Mapping[str, Any]) -> str | None:
    """Return why the torch engine does not serve a model, or None.

    A family missing from the table is judged by the engine when it loads the model.

    Args:
        config: contents of the model's `config.json`.
    """
    kind = str(config.get("model_type"))
    family = families().get(kind)
    if family is None or family.engine != REFUSED or (family.is_encoder and config.get("is_decoder")):
        return None
    return f"the torch engine does not serve the model family {kind}: {family.reasons['engine']}; {ENGINE_WAY_OUT}"


def vllm_problem(kind: str, *, is_cpu: bool = False) -> str | None:
    """Return why a policy of type `kind` cannot sample with vLLM, or None.

    A type that is newer than the table is judged by the trial update when the engine starts.

    Args:
        kind: `model_type` of the model.
        is_cpu: vLLM computes on a CPU.
    """
    family, versions = families().get(kind), table()["vllm_measured_with"]
    if family is None or family.vllm not in ((REFUSED, REFUSED_ON_CPU) if is_cpu else (REFUSED,)):
        return None
    return (
        f"vLLM {versions['vllm']} computes {kind} models otherwise than transformers {versions['transformers']}, "
        f"which trains them{' (on a CPU)' if family.vllm == REFUSED_ON_CPU else ''}: {family.reasons['vllm']}; use "
        "--set explorer.rollout_model.engine_type=torch"
    )
