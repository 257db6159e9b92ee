"""Models behind an OpenAI-compatible server: what they can be, and which keys they do not have."""

from __future__ import annotations

from trinity.common.config.draft import Draft
from trinity.common.config.rules.rollouts import MODELS

ROLLOUT = "explorer.rollout_model"
SHARED = "model.external_model"
EXTERNAL = "external"
NOT_OF_A_SERVER = (
    "engine_num", "dtype", "extra_engine_args", "gpu_memory_utilization", "chat_template", "trust_remote_code", "seed",
)  # fmt: skip


def resolve_external(draft: Draft) -> None:
    """Let the server of section `model` be the model of a benchmark, and check what is asked of external models."""
    if not draft.explores:
        return
    if draft.get(f"{SHARED}.enable"):
        _resolve_shared(draft)
    sections = [ROLLOUT, *(f"{MODELS}[{index}]" for index in range(len(draft.get(MODELS))))]
    external = [key for key in sections if draft.get(f"{key}.engine_type") == EXTERNAL]
    for key in external:
        _check_section(draft, key)
    if ROLLOUT in external and draft.mode != "bench":
        draft.problem(
            "E1869",
            f"{ROLLOUT}.engine_type",
            f"`{ROLLOUT}.engine_type: external` cannot be trained: the server takes no new weights",
            rule="an engine of the run, but in mode bench",
            involves=("mode", f"{SHARED}.enable"),
            suggestion="write `engine_type: torch`, or make the server an auxiliary model",
        )
    if external and draft.get("deterministic"):
        draft.problem(
            "E1869",
            f"{external[0]}.engine_type",
            f"`{external[0]}.engine_type: external` cannot be repeated: `deterministic: true` needs engines of the run",
            rule="no external model with deterministic: true",
            involves=("deterministic",),
            suggestion="write `deterministic: false`, or `engine_type: torch`",
        )


def _resolve_shared(draft: Draft) -> None:
    engine = f"{ROLLOUT}.engine_type"
    if draft.mode != "bench":
        draft.problem(
            "E1869",
            f"{SHARED}.enable",
            f"`{SHARED}` is for mode bench: a server takes no new weights, and mode is {draft.mode}",
            rule="mode bench",
            involves=("mode",),
            suggestion=f"remove it, or write `{MODELS}: [{{engine_type: external, external_model_config: {{...}}}}]`",
        )
    elif not draft.is_given(engine) or draft.get(engine) == "auto":
        draft.derive(engine, EXTERNAL, f"{SHARED}.enable")


def _check_section(draft: Draft, key: str) -> None:
    own = draft.get(f"{key}.external_model_config") or draft.get(SHARED)
    if not own.model_name and not draft.get(f"{key}.name"):
        draft.problem(
            "E1821",
            f"{key}.external_model_config",
            f"`{key}` is external and names no model",
            involves=(SHARED, key),
            suggestion="write `external_model_config: {model_name: <name at the server>}`",
        )
    for name in NOT_OF_A_SERVER:
        if draft.is_own(f"{key}.{name}"):
            draft.problem("W1902", f"{key}.{name}", f"`{key}.{name}` has no effect on an external model")
