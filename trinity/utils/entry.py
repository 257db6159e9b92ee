"""Entries of a table of contents, and the file of a package's tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One line of a table of contents.

    Attributes:
        path: `package.module:Class`, imported on first use.
        args: constructor arguments with their defaults, from signature and `default_args`; of an algorithm type its
            functions and theirs, of a monitor what it reads of `monitor_args`.
        needs: what the class makes the run load: `ref_logprob`, `values`, `entropy`, ...; of a workflow `prompt`,
            `reward_fn` and `auxiliary_model`, of a reward function `truth`.
        takes: what it uses where the run has it: `rollout_is_weights`.
        takes_all: a call takes every tensor of the batch, and may use any.
        doc: one line that says what it is, with its source.
        formula: what it computes, in the language of `trinity.utils.formula`.
        source: where it comes from, if `doc` does not say it.
        required: arguments without a default, of the constructor or as a workflow declares them.
        is_open: the constructor takes arguments that are not listed here.
        ranges: what arguments may be: an interval such as `(0, inf]`, or the words there are.
        nullable: arguments that may be null, those with another default; from the annotations.
        needed_if: arguments that must be above 0 if the named argument is true, or always, though they may be null.
        convention: whose convention a policy loss aggregates by: `trinity` or `verl`.
        scope: who calls an advantage: `pipeline`, with the experiences, or `trainer`, with the tensors of a batch.
        compares: an advantage compares the rollouts of a task.
        compares_steps: an advantage compares the steps of rollouts that have several.
        of_pairs: the rows of a policy loss are pairs, as of algorithm type dpo and no other.
        of_rollout_logprobs: a policy loss takes the rollout's log-probabilities for the old ones, and corrects itself.
        loss_agg_mode: how a policy loss is aggregated that has no such argument; None: as the section says.
        in_bypass_mode: the policy loss that stands for this one under `rollout_correction.bypass_mode`; "": none does.
        names_in_bypass_mode: what arguments of this one are called there.
        of_distributions: a divergence compares whole distributions, not the log-probabilities of tokens.
        schema: experiences of an algorithm type: `experience`, or those of a dataset: `sft`, `cpt`, `dpo`.
        claims: what an algorithm type says about its functions; holds if they agree.
        can_balance_batch: rows of an algorithm type may be shared among workers in any order.
        needs_operators: an algorithm type learns from what operators keep, and from all rollouts nothing.
        also_needed: lines of YAML outside of `algorithm` that an algorithm type needs.
        has_check: an algorithm type has a `check_config` of its own.
        default_reward_fn: reward function of a workflow where the taskset names none.
        reads_format: a workflow's prompt follows `system_prompt`, `system_prompt_key` and `reply_prefix` of the format.
        gives_scores: a reward function scores; otherwise a reward model has to.
        mixes_experts: a sample strategy adds rows of an expert: `expert_data_ratio` of a batch from `sft_dataset_name`.
        of_rollouts: a sample strategy chooses among rollouts, so that it cannot read a dataset.
        drops_experiences: an operator may drop experiences.
        changes_rewards: an operator may change rewards.
        is_classifier: the model of a reward model is a sequence classifier of Hugging Face.
        num_features: fewest and most columns of numbers that a selector reads, the latter null without a bound; null:
            it does not say.
        learns_from_feedback: what a selector chooses depends on how earlier tasks went.
        package: module of an optional package that a monitor, a workflow or a reward function needs.
        deprecated_for: the name to write in place of this one.
    """

    path: str
    args: Mapping[str, Any] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()
    takes_all: bool = False
    doc: str = ""
    formula: str = ""
    source: str = ""
    required: frozenset[str] = frozenset()
    is_open: bool = False
    ranges: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    nullable: frozenset[str] = frozenset()
    needed_if: Mapping[str, str] = field(default_factory=dict)
    convention: str = "trinity"
    scope: str = ""
    compares: bool = False
    compares_steps: bool = False
    of_pairs: bool = False
    of_rollout_logprobs: bool = False
    loss_agg_mode: str | None = None
    in_bypass_mode: str = ""
    names_in_bypass_mode: Mapping[str, str] = field(default_factory=dict)
    of_distributions: bool = False
    schema: str = "experience"
    claims: Mapping[str, bool] = field(default_factory=dict)
    can_balance_batch: bool = True
    needs_operators: bool = False
    also_needed: tuple[str, ...] = ()
    has_check: bool = False
    default_reward_fn: str | None = None
    reads_format: bool = False
    gives_scores: bool = True
    mixes_experts: bool = False
    of_rollouts: bool = False
    drops_experiences: bool = False
    changes_rewards: bool = False
    is_classifier: bool = False
    num_features: tuple[int, int | None] | None = None
    learns_from_feedback: bool = False
    package: str = ""
    deprecated_for: str = ""

    @property
    def reads(self) -> frozenset[str]:
        """The tensors that it needs or takes."""
        return self.needs | self.takes

    def may_read(self, tensor: str) -> bool:
        """Return whether a call may use a tensor of the batch."""
        return self.takes_all or tensor in self.reads

    def may_be_null(self, name: str) -> bool:
        """Return whether an argument may be null, by annotation or default."""
        return name in self.nullable or (name in self.args and self.args[name] is None)

    def opened(self) -> Entry:
        """Return the entry of a class that may accept unlisted arguments."""
        return replace(self, is_open=True)

    def named(self, *, doc: str = "", deprecated_for: str = "") -> Entry:
        """Return the entry under a name.

        Args:
            doc: what the class is under it, if its own line does not say that.
            deprecated_for: the name to write instead.
        """
        if deprecated_for and not doc:
            doc = f"deprecated, the same as {deprecated_for}"
        return replace(self, doc=doc or self.doc, deprecated_for=deprecated_for)

    def to_dict(self) -> dict[str, Any]:
        """Return what differs from the default of its field, ready for JSON."""
        found = {f.name: vars(self)[f.name] for f in fields(self) if vars(self)[f.name] != _default(f)}
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in found.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Entry:
        """Return the entry that `to_dict` wrote."""
        read = dict(values)
        for name in ("needs", "takes", "required", "nullable"):
            read[name] = frozenset(read.get(name, ()))
        ranges = read.get("ranges", {})
        read["ranges"] = {name: rule if isinstance(rule, str) else tuple(rule) for name, rule in ranges.items()}
        features = read.get("num_features")
        read["num_features"] = None if features is None else tuple(features)
        read["also_needed"] = tuple(read.get("also_needed", ()))
        return cls(**read)


@dataclass(frozen=True)
class Contents:
    """The tables of contents of a package.

    Attributes:
        names: entries by registry and name.
        classes: entries by the name of the class, those that are only base classes among them.
    """

    names: Mapping[str, Mapping[str, Entry]]
    classes: Mapping[str, Entry]

    @classmethod
    def read(cls, path: Path) -> Contents:
        """Return the tables of a file that `to_json` wrote."""
        read = json.loads(path.read_text(encoding="utf-8"))
        classes = {name: Entry.from_dict(values) for name, values in read["classes"].items()}
        names = {
            registry: {
                name: classes[of].named(doc=doc, deprecated_for="".join(newer))
                for name, (of, doc, *newer) in table.items()
            }
            for registry, table in read["names"].items()
        }
        return cls(names, classes)

    def to_json(self) -> str:
        """Return the tables as text.

        Each class appears once, each name with its class and what it is called there.
        """
        by_path = {entry.path: name for name, entry in self.classes.items()}
        names: dict[str, dict[str, tuple[str, ...]]] = {}
        for registry, table in self.names.items():
            rows = names.setdefault(registry, {})
            for name, entry in table.items():
                of = by_path[entry.path]
                newer = (entry.deprecated_for,) if entry.deprecated_for else ()
                doc = self.classes[of].named(deprecated_for=entry.deprecated_for).doc
                rows[name] = (of, "" if entry.doc == doc else entry.doc, *newer)
        classes = {name: entry.to_dict() for name, entry in self.classes.items()}
        return json.dumps({"names": names, "classes": classes}, indent=1, ensure_ascii=False) + "\n"


def _default(of: Any) -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()
