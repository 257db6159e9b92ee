"""What is known of each family of causal language models: how trainer, critic and engines compute it, or why not.

The table is `families.json`, and no other list of families is kept. `tools/family_table.py` writes it and its page from
tiny models of all families that the installed transformers knows, and the tests hold both to what is so. What it cannot
find by trying it leaves as it is written there: which families the torch engine refuses, and what
`tools/vllm_families.py` has measured of vLLM. Imports neither torch nor transformers.
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
"""Families that trainer and torch engine compute by forward passes of their own, which know each of their weights."""

REFUSED = "refused"
REFUSED_ON_CPU = "refused on a CPU"
ENGINE_WAY_OUT = "use explorer.rollout_model.engine_type: vllm, which may serve it"


@dataclass(frozen=True)
class Family:
    """What is known of one `model_type`.

    Attributes:
        trainer: `own` (our forward), `packed` or `padded` (Hugging Face's forward over one list of rows, or over a
            rectangle), or `refused`.
        critic: likewise of its value model.
        engine: how the torch engine computes it: `own`, `slots` or `rows` (Hugging Face's forward over rows side by
            side, or over one row a call), or `refused`.
        vllm: `right` (log-probabilities differ from transformers' by less than 2e-5 nats, before and after an update),
            `refused` (they do not), `refused on a CPU` (they do not there, and other kernels were not measured),
            `not started` (as vLLM says itself, E3222), `not served` (vLLM has no model of it; for some it takes
            transformers' own instead, which was not measured), or empty for a family that was not measured.
        is_encoder: the torch engine serves it where it was made a decoder (`is_decoder: true`).
        reasons: of what is not served, by the name of the attribute above.
    """

    trainer: str
    critic: str
    engine: str
    vllm: str = ""
    is_encoder: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_packed(self) -> bool:
        """Whether Hugging Face's forward may be given rows as one list; also in forms that our own does not know."""
        return self.trainer in ("own", "packed")


@cache
def table() -> dict[str, Any]:
    """Return what stands in the file: the families, and the versions of the packages that they were tried with."""
    made: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return made


@cache
def families() -> Mapping[str, Family]:
    """Return what is known of each family, by `model_type`."""
    return {name: Family(**entry) for name, entry in table()["families"].items()}


def trainer_problem(kind: str) -> str | None:
    """Return why models of type `kind` cannot be trained; None if they can, or if the type is newer than the table."""
    family = families().get(kind)
    if family is None or family.trainer != REFUSED:
        return None
    return (
        f"models of type {kind} cannot be trained: {family.reasons['trainer']}; give a causal language model of "
        "another family (docs/families.md lists them)"
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


def engine_problem(config: Mapping[str, Any]) -> str | None:
    """Return why the torch engine does not serve the model of a `config.json`; None if it may.

    A family that the table does not name is judged by the engine when it loads the model.
    """
    kind = str(config.get("model_type"))
    family = families().get(kind)
    if family is None or family.engine != REFUSED or (family.is_encoder and config.get("is_decoder")):
        return None
    return f"the torch engine does not serve the model family {kind}: {family.reasons['engine']}; {ENGINE_WAY_OUT}"


def vllm_problem(kind: str, *, is_cpu: bool = False) -> str | None:
    """Return why a policy of type `kind` cannot sample with vLLM; None if nothing is known.

    A type newer than the table is judged by the trial of an update at the engine's start.

    Args:
        kind: of the model.
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
