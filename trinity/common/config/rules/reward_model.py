"""The reward model: what its section leaves out, and what does not go with it."""

from __future__ import annotations

from trinity.common.config.draft import Draft
from trinity.common.config.rules.components import check_name

TREE = "trainer.trainer_config"
SECTION = f"{TREE}.reward_model"
ACTOR = f"{TREE}.actor_rollout_ref.actor"
CLASSIFIER = "sequence_classifier"
NO_REWARD = "no_reward"
INPUT = "buffer.explorer_input"


def has_reward_model(draft: Draft) -> bool:
    """Return whether a model scores the rollouts of this run."""
    return draft.explores and draft.get(f"{SECTION}.enable") is True


def resolve_reward_model(draft: Draft) -> None:
    """Fill what the section leaves out, and check the reward functions beside it."""
    _check_no_reward(draft)
    _check_reward_functions(draft)
    if not has_reward_model(draft):
        if draft.is_own(f"{SECTION}.enable") and draft.get(f"{SECTION}.enable"):
            draft.problem(
                "W1902", f"{SECTION}.enable", f"`{SECTION}.enable` has no effect in mode train", involves=("mode",)
            )
        return
    worker = draft.get(f"{SECTION}.worker")
    check_name(draft, f"{SECTION}.worker", "reward_model", worker)
    if worker == CLASSIFIER:
        _check_classifier(draft)
    older, rows = draft.get(f"{SECTION}.micro_batch_size"), f"{SECTION}.micro_batch_size_per_gpu"
    if draft.get(rows) is None:
        draft.derive(rows, older or 64, "micro_batch_size over one worker" if older else "default of the guide")
    tokens = f"{SECTION}.forward_max_token_len_per_gpu"
    if draft.get(tokens) is None and draft.get(f"{SECTION}.use_dynamic_bsz"):
        draft.derive(tokens, draft.get(f"{ACTOR}.ppo_max_token_len_per_gpu"), f"{ACTOR}.ppo_max_token_len_per_gpu")


def _check_classifier(draft: Draft) -> None:
    if not draft.get(f"{SECTION}.model.path"):
        draft.problem(
            "E1860",
            f"{SECTION}.model.path",
            f"`{SECTION}.model.path` is missing: `enable: true` needs a reward model",
            involves=(SECTION,),
            suggestion="write the folder of a sequence classifier with one label",
        )
    if draft.get(f"{SECTION}.worker_args"):
        draft.problem(
            "E1861",
            f"{SECTION}.worker_args",
            f"`{SECTION}.worker_args` is for a worker from a plugin; {CLASSIFIER} takes none",
            suggestion="remove it, or name the worker",
        )


def _check_no_reward(draft: Draft) -> None:
    """Refuse rollouts that nothing scores; evaluations never pass a reward model."""
    if not draft.explores:
        return
    taskset = draft.get(f"{INPUT}.taskset")
    places = [] if taskset is None or has_reward_model(draft) else [(f"{INPUT}.taskset", taskset)]
    evals = draft.get(f"{INPUT}.eval_tasksets")
    places += [(f"{INPUT}.eval_tasksets[{index}]", entry) for index, entry in enumerate(evals)]
    for key, entry in places:
        if entry.default_reward_fn_type != NO_REWARD:
            continue
        why = "no reward model is enabled" if key.endswith("taskset") else "a reward model scores no evaluations"
        draft.problem(
            "E1862",
            f"{key}.default_reward_fn_type",
            f"`{key}.default_reward_fn_type: {NO_REWARD}` leaves every reward at 0: {why}",
            involves=(f"{INPUT}.default_reward_fn_type",),
            suggestion="name a reward function" + (f", or set {SECTION}.enable" if key.endswith("taskset") else ""),
        )


def _check_reward_functions(draft: Draft) -> None:
    """Refuse a workflow that needs a reward function where the taskset names none: each of its rollouts would fail."""
    if not draft.explores:
        return
    taskset = draft.get(f"{INPUT}.taskset")
    places = [] if taskset is None else [(f"{INPUT}.taskset", taskset)]
    places += [(f"{INPUT}.eval_tasksets[{i}]", entry) for i, entry in enumerate(draft.get(f"{INPUT}.eval_tasksets"))]
    for key, taskset in places:
        name = taskset.default_workflow_type
        entry = None if name in draft.catalogue.plugins.get("workflow", ()) else draft.catalogue.entry("workflow", name)
        has_function = taskset.default_reward_fn_type or taskset.format.reward_fn_key
        if entry is None or "reward_fn" not in entry.needs or has_function:
            continue
        scored = has_reward_model(draft) and key.endswith("taskset")
        draft.problem(
            "E1864",
            f"{key}.default_reward_fn_type",
            f"`{key}.default_reward_fn_type` is missing: workflow {name} needs a reward function, got none",
            involves=(f"{INPUT}.default_reward_fn_type", f"{key}.default_workflow_type"),
            suggestion=f"write `default_reward_fn_type: {NO_REWARD if scored else 'accuracy_reward'}`",
        )
