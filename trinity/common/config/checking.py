"""Conversion of a tree to a typed `Config`, with a problem for each fault."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trinity.common.config.base import Section
from trinity.common.config.config import Config
from trinity.common.config.dialects.modelarts import BACKEND, OUTPUT, verl_name_of
from trinity.common.config.dialects.table import row_of
from trinity.common.config.foreign import known_elsewhere
from trinity.common.config.interpolation import VERL_ROOT
from trinity.common.config.nearest import distance, nearest
from trinity.common.config.problems import Finding, described
from trinity.common.config.schema_index import annotation_at, build, facts_at, homes, model_at, variants
from trinity.common.config.tree import Path, Tree, dotted

_EXPECTED = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
}
_MAX_ROUNDS = 4


def check_schema(tree: Tree) -> tuple[Config, list[Finding], set[Path]]:
    """Return the typed configuration, its problems and the omitted paths.

    A broken value is replaced by its default, so that the other rules can be checked too.
    """
    build(Config)
    rest = tree.copy()
    problems: list[Finding] = []
    broken: set[Path] = set()
    for _ in range(_MAX_ROUNDS):
        try:
            return Config.model_validate(rest.values), problems, broken
        except ValidationError as error:
            found = {path: _problem(rest, path, details) for path, details in _by_path(rest, error).items()}
            problems += found.values()
            broken |= {path for path, problem in found.items() if problem.is_error}
            for path in found:
                _drop(rest, path)
    return Config(), problems, broken


def _drop(tree: Tree, path: Path) -> None:
    """Remove a broken value; for a broken list item, remove the whole list."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    try:
        tree.drop(path)
    except KeyError:
        return


def _by_path(tree: Tree, error: ValidationError) -> dict[Path, list[ErrorDetails]]:
    """Group pydantic's errors by path; a union reports a value several times."""
    grouped: dict[Path, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        path: Path = ()
        for part in details["loc"]:
            if not _exists(tree, (*path, part)):
                break
            path = (*path, part)
        grouped.setdefault(path, []).append(details)
    return grouped


def _exists(tree: Tree, path: Path) -> bool:
    try:
        tree.get(path)
    except KeyError:
        return False
    return True


def _problem(tree: Tree, path: Path, errors: list[ErrorDetails]) -> Finding:
    first = errors[0]
    kind = first["type"]
    if kind == "extra_forbidden":
        return unknown_key(tree, path)
    if kind == "literal_error":
        return _not_a_choice(tree, path, first)
    if kind.startswith("E1"):
        return tree.problem(
            kind,
            path,
            f"`{dotted(path)}` {first['msg']}, got {described(dotted(path), first['input'])}",
            rule=first["msg"],
            value=first["input"],
            suggestion=_name_hint(first["input"]),
        )
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"):
        return _out_of_range(tree, path, errors)
    return _wrong_type(tree, path, errors)


def _wrong_type(tree: Tree, path: Path, errors: list[ErrorDetails]) -> Finding:
    value = errors[0]["input"]
    if isinstance(value, Section):
        value = tree.get(path)
    expected = " or ".join(dict.fromkeys(_EXPECTED.get(_kind(error), _kind(error)) for error in errors))
    key = dotted(path)
    return tree.problem(
        "E1101",
        path,
        f"`{key}` must be {expected}, got {described(key, value)}",
        rule=expected,
        value=value,
        suggestion=_type_hint(path, expected),
    )


def _kind(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind == "value_error":
        return "a number"
    if kind == "recursion_loop":
        return "a plain value"
    return kind.split("_", 1)[0]


def _type_hint(path: Path, expected: str) -> str | None:
    name = str(path[-1]) if path else ""
    if expected == "a mapping":
        inner = [v for v in variants(annotation_at(path)) if isinstance(v, type) and issubclass(v, Section)]
        example = next(iter(inner[0].model_fields)) if inner else "name"
        return f"write `{name}: {{{example}: ...}}`"
    if expected == "a list":
        return f"write `{name}: [...]`"
    return None


def _out_of_range(tree: Tree, path: Path, errors: list[ErrorDetails]) -> Finding:
    signs = {
        "greater_than": (">", "gt"),
        "greater_than_equal": (">=", "ge"),
        "less_than": ("<", "lt"),
        "less_than_equal": ("<=", "le"),
    }
    error = errors[0]
    key = dotted(path)
    if error["type"] == "finite_number":
        rule = "a finite number"
    else:
        sign, name = signs[error["type"]]
        rule = f"{sign} {error['ctx'][name]:g}"
    hint = "never is spelled `null`" if path[-1:] == ("eval_interval",) and error["input"] == 0 else None
    return tree.problem(
        "E1302",
        path,
        f"`{key}` must be {rule}, got {described(key, error['input'])}",
        rule=rule,
        value=error["input"],
        suggestion=hint,
    )


def _not_a_choice(tree: Tree, path: Path, error: ErrorDetails) -> Finding:
    choices = [part.strip().strip("'") for part in error["ctx"]["expected"].replace(" or ", ", ").split(",")]
    key = dotted(path)
    value = error["input"]
    near = nearest(str(value), choices)
    hint = f"did you mean `{near}`?" if near else f"one of: {', '.join(choices)}"
    return tree.problem(
        "E1301",
        path,
        f"`{key}` must be one of {', '.join(choices)}, got {described(key, value)}",
        rule=f"one of {', '.join(choices)}",
        value=value,
        suggestion=hint,
    )


def _name_hint(value: Any) -> str | None:
    kept = "".join(c for c in str(value) if c.isalnum() or c in "_-.+").strip("-._")[:60]
    return f"for example `{kept}`" if kept and not any(part in str(value) for part in ("..",)) else None


def unknown_key(tree: Tree, path: Path) -> Finding:
    """Return the finding of an unknown key, with the key that was meant.

    It may be veRL's name, a typing error in this section, or a key of another section.
    """
    name = str(path[-1])
    key = dotted(path)
    of_verl = _verl_key(tree, path)
    if of_verl is not None:
        return of_verl
    model = model_at(path[:-1])
    here = list(model.model_fields) if model is not None else []
    ends = [field for field in here if field.endswith(f"_{name}")]
    near = ends[0] if len(ends) == 1 else nearest(name, here)
    elsewhere = known_elsewhere(path)
    if elsewhere is not None:
        framework, other = elsewhere
        message = f"unknown key `{key}`: it is a {framework} key"
        return tree.problem("E1205", path, message, suggestion=f"write `{other}`", value=tree.get(path))
    places = [place for place in homes().get(name, ()) if "*" not in place]
    is_typo = near is not None and (distance(name, near) == 1 or len(ends) == 1 or not places)
    if is_typo or not places:
        return tree.problem(
            "E1203", path, f"unknown key `{key}`", value=tree.get(path), suggestion=_typo_hint(name, near, path)
        )

    def farness(place: Path) -> tuple[bool, int, int]:
        is_repeated = facts_at((*place, name))[1].set_from is not None  # there it only repeats another key
        return is_repeated, -_shared(place, path), len(place)

    home = min(places, key=farness)
    where = f"`{dotted(home)}`" if home else "the top level"
    return tree.problem(
        "E1204",
        path,
        f"unknown key `{key}`: `{name}` belongs to {where}",
        value=tree.get(path),
        suggestion=f"write `{dotted((*home, name))}`",
    )


def _verl_key(tree: Tree, path: Path) -> Finding | None:
    """Return the finding of a key that veRL has at this place of its tree.

    It has another place here (E1205), is refused (E1940), or changes nothing (W1940). None: veRL has no such key.
    """
    if path[:2] != VERL_ROOT or len(path) < 3:
        return None
    name, value = verl_name_of(dotted(path[2:])), tree.get(path)
    if name == OUTPUT:
        message = f"unknown key `{dotted(path)}`: here this ModelArts key has another place"
        return tree.problem("E1205", path, message, suggestion="write `checkpoint_root_dir`", value=value)
    if name == BACKEND:
        message = f"unknown key `{dotted(path)}`: it is ModelArts' form of a veRL file"
        way_out = "move its keys one level up, or use the ModelArts file itself, where it stands at the top level"
        return tree.problem("E1205", path, message, suggestion=way_out, value=value)
    row = row_of(name)
    if row is not None and row.name != name and model_at(path[:-1]) is not None:
        row = None  # of a section whose keys are known here
    if row is None and isinstance(value, dict) and value:
        row = row_of(f"{name}.{next(iter(value))}")  # a section of which nothing is here
    if row is None:
        return None
    key = dotted(path)
    row = row_of(row.newer) or row if row.newer else row
    if row.to:
        places = [place for place in row.to if not place.startswith(f"{dotted(VERL_ROOT)}.")] or list(row.to)
        message = f"unknown key `{key}`: here this veRL key has another place"
        return tree.problem("E1205", path, message, suggestion=f"write `{places[0]}`", value=value)
    if row.instead and not row.is_accepted(value):
        message = f"`{key}` is refused: {row.why}"
        return tree.problem("E1940", path, message, suggestion=row.instead, value=value)
    return tree.problem("W1940", path, f"`{key}` changes nothing here: {row.why}", suggestion="remove it", value=value)


def _shared(place: Path, path: Path) -> int:
    count = 0
    for left, right in zip(place, path, strict=False):
        if left != right:
            break
        count += 1
    return count


def _typo_hint(name: str, near: str | None, path: Path) -> str | None:
    if near is not None:
        return f"did you mean `{near}`?"
    if "：" in name:
        return "use ':' instead of the full-width '：'"
    far = nearest(name, homes())
    if far is not None:
        places = sorted(homes()[far], key=lambda place: (-_shared(place, path), len(place)))
        return f"did you mean `{dotted((*places[0], far))}`?"
    model = model_at(path[:-1])
    return f"known here: {', '.join(sorted(model.model_fields))}" if model is not None else None
