"""What an advantage function asks of the rollouts: a teacher, named components of the reward, a greedy baseline."""

from __future__ import annotations

from typing import Any

from trinity.common.config.draft import Draft

MODELS = "explorer.auxiliary_models"


def check_auxiliary_models(draft: Draft) -> None:
    """Check that every auxiliary model names its folder, and that a teacher is there and long enough."""
    if not draft.explores:
        return
    models: Any = draft.get(MODELS)
    for index, model in enumerate(models):
        if not model.model_path and model.engine_type != "external":
            draft.problem(
                "E1821",
                f"{MODELS}[{index}].model_path",
                f"`{MODELS}[{index}].model_path` is missing",
                suggestion="write the folder of a Hugging Face model",
            )
    if "teacher_logprobs" not in _needs(draft):
        return
    advantage = draft.get("algorithm.advantage_fn")
    if not models:
        draft.problem(
            "E1880",
            MODELS,
            f"`{MODELS}` is empty: advantage_fn {advantage} needs a teacher, which is the first of them",
            rule="at least one model",
            involves=("algorithm.advantage_fn", "algorithm.algorithm_type"),
            suggestion="write `auxiliary_models: [{model_path: <folder of the teacher>}]` under `explorer`",
        )
        return
    if models[0].engine_type == "external":
        draft.problem(
            "E1869",
            f"{MODELS}[0].engine_type",
            f"`{MODELS}[0]` is the teacher of advantage_fn {advantage}, and an external model scores no given tokens",
            rule="an engine of the run",
            involves=("algorithm.advantage_fn", "algorithm.algorithm_type"),
            suggestion="write `engine_type: torch` and the folder of the teacher in `model_path`",
        )
        return
    longest, own = models[0].max_model_len, draft.get("model.max_model_len")
    if longest is not None and own is not None and longest < own:
        draft.problem(
            "E1881",
            f"{MODELS}[0].max_model_len",
            f"`{MODELS}[0].max_model_len` ({longest}) must be at least model.max_model_len ({own}): the teacher scores "
            "what the student wrote",
            rule=f">= {own}",
            involves=("model.max_model_len",),
            suggestion="remove it",
        )


def _needs(draft: Draft) -> frozenset[str]:
    """Return what the advantage function needs; nothing is known of a plugin's."""
    entry = draft.catalogue.entry("advantage_fn", draft.get("algorithm.advantage_fn"))
    return entry.reads if entry is not None and draft.explores else frozenset()
