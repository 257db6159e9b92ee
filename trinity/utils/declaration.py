"""What a class declares, so that a run knows it without importing it.

One reader for both: the bodies of a class come from the class (`entry_of`) or, for plugins, from their source
(`trinity.common.config.plugins`), and `entry_from` makes the same entry of them.
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import re
from abc import ABC
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, ClassVar, Generic

from trinity.utils.entry import Entry
from trinity.utils.kinds import CLAIMS, COMMON, OF_DATASETS, ROLES, Kind, kind_of

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
            algorithm some of the `needs` of its `Kind`.
        ranges: what its arguments may be: an interval such as `(0, inf]`, whose ends may name other
            arguments, the words there are, or `text`.
        needed_if: arguments that must be above 0 if the named argument is true, or always where none is named.
        arguments: of a class that reads its arguments from a mapping (`Kind.reads_mapping`) those that it reads; what
            is not None is put there where nothing is written. None: whatever is written.
        required_arguments: of such a class those that have to be written.
    """

    kind: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    needs: ClassVar[frozenset[str] | None] = None
    ranges: ClassVar[Mapping[str, str | tuple[str, ...]]] = {}
    needed_if: ClassVar[Mapping[str, str]] = {}
    arguments: ClassVar[Mapping[str, Any] | None] = None
    required_arguments: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Return the arguments and their defaults, `None` without one."""
        entry = entry_of(cls, kind=cls.kind, calls=False)
        return dict.fromkeys(sorted(entry.required)) | dict(entry.args)


@dataclass(frozen=True)
class Signature:
    """The parameters of a function that can be given by name.

    Attributes:
        defaults: those with a default.
        required: those without.
        is_open: it takes further ones.
        nullable: those whose annotation admits None.
        reads_further: its body names the further ones, such as `kwargs`; otherwise they are ignored.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    is_open: bool = False
    nullable: frozenset[str] = frozenset()
    reads_further: bool = True

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
        attributes: those of its kind that it sets.
        init: signature of its constructor.
        call: signature of its `__call__`.
        results: what those functions of its kind that it defines return.
        functions: names of the functions that it defines.
    """

    path: str
    doc: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    init: Signature | None = None
    call: Signature | None = None
    results: Mapping[str, Any] = field(default_factory=dict)
    functions: frozenset[str] = frozenset()


def entry_of(cls: type[Any], *, kind: str, calls: bool = True) -> Entry:
    """Return the entry of a class of a registry.

    Args:
        cls: the class.
        kind: name of the registry.
        calls: its `default_args` and the like are called; not where one of them asks.
    """
    return entry_from(kind, _bodies_of(cls, kind=kind, calls=calls))


def declared_args(cls: Any, *, kind: str) -> dict[str, Any]:
    """Return the arguments that a run gives a class where none are written.

    They are those of its `default_args` and `arguments`; a constructor's own defaults are not among them.

    Args:
        cls: the class; a function, as published rewards may be, declares none.
        kind: name of the registry.
    """
    return copy.deepcopy(_declared_args(cls, kind)) if isinstance(cls, type) else {}


@functools.lru_cache(maxsize=1024)  # asked for every task and every attempt, and a class is read for a millisecond
def _declared_args(cls: type[Any], kind: str) -> dict[str, Any]:
    bodies = list(_bodies_of(cls, kind=kind, calls=True))
    names = {name for body in bodies for name in _defaults(kind_of(kind), body)}
    names |= {
        n for body in bodies for n, value in (body.attributes.get("arguments") or {}).items() if value is not None
    }
    return {name: value for name, value in entry_from(kind, bodies).args.items() if name in names}


@dataclass(frozen=True)
class Unread:
    """A declaration that nothing reads.

    Attributes:
        what: the declaration.
        why: why nothing reads it.
        way_out: what to write instead.
    """

    what: str
    why: str
    way_out: str


def unread_in(kind: str, body: Body, entry: Entry) -> Unread | None:
    """Return a declaration in the body of a class that nothing reads.

    Args:
        kind: name of the registry.
        body: of the class.
        entry: of the class.
    """
    of = kind_of(kind)
    for name in sorted(of.unread & body.functions):
        where = "default_config" if of.is_type else "default_args"
        return Unread(name, f"is not read of a class in {of.variable}", f"return it from `{where}`")
    stray = sorted(_defaults(of, body).keys() - entry.args.keys())
    if not stray:
        return None
    known = ", ".join(sorted({*entry.args, *entry.required})) or "none"
    return Unread("default_args", f"names `{stray[0]}`, which the constructor does not take", f"known: {known}")


def _defaults(of: Kind, body: Body) -> dict[str, Any]:
    """Return the defaults of arguments that the body of a class declares."""
    if of.is_type:
        return {}
    return {name: value for each in sorted(of.defaults) for name, value in (body.results.get(each) or {}).items()}


def unread_of(cls: type[Any], *, kind: str) -> Unread | None:
    """Return a declaration in a class, not in its bases, that nothing reads."""
    *_, body = _bodies_of(cls, kind=kind, calls=True)
    return unread_in(kind, body, entry_of(cls, kind=kind))


def _bodies_of(cls: type[Any], *, kind: str, calls: bool) -> Iterator[Body]:
    for base in reversed(cls.__mro__):
        if base not in (object, ABC, Generic, Declared):
            yield _body_of(base, cls, kind=kind, calls=calls)


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
    given = kind_of(kind).given_tensors if call.is_open else kind_of(kind).given_tensors & call.names
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
    of = kind_of(kind)
    plain = Entry("", is_open=of.reads_mapping)
    entry = plain if base is None else base
    declared: dict[str, Any] = {}
    for body in bodies:
        declared |= _defaults(of, body)
        own = body.attributes
        entry = replace(
            entry,
            path=body.path,
            doc=own.get("summary") or body.doc,
            formula=own.get("formula", ""),
            source=own.get("citation", ""),
            ranges={**entry.ranges, **own.get("ranges", {})},
            needed_if={**entry.needed_if, **own.get("needed_if", {})},
            convention=own.get("convention", entry.convention),
            has_check=entry.has_check or (kind == "algorithm_type" and "check_config" in body.functions),
        )
        entry = _with_arguments(of, entry, body, declared)
        if of.is_type:
            entry = _of_algorithm(entry, body)
        elif of.in_algorithm:
            entry = _with_tensors(of, entry, body)
        else:
            entry = _with_needs(kind, entry, body)
        entry = replace(entry, **{name: own[name] for name in of.copied if name in own})
        entry = replace(entry, **{name: own.get(name, vars(plain)[name]) for name in of.own})
    return entry


def _with_arguments(of: Kind, entry: Entry, body: Body, declared: Mapping[str, Any]) -> Entry:
    args, required, is_open = dict(entry.args), entry.required, entry.is_open
    if of.reads_mapping:
        own = body.attributes.get("arguments")
        # Functions of its own may read arguments that no base has declared.
        reads_more = bool(body.functions) or body.init is not None
        known = args | (own or {}) | dict(declared)
        required |= frozenset(body.attributes.get("required_arguments", ()))
        is_open = own is None and (is_open or reads_more)
        return replace(entry, args=known, required=required - frozenset(known), is_open=is_open)
    if body.init is not None:
        own = {name: value for name, value in body.init.defaults.items() if name not in of.given_arguments}
        is_open = body.init.is_open
        args = args | own if is_open else own
        required = (body.init.required | (required if is_open else frozenset())) - of.given_arguments
    args |= {name: value for name, value in declared.items() if is_open or name in args or name in required}
    nullable = entry.nullable
    if body.init is not None:
        nullable = (nullable - body.init.names if is_open else frozenset()) | body.init.nullable
    nullable = frozenset(name for name in nullable if args.get(name) is not None)
    return replace(entry, args=args, required=required - frozenset(args), is_open=is_open, nullable=nullable)


def _with_needs(kind: str, entry: Entry, body: Body) -> Entry:
    own, needs = body.attributes, entry.needs
    if kind == "workflow" and body.functions & _CHOOSING:
        needs -= {"reward_fn"}
    if kind == "reward_fn" and body.call is not None:
        needs, entry = frozenset(), replace(entry, gives_scores=True)
    if own.get("needs") is not None:
        needs = frozenset(own["needs"])
    return replace(entry, needs=needs)


def _with_tensors(of: Kind, entry: Entry, body: Body) -> Entry:
    own = body.attributes
    if "compute_in_trainer" in body.results:
        entry = replace(entry, scope="trainer" if body.results["compute_in_trainer"] else "pipeline")
    if body.call is not None and entry.scope != "pipeline":
        takes = frozenset(body.call.defaults) - of.given_tensors
        entry = replace(
            entry,
            needs=body.call.required - of.given_tensors,
            takes=takes,
            takes_all=body.call.is_open and body.call.reads_further,
            compares="uid" in body.call.names,
        )
    if own.get("needs") is not None:
        has_call = body.call is not None and entry.scope != "pipeline"
        called = body.call.required - of.given_tensors if has_call and body.call is not None else frozenset()
        entry = replace(entry, needs=frozenset(own["needs"]) | called)
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
    names = kind_of(kind).results & members.keys()
    if is_root or not calls:
        names &= {"compute_in_trainer"}
    functions, declaring = (FunctionType, classmethod, staticmethod, property), kind_of(kind).attributes
    return Body(
        f"{base.__module__}:{base.__qualname__}",
        doc=(inspect.getdoc(base) or "").split("\n")[0] if members.get("__doc__") else "",
        attributes={n: members[n] for n in declaring & members.keys() if not isinstance(members[n], functions)},
        init=_init_of(members["__init__"], is_root=is_root) if "__init__" in members else None,
        call=_signature(members["__call__"]) if "__call__" in members else None,
        results={name: members[name].__get__(None, cls)() for name in names},
        functions=frozenset(n for n, member in members.items() if not is_root and isinstance(member, functions)),
    )


def _init_of(function: Any, *, is_root: bool) -> Signature:
    """Return the parameters of a constructor; a root ignores all others."""
    found = _signature(function)
    return replace(found, is_open=False) if is_root else found


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
        frozenset(p.name for p in named if admits_none(str(p.annotation))),
        any(p.kind is inspect.Parameter.VAR_KEYWORD and _names(function, p.name) for p in parameters),
    )


def _names(function: Any, variable: str) -> bool:
    """Return whether the body of a function names one of its variables."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or variable in code.co_cellvars:  # not written in Python; read by a function within
        return True
    return any(each.argval == variable for each in dis.get_instructions(code))


def admits_none(annotation: str) -> bool:
    """Return whether the text of an annotation has None among its types."""
    return "None" in re.split(r"\W+", annotation) or annotation.startswith(("Optional[", "typing.Optional["))
