"""The registries: what each says of its classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CLAIMS = ("use_critic", "use_reference", "compute_advantage_in_trainer", "use_rollout")
# What the range of an argument may say besides intervals and choices.
TEXT = "text"
_OF_ALGORITHMS = frozenset({
    "summary", "formula", "citation", "needs", "ranges", "needed_if", "convention", "compares_rollouts", "schema",
    "defaults", "also_needed", "needs_operators", "can_balance_batch", *CLAIMS,
})  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What a registry says of its classes.

    Attributes:
        variable: that plugin files register with.
        in_algorithm: it is a part of an algorithm; `__call__` names the tensors that a class needs.
        is_type: it is an algorithm type, whose arguments are the defaults of the section.
        reads_mapping: a class reads its arguments from a mapping, such as `workflow_args`; of all others they are those
            of the constructor.
        is_asked: what `default_args` computes is known when a run asks for it; of all others it has to be read.
        given_arguments: what the constructor gets besides.
        given_tensors: what every call gets; what else `__call__` names is what a class needs.
        needs: what may be needed, of classes whose `__call__` names no tensors; None: anything.
        copied: attributes that are the field of the entry of the same name.
        own: such attributes that hold for the class that sets them, not for those that derive from it.
        decides_scope: `compute_in_trainer` says who calls a class.
        has_default_config: the published name of its `default_args` is `default_config`; both are read.
    """

    variable: str
    in_algorithm: bool = False
    is_type: bool = False
    reads_mapping: bool = False
    is_asked: bool = False
    given_arguments: frozenset[str] = frozenset()
    given_tensors: frozenset[str] = frozenset()
    needs: frozenset[str] | None = None
    copied: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    decides_scope: bool = False
    has_default_config: bool = False

    @property
    def attributes(self) -> frozenset[str]:
        """Attributes of a class that declare something."""
        fields = self.copied | self.own
        if self.in_algorithm:
            return fields | _OF_ALGORITHMS
        of_mapping = {"arguments", "required_arguments"} if self.reads_mapping else set()
        return fields | {"needs", "ranges", "needed_if"} | of_mapping

    @property
    def results(self) -> frozenset[str]:
        """Functions of a class whose result declares something."""
        scope = {"compute_in_trainer"} if self.decides_scope else frozenset()
        return self.defaults | scope

    @property
    def defaults(self) -> frozenset[str]:
        """Functions of a class that return the defaults of its arguments."""
        if self.is_type:
            return frozenset({"default_config"})
        return frozenset({"default_args", "default_config"} if self.has_default_config else {"default_args"})

    @property
    def unread(self) -> frozenset[str]:
        """Functions that declare something of other kinds, and nothing here."""
        return frozenset({"default_args", "default_config"}) - self.defaults


KINDS: dict[str, Kind] = {
    "algorithm_type": Kind("ALGORITHM_TYPE", in_algorithm=True, is_type=True),
    "advantage_fn": Kind(
        "ADVANTAGE_FN",
        in_algorithm=True,
        decides_scope=True,
        given_tensors=frozenset({"action_mask"}),
        copied=frozenset({"compares_steps"}),
    ),
    "policy_loss_fn": Kind(
        "POLICY_LOSS_FN",
        in_algorithm=True,
        given_arguments=frozenset({"backend"}),
        given_tensors=frozenset({"logprob", "action_mask"}),
        copied=frozenset({"of_pairs", "of_rollout_logprobs", "loss_agg_mode"}),
        own=frozenset({"in_bypass_mode", "names_in_bypass_mode"}),
    ),
    "kl_fn": Kind(
        "KL_FN",
        in_algorithm=True,
        needs=frozenset({"ref_logprob", "old_logprob", "full_logprob", "full_ref_logprob"}),
        copied=frozenset({"of_distributions"}),
    ),
    "entropy_loss_fn": Kind(
        "ENTROPY_LOSS_FN", in_algorithm=True, given_tensors=frozenset({"action_mask", "loss_agg_mode"})
    ),
    "sample_strategy": Kind(
        "SAMPLE_STRATEGY",
        in_algorithm=True,
        given_arguments=frozenset({"source", "batch_size", "buffer_config"}),
        copied=frozenset({"mixes_experts", "of_rollouts"}),
    ),
    "workflow": Kind(
        "WORKFLOWS",
        reads_mapping=True,
        needs=frozenset({"prompt", "reward_fn", "auxiliary_model", "images"}),
        copied=frozenset({"default_reward_fn", "package", "reads_format"}),
    ),
    "reward_fn": Kind("REWARD_FUNCTIONS", needs=frozenset({"truth"}), copied=frozenset({"gives_scores", "package"})),
    "reward_model": Kind("REWARD_MODELS", given_arguments=frozenset({"config"}), copied=frozenset({"is_classifier"})),
    "operator": Kind("EXPERIENCE_OPERATORS", copied=frozenset({"drops_experiences", "changes_rewards"})),
    "selector": Kind("SELECTORS", reads_mapping=True, copied=frozenset({"num_features", "learns_from_feedback"})),
    "monitor": Kind("MONITOR", reads_mapping=True, is_asked=True, copied=frozenset({"package"})),
    "priority_fn": Kind("PRIORITY_FUNC", has_default_config=True),
}


def kind_of(name: str) -> Kind:
    """Return what a registry says; nothing for one that is not listed here."""
    return KINDS.get(name) or Kind("")


# The registries, by the variable that plugin files register with.
REGISTRIES = {kind.variable: name for name, kind in KINDS.items()}
# The functions of an algorithm type, with what a type has that says nothing, and what one that trains on a dataset has.
COMMON: dict[str, Any] = {
    "repeat_times": 8,
    "advantage_fn": "grpo",
    "policy_loss_fn": "ppo",
    "kl_loss_fn": "k2",
    "kl_penalty_fn": "none",
    "entropy_loss_fn": "default",
    "sample_strategy": "default",
}
OF_DATASETS: dict[str, Any] = COMMON | {
    "repeat_times": 1,
    "advantage_fn": None,
    "policy_loss_fn": "sft",
    "kl_loss_fn": "none",
    "entropy_loss_fn": "none",
}
# The registry of each function of an algorithm, by its key under `algorithm`.
ROLES = {
    "advantage_fn": "advantage_fn",
    "policy_loss_fn": "policy_loss_fn",
    "kl_loss_fn": "kl_fn",
    "kl_penalty_fn": "kl_fn",
    "entropy_loss_fn": "entropy_loss_fn",
    "sample_strategy": "sample_strategy",
}
