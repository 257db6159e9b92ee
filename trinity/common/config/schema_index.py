"""Index of the schema: fields by path, facts, sections by key, defaults."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic.fields import FieldInfo

from trinity.common.config.base import NO_FACTS, Facts, Section, facts_of
from trinity.common.config.config import Config
from trinity.common.config.tree import MAX_DEPTH, Path


@functools.cache
def build(model: type[Section]) -> None:
    """Make pydantic's validator of a section, after those of its defaults.

    The defaults are sections that are made by themselves. In this order each is built once, else once more within each
    section around it.
    """
    for field in model.model_fields.values():
        if isinstance(field.default_factory, type) and issubclass(field.default_factory, Section):
            build(field.default_factory)
    model.model_rebuild()


def variants(annotation: Any) -> list[Any]:
    """Return the alternatives of an annotation, without `None` and wrappers."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):  # most of them
        return [annotation]
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return variants(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [v for part in typing.get_args(annotation) if part is not type(None) for v in variants(part)]
    return [annotation]


def child(annotation: Any, part: str | int) -> Any:
    """Return the annotation one path part below, or `None` for no such part."""
    for kind in variants(annotation):
        origin = typing.get_origin(kind)
        args = typing.get_args(kind)
        if isinstance(kind, type) and issubclass(kind, Section) and part in kind.model_fields:
            return kind.model_fields[str(part)].annotation
        if origin is tuple and isinstance(part, int):
            return args[0] if args[-1:] == (Ellipsis,) or part >= len(args) else args[part]
        if origin is dict and isinstance(part, str):
            return args[1]
        if kind is Any:
            return Any
    return None


@functools.cache
def annotation_at(path: Path) -> Any:
    """Return the annotation of a path, or `None` if the schema lacks it."""
    if not path:
        return Config
    if len(path) > MAX_DEPTH:
        return None
    around = annotation_at(path[:-1])
    return None if around is None else child(around, path[-1])


@functools.cache
def model_at(path: Path) -> type[Section] | None:
    """Return the section class at a path.

    Returns `None` for a value or a free mapping.
    """
    for kind in variants(annotation_at(path)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


def field_at(path: Path) -> FieldInfo | None:
    """Return the field of a path, or `None`."""
    model = model_at(path[:-1]) if path else None
    return model.model_fields.get(str(path[-1])) if model is not None else None


def default_at(path: Path) -> tuple[bool, Any]:
    """Return whether the schema has a plain default at a path, and which."""
    field = field_at(path)
    if field is None or field.default_factory is not None:
        return False, None
    return True, field.get_default()


def values_of(path: Path) -> list[Any]:
    """Return the values of a key that can be listed, null left out.

    Empty for a key that takes others, too.
    """
    found: list[Any] = []
    for kind in variants(annotation_at(path)):
        if typing.get_origin(kind) is typing.Literal:
            found += typing.get_args(kind)
        elif kind is bool:
            found += [True, False]
        else:
            return []
    return [value for value in found if value is not None]


@functools.cache
def holds_section(path: Path) -> bool:
    """Return whether a section, or a list or mapping of sections, is there."""
    return any(model_at((*path, *item)) is not None for item in ((), (0,), ("*",)))


def facts_at(path: Path, *, stops: bool = True) -> tuple[Path, Facts]:
    """Return the facts of a key and the path that declares them.

    That is the path of the key or of a section around it. Facts of a section hold for all of its keys; facts of
    a key hold for all entries of its mapping. If several sections around a key declare what is refused, the outermost
    one counts, unless `stops` is false.
    """
    return _walked_to(path[:MAX_DEPTH], stops).found


class _Walk(typing.NamedTuple):
    """What is known of a path after its parts have been walked.

    Attributes:
        found: the path that declares facts, and these.
        names: of the parts, `*` for an item.
        around: depth of each section around, and what it declares of the keys in it.
        is_stopped: a section around is refused as a whole.
    """

    found: tuple[Path, Facts] = ((), NO_FACTS)
    names: tuple[str, ...] = ()
    around: tuple[tuple[int, Mapping[str, Facts]], ...] = ()
    is_stopped: bool = False


@functools.cache
def _walked_to(path: Path, stops: bool) -> _Walk:
    """Return the walk to a path, one part longer than that to its section."""
    if not path:
        return _Walk()
    before = _walked_to(path[:-1], stops)
    if before.is_stopped:
        return before
    field = field_at(path)
    names = (*before.names, "*" if field is None else str(path[-1]))
    if field is None:
        return before._replace(names=names)
    facts = facts_of(field)
    for start, at in reversed(before.around):
        facts = _over(facts, at.get(".".join(names[start:]), NO_FACTS))
    is_stopped = stops and facts.support is not None and holds_section(path)
    return _Walk((path, facts), names, (*before.around, (len(path), facts.at)), is_stopped)


def _over(facts: Facts, other: Facts) -> Facts:
    """Return facts overridden by those that the other one has."""
    if other is NO_FACTS:  # of nearly all
        return facts
    return dataclasses.replace(facts, **{name: value for name, value in vars(other).items() if value})


def fields_of(
    model: type[Section], path: Path = (), *, into: tuple[type[Section], ...] = ()
) -> Iterator[tuple[Path, FieldInfo]]:
    """Yield every field below a section once; items and values are `*`."""
    for name, field in model.model_fields.items():
        place = (*path, name)
        yield place, field
        for kind in variants(field.annotation):
            inner = typing.get_args(kind)
            target = kind
            if typing.get_origin(kind) in (tuple, dict) and inner:
                target, place = variants(inner[-1] if inner[-1] is not Ellipsis else inner[0])[0], (*place, "*")
            if isinstance(target, type) and issubclass(target, Section) and target not in into:
                yield from fields_of(target, place, into=(*into, target))


@functools.cache
def facts_below(path: Path, *, stops: bool = True) -> tuple[tuple[Path, Facts], ...]:
    """Return keys below a section with their facts, without items and values.

    Those inside of a refused section are among them only if `stops` is false.
    """
    model = model_at(path)
    places = (place for place, _ in fields_of(model, path) if "*" not in place) if model is not None else ()
    found = ((place, facts_at(place, stops=stops)) for place in places)
    return tuple((place, facts) for place, (at, facts) in found if at == place)


@functools.cache
def homes() -> dict[str, tuple[Path, ...]]:
    """Return the sections of each key name, shallow first, without `stages`."""
    found: dict[str, list[Path]] = {}
    for path, _ in fields_of(Config):
        if path[0] != "stages":
            found.setdefault(str(path[-1]), []).append(path[:-1])
    return {name: tuple(sorted(paths, key=lambda p: (len(p), p))) for name, paths in found.items()}
