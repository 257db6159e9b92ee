"""What an advantage function asks of the rollouts: a teacher, named components of the reward, a greedy baseline."""

from __future__ import annotations

from typing import Any

from trinity.common.config.draft import Draft
from trinity.common.config.rules.reward_model import SECTION as REWARD_MODEL
from trinity.common.config.rules.reward_model import has_reward_model

MODELS = "explorer.auxiliary_models"
ARGS = "algorithm.advantage_fn_args"
# Operators that change a reward after the explorer took it as a baseline, as components, or of a step.
_RESHAPERS = ("reward_shaping_mapper",)
TAKEN = {
    "reward_baselines": "the rewards of greedy rollouts",
    "reward_components": "the components of the reward",
    "step_reward": "the rewards of the steps",
}


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


def check_components(draft: Draft) -> None:
    """Check that the components of the reward are named, each with at most one weight."""
    if "reward_components" not in _needs(draft):
        return
    arguments = draft.get(ARGS) or {}
    keys, weights = arguments.get("gdpo_reward_keys"), arguments.get("gdpo_reward_weights")
    if not isinstance(keys, list | tuple) or not keys or not all(isinstance(key, str) for key in keys):
        draft.problem(
            "E1883",
            f"{ARGS}.gdpo_reward_keys",
            f"`{ARGS}.gdpo_reward_keys` must be a list of metrics, such as the scores of the reward function, got "
            f"{keys}",
            involves=("algorithm.advantage_fn",),
            suggestion="write `gdpo_reward_keys: [accuracy, format_score]`",
        )
    elif weights is not None and (not isinstance(weights, list | tuple) or len(weights) != len(keys)):
        draft.problem(
            "E1883",
            f"{ARGS}.gdpo_reward_weights",
            f"`{ARGS}.gdpo_reward_weights` must be a list of {len(keys)} numbers, one for each of gdpo_reward_keys, "
            f"got {weights}",
            involves=(f"{ARGS}.gdpo_reward_keys",),
            suggestion="remove it to weigh all alike",
        )


def check_reshaping(draft: Draft) -> None:
    """Refuse what would change the reward and leave its baseline, its components or its steps as they were."""
    advantage = draft.get("algorithm.advantage_fn")
    taken = sorted(_needs(draft) & TAKEN.keys())
    if not taken or not draft.explores:
        return
    operators = draft.get("data_processor.experience_pipeline.operators")
    names = [f"data_processor.experience_pipeline.operators[{index}].name" for index in range(len(operators))]
    found = [key for key, operator in zip(names, operators, strict=True) if operator.name in _RESHAPERS]
    if has_reward_model(draft):
        found.append(f"{REWARD_MODEL}.enable")
    for key in found:
        draft.problem(
            "E1884",
            key,
            f"`{key}: {str(draft.get(key)).lower()}` changes the reward, but advantage_fn {advantage} also reads "
            f"{TAKEN[taken[0]]}, which would stay as they were",
            involves=("algorithm.advantage_fn", "algorithm.algorithm_type"),
            suggestion="give the reward its final form in the reward function",
        )


def _needs(draft: Draft) -> frozenset[str]:
    """Return what the advantage function needs; nothing is known of a plugin's."""
    entry = draft.catalogue.entry("advantage_fn", draft.get("algorithm.advantage_fn"))
    return entry.reads if entry is not None and draft.explores else frozenset()
