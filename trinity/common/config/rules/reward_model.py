"""The reward model: what its section leaves out, and what does not go with it."""

from __future__ import annotations

from trinity.common.config.draft import Draft
from trinity.common.config.rules.algorithm import check_name
from trinity.common.config.rules.arguments import check_arguments
from trinity.utils.entry import Entry

TREE = "trainer.trainer_config"
SECTION = f"{TREE}.reward_model"
ACTOR = f"{TREE}.actor_rollout_ref.actor"
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
    entry = draft.catalogue.entry("reward_model", worker)
    if entry is not None:
        _check_worker(draft, worker, entry)
    older, rows = draft.get(f"{SECTION}.micro_batch_size"), f"{SECTION}.micro_batch_size_per_gpu"
    if draft.get(rows) is None:
        draft.derive(rows, older or 64, "micro_batch_size over one worker" if older else "default of the guide")
    tokens = f"{SECTION}.forward_max_token_len_per_gpu"
    if draft.get(tokens) is None and draft.get(f"{SECTION}.use_dynamic_bsz"):
        draft.derive(tokens, draft.get(f"{ACTOR}.ppo_max_token_len_per_gpu"), f"{ACTOR}.ppo_max_token_len_per_gpu")


def _check_worker(draft: Draft, worker: str, entry: Entry) -> None:
    if entry.is_classifier and not draft.get(f"{SECTION}.model.path"):
        draft.problem(
            "E1860",
            f"{SECTION}.model.path",
            f"`{SECTION}.model.path` is missing: `enable: true` needs a reward model",
            involves=(SECTION,),
            suggestion="write the folder of a sequence classifier with one label",
        )
    known = entry.args.keys() | entry.required
    unknown = sorted((draft.get(f"{SECTION}.worker_args") or {}).keys() - known)
    if unknown and not entry.is_open:
        draft.problem(
            "E1861",
            f"{SECTION}.worker_args",
            f"`{SECTION}.worker_args` of {worker}: it has no argument `{unknown[0]}`",
            rule=f"some of {', '.join(sorted(known))}" if known else "none",
            suggestion="remove it" if known else "remove it, or name the worker",
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
        name = entry["default_reward_fn_type"]
        reward = draft.catalogue.entry("reward_fn", name)
        if reward is None or reward.gives_scores:
            continue
        why = "no reward model is enabled" if key.endswith("taskset") else "a reward model scores no evaluations"
        draft.problem(
            "E1862",
            f"{key}.default_reward_fn_type",
            f"`{key}.default_reward_fn_type: {name}` leaves every reward at 0: {why}",
            involves=(f"{INPUT}.default_reward_fn_type",),
            suggestion="name a reward function" + (f", or set {SECTION}.enable" if key.endswith("taskset") else ""),
        )


def _check_reward_functions(draft: Draft) -> None:
    """Refuse a workflow without the reward function that it needs, and arguments that the function does not take.

    Each of the rollouts would fail.
    """
    if not draft.explores:
        return
    taskset = draft.get(f"{INPUT}.taskset")
    places = [] if taskset is None else [(f"{INPUT}.taskset", taskset)]
    places += [(f"{INPUT}.eval_tasksets[{i}]", entry) for i, entry in enumerate(draft.get(f"{INPUT}.eval_tasksets"))]
    for key, taskset in places:
        name = taskset["default_workflow_type"]
        entry = draft.catalogue.entry("workflow", name)
        if entry is None or taskset["format"]["reward_fn_key"]:
            continue
        function = taskset["default_reward_fn_type"] or entry.default_reward_fn
        if function and ("reward_fn" in entry.needs or draft.catalogue.is_built_in("workflow", name)):
            check_arguments(draft, f"{key}.reward_fn_args", "reward_fn", function)
        if function or "reward_fn" not in entry.needs:
            continue
        scored = has_reward_model(draft) and key.endswith("taskset")
        draft.problem(
            "E1864",
            f"{key}.default_reward_fn_type",
            f"`{key}.default_reward_fn_type` is missing: workflow {name} needs a reward function, got none",
            involves=(f"{INPUT}.default_reward_fn_type", f"{key}.default_workflow_type"),
            suggestion=f"write `default_reward_fn_type: {'no_reward' if scored else 'accuracy_reward'}`",
        )
