"""What a class declares, so that a run knows it without importing it.

One reader for both: the bodies of a class come from the class (`entry_of`) or, for plugins, from their source
(`trinity.common.config.plugins`), and `entry_from` makes the same entry of them.
"""

from __future__ import annotations

import inspect
from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, ClassVar, Generic

from trinity.utils.entry import Entry

# The registries, by the variable that plugin files register with.
REGISTRIES = {
    "ALGORITHM_TYPE": "algorithm_type",
    "ADVANTAGE_FN": "advantage_fn",
    "POLICY_LOSS_FN": "policy_loss_fn",
    "KL_FN": "kl_fn",
    "ENTROPY_LOSS_FN": "entropy_loss_fn",
    "SAMPLE_STRATEGY": "sample_strategy",
    "WORKFLOWS": "workflow",
    "REWARD_FUNCTIONS": "reward_fn",
    "REWARD_MODELS": "reward_model",
    "EXPERIENCE_OPERATORS": "operator",
    "SELECTORS": "selector",
    "MONITOR": "monitor",
    "PRIORITY_FUNC": "priority_fn",
}
# Those of an algorithm: `__call__` names the tensors that a class needs.
OF_ALGORITHMS = ("algorithm_type", "advantage_fn", "policy_loss_fn", "kl_fn", "entropy_loss_fn", "sample_strategy")
# Arguments that a constructor is given, by kind.
GIVEN_ARGUMENTS: dict[str, frozenset[str]] = {
    "policy_loss_fn": frozenset({"backend"}),
    "sample_strategy": frozenset({"source", "batch_size"}),
    "reward_model": frozenset({"config"}),
}
# Kinds whose constructors get nothing that a configuration lists as arguments.
_WITHOUT_ARGUMENTS = ("workflow", "selector", "monitor")
# Tensors that every call gets, by kind; what else `__call__` names is what the class needs.
GIVEN_TENSORS: dict[str, frozenset[str]] = {
    "policy_loss_fn": frozenset({"logprob", "action_mask"}),
    "advantage_fn": frozenset({"action_mask"}),
    "entropy_loss_fn": frozenset({"action_mask", "loss_agg_mode"}),
}
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
CLAIMS = ("use_critic", "use_reference", "compute_advantage_in_trainer", "use_rollout")
# What may be needed, of classes whose `__call__` names no tensors.
NEEDS: dict[str, frozenset[str]] = {
    "workflow": frozenset({"prompt", "reward_fn", "auxiliary_model"}),
    "reward_fn": frozenset({"truth"}),
    "kl_fn": frozenset({"ref_logprob", "old_logprob", "full_logprob", "full_ref_logprob"}),
}
# Attributes that are the field of the entry of the same name.
_COPIED: dict[str, frozenset[str]] = {
    "policy_loss_fn": frozenset({"of_pairs", "of_rollout_logprobs"}),
    "advantage_fn": frozenset({"compares_steps"}),
    "kl_fn": frozenset({"of_distributions"}),
    "workflow": frozenset({"default_reward_fn"}),
    "reward_fn": frozenset({"gives_scores"}),
    "reward_model": frozenset({"is_classifier"}),
    "sample_strategy": frozenset({"mixes_experts", "of_rollouts"}),
    "operator": frozenset({"drops_experiences", "changes_rewards"}),
    "monitor": frozenset({"package"}),
}
_OF_ALGORITHMS = frozenset({
    "summary", "formula", "citation", "needs", "ranges", "convention", "compares_rollouts", "schema", "defaults",
    "also_needed", "needs_operators", "can_balance_batch", *CLAIMS,
})  # fmt: skip
# Attributes of a class, and functions whose result counts, that declare something, by kind.
ATTRIBUTES: dict[str, frozenset[str]] = {
    kind: _COPIED.get(kind, frozenset()) | (_OF_ALGORITHMS if kind in OF_ALGORITHMS else {"needs", "ranges"})
    for kind in REGISTRIES.values()
}
RESULTS: dict[str, frozenset[str]] = dict.fromkeys(
    OF_ALGORITHMS, frozenset({"default_args", "default_config", "compute_in_trainer"})
) | {"monitor": frozenset({"default_args"})}
# A workflow that defines one of these chooses its reward function by itself.
_CHOOSING = frozenset({"__init__", "reset", "_build_reward_fn"})


class Declared:
    """Base of the classes of a registry that say what they are.

    Attributes:
        kind: name of the registry.
        summary: one line that says what it is, with its source; the docstring's first line where it is empty.
        formula: what it computes, in the language of `trinity.utils.formula`.
        citation: where it comes from, if `summary` does not say it.
        needs: the tensors that it makes the run provide, None for those that `__call__` names; of what is no part of an
            algorithm some of `NEEDS`.
        ranges: what its arguments may be: an interval such as `(0, inf]`, or the words there are.
    """

    kind: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    needs: ClassVar[frozenset[str] | None] = None
    ranges: ClassVar[Mapping[str, str | tuple[str, ...]]] = {}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Return the constructor's arguments and defaults, `None` without one."""
        entry = entry_of(cls, kind=cls.kind, calls=False)
        return dict.fromkeys(sorted(entry.required)) | dict(entry.args)


@dataclass(frozen=True)
class Signature:
    """The parameters of a function that can be given by name.

    Attributes:
        defaults: those with a default.
        required: those without.
        is_open: it takes further ones.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    is_open: bool = False

    @property
    def names(self) -> frozenset[str]:
        """All parameters."""
        return self.required | self.defaults.keys()


@dataclass(frozen=True)
class Body:
    """What the body of one class declares, without its bases.

    Attributes:
        path: `package.module:Class`.
        doc: first line of the docstring.
        attributes: those of `ATTRIBUTES` that it sets.
        init: signature of its constructor.
        call: signature of its `__call__`.
        results: what those of `RESULTS` that it defines return.
        functions: names of the functions that it defines.
    """

    path: str
    doc: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    init: Signature | None = None
    call: Signature | None = None
    results: Mapping[str, Any] = field(default_factory=dict)
    functions: frozenset[str] = frozenset()


def entry_of(cls: type[Any], *, kind: str, doc: str = "", calls: bool = True) -> Entry:
    """Return the entry of a class of a registry.

    Args:
        cls: the class.
        kind: name of the registry.
        doc: in place of the class's summary.
        calls: its `default_args` and the like are called; not where one of them asks.
    """
    bases = [base for base in reversed(cls.__mro__) if base not in (object, ABC, Generic, Declared)]
    entry = entry_from(kind, [_body_of(base, cls, kind=kind, calls=calls) for base in bases])
    return replace(entry, doc=doc) if doc else entry


@dataclass(frozen=True)
class Inputs:
    """The tensors that a call of an algorithm's class gets.

    Attributes:
        required: those that it needs.
        reads: those and what it takes where the run has it.
        passed: those of them that `__call__` accepts.
        is_open: `__call__` takes whatever it is given.
    """

    required: frozenset[str]
    reads: frozenset[str]
    passed: frozenset[str]
    is_open: bool


def inputs_of(cls: type[Any], *, kind: str) -> Inputs:
    """Return the tensors that a call of a class gets: what its entry says."""
    entry, call = entry_of(cls, kind=kind, calls=False), _signature(cls.__call__)
    given = GIVEN_TENSORS[kind] if call.is_open else GIVEN_TENSORS[kind] & call.names
    reads = entry.reads | given
    passed = reads if call.is_open else reads & call.names
    return Inputs(entry.needs | (given - call.defaults.keys()), reads, passed, call.is_open)


def entry_from(kind: str, bodies: Iterable[Body], *, base: Entry | None = None) -> Entry:
    """Return the entry of a class of a registry.

    Args:
        kind: name of the registry.
        bodies: of the class and its bases, the class last.
        base: entry of the base that the first of them derives from.
    """
    entry = Entry("") if base is None else base
    declared: dict[str, Any] = {}
    for body in bodies:
        declared |= body.results.get("default_args") or {}
        own = body.attributes
        entry = replace(
            entry,
            path=body.path,
            doc=own.get("summary") or body.doc,
            formula=own.get("formula", ""),
            source=own.get("citation", ""),
            ranges={**entry.ranges, **own.get("ranges", {})},
            convention=own.get("convention", entry.convention),
            has_check=entry.has_check or (kind == "algorithm_type" and "check_config" in body.functions),
        )
        entry = _with_arguments(kind, entry, body, declared)
        if kind == "algorithm_type":
            entry = _of_algorithm(entry, body)
        elif kind in OF_ALGORITHMS:
            entry = _with_tensors(kind, entry, body)
        else:
            entry = _with_needs(kind, entry, body)
        entry = replace(entry, **{name: own[name] for name in _COPIED.get(kind, ()) if name in own})
    return entry


def _with_arguments(kind: str, entry: Entry, body: Body, declared: Mapping[str, Any]) -> Entry:
    args, required, is_open = dict(entry.args), entry.required, entry.is_open
    if kind in _WITHOUT_ARGUMENTS:
        return replace(entry, args=args | dict(declared))
    if body.init is not None:
        given = GIVEN_ARGUMENTS.get(kind, frozenset())
        own = {name: value for name, value in body.init.defaults.items() if name not in given}
        is_open = body.init.is_open
        args = args | own if is_open else own
        required = (body.init.required | (required if is_open else frozenset())) - given
    args |= {name: value for name, value in declared.items() if is_open or name in args or name in required}
    return replace(entry, args=args, required=required - frozenset(args), is_open=is_open)


def _with_needs(kind: str, entry: Entry, body: Body) -> Entry:
    own, needs = body.attributes, entry.needs
    if kind == "workflow" and body.functions & _CHOOSING:
        needs -= {"reward_fn"}
    if kind == "reward_fn" and body.call is not None:
        needs, entry = frozenset(), replace(entry, gives_scores=True)
    if own.get("needs") is not None:
        needs = frozenset(own["needs"])
    return replace(entry, needs=needs)


def _with_tensors(kind: str, entry: Entry, body: Body) -> Entry:
    own = body.attributes
    if body.call is not None:
        given = GIVEN_TENSORS.get(kind, frozenset())
        takes = frozenset(body.call.defaults) - given
        entry = replace(entry, needs=body.call.required - given, takes=takes, compares="uid" in body.call.names)
    if own.get("needs") is not None:
        called = frozenset() if body.call is None else body.call.required - GIVEN_TENSORS.get(kind, frozenset())
        entry = replace(entry, needs=frozenset(own["needs"]) | called)
    if "compute_in_trainer" in body.results:
        entry = replace(entry, scope="trainer" if body.results["compute_in_trainer"] else "pipeline")
    return replace(entry, compares=own.get("compares_rollouts", entry.compares))


def _of_algorithm(entry: Entry, body: Body) -> Entry:
    own = body.attributes
    schema = own.get("schema", entry.schema)
    common = COMMON if schema == "experience" else OF_DATASETS
    args = dict(entry.args or common)
    if "default_config" in body.results:
        args = {**common, **body.results["default_config"]}
    elif schema != entry.schema:
        args = dict(common)
    declared = own.get("defaults", {})
    for role in ROLES:
        if role in declared:
            args.pop(f"{role}_args", None)  # they belong to the function that is no longer chosen
    return replace(
        entry,
        args={**args, **declared, "mode": "both" if schema == "experience" else "train"},
        required=frozenset(),
        schema=schema,
        claims={name: own[name] for name in CLAIMS if name in own},
        can_balance_batch=own.get("can_balance_batch", entry.can_balance_batch),
        needs_operators=own.get("needs_operators", entry.needs_operators),
        also_needed=own.get("also_needed", entry.also_needed),
    )


def _body_of(base: type[Any], cls: type[Any], *, kind: str, calls: bool) -> Body:
    members = vars(base)
    is_root = Declared in base.__bases__  # what it returns by default is read from the entry that is made here
    names = RESULTS.get(kind, frozenset()) & members.keys()
    if is_root or not calls:
        names &= {"compute_in_trainer"}
    functions, declaring = (FunctionType, classmethod, staticmethod, property), ATTRIBUTES.get(kind, frozenset())
    return Body(
        f"{base.__module__}:{base.__qualname__}",
        doc=(inspect.getdoc(base) or "").split("\n")[0] if members.get("__doc__") else "",
        attributes={n: members[n] for n in declaring & members.keys() if not isinstance(members[n], functions)},
        init=_signature(members["__init__"]) if "__init__" in members else None,
        call=_signature(members["__call__"]) if "__call__" in members else None,
        results={name: members[name].__get__(None, cls)() for name in names},
        functions=frozenset(n for n, member in members.items() if not is_root and isinstance(member, functions)),
    )


def _signature(function: Any) -> Signature:
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):  # of a class that is not written in Python
        return Signature(is_open=True)
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = [p for p in parameters if p.kind not in variable]
    return Signature(
        {p.name: p.default for p in named if p.default is not inspect.Parameter.empty},
        frozenset(p.name for p in named if p.default is inspect.Parameter.empty),
        any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
    )
