"""Interpolations: `${model.model_path}`, `${oc.env:VAR,default}` and more.

Each leaf is resolved separately, so that one broken leaf does not hide the others. Only resolvers that read the
configuration or the environment are allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from trinity.common.config.nearest import nearest
from trinity.common.config.problems import Finding
from trinity.common.config.schema_index import default_at, homes, model_at
from trinity.common.config.tree import Origin, Path, Tree, dotted
from trinity.utils.log import add_secret, is_secret_name

ALLOWED = ("oc.decode", "oc.dict.keys", "oc.dict.values", "oc.env", "oc.select")
_RESOLVER = re.compile(r"(?<!\\)\$\{\s*([A-Za-z_][\w.]*)\s*:")
_NODE = re.compile(r"(?<!\\)\$\{\s*([A-Za-z_][\w.\[\]]*)\s*\}")
_ENV = re.compile(r"(?<!\\)\$\{\s*oc\.env\s*:\s*([A-Za-z_]\w*)")
_PART = re.compile(r"[^.\[\]]+")
Meant = Callable[[Path], str | None]
VERL_ROOT: Path = ("trainer", "trainer_config")
SHARED_WITH_VERL = ("trainer", "algorithm")
"""Sections that are called the same in veRL's files."""


def resolve_interpolations(
    tree: Tree, *, only: Path | None = None, meant: Meant | None = None
) -> tuple[Tree, list[Finding]]:
    """Return the tree with every interpolation replaced, and the problems.

    A leaf with a problem is left out of the returned tree.

    Args:
        tree: the values.
        only: just this leaf is replaced.
        meant: returns the way out for a reference to nothing; by default one with keys of ours.
    """
    leaves = [path for path in tree.leaves() if _is_interpolation(tree.get(path)) and only in (None, path)]
    if not leaves:
        return tree, []
    problems: dict[Path, Finding] = {}
    for path in leaves:
        problem = _check_syntax(tree, path) or _check_cycle(tree, path)
        if problem is not None:
            problems[path] = problem
    good = [path for path in leaves if path not in problems]
    source = _source(tree, good, bad=list(problems), has_defaults=meant is None)
    resolved = tree.copy()
    for path in good:
        value, problem = _resolve(source, tree, path, meant)
        if problem is not None:
            problems[path] = problem
            continue
        resolved.put(path, value)
        _note_environment(resolved, path, tree.get(path))
    for path in problems:
        resolved.drop(path)
    return resolved, list(problems.values())


def references(text: str) -> list[Path]:
    """Return the paths that a text refers to by `${a.b}`."""
    return [tuple(int(p) if p.isdigit() else p for p in _PART.findall(found)) for found in _NODE.findall(text)]


def _is_interpolation(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _check_syntax(tree: Tree, path: Path) -> Finding | None:
    text = tree.get(path)
    for name in _RESOLVER.findall(text):
        if name not in ALLOWED:
            near = nearest(name, ALLOWED)
            hint = f"did you mean `{near}`?" if near else f"allowed: {', '.join(ALLOWED)}"
            return tree.problem(
                "E1404", path, f"resolver `{name}` is not allowed in `{dotted(path)}`", value=text, suggestion=hint
            )
    from omegaconf import OmegaConf  # a tenth of the time of a check, and most files refer to nothing
    from omegaconf.errors import GrammarParseError

    try:
        OmegaConf.create({"leaf": text})
    except GrammarParseError as error:
        return tree.problem(
            "E1405",
            path,
            f"`{dotted(path)}` is no valid interpolation: {_first_line(error)}",
            value=text,
            suggestion="write ${section.key} or ${oc.env:NAME,default}",
        )
    return None


def _check_cycle(tree: Tree, start: Path) -> Finding | None:
    trail: list[Path] = []

    def visit(path: Path) -> list[Path] | None:
        if path in trail:
            return [*trail[trail.index(path) :], path]
        value = _leaf(tree, path)
        if not _is_interpolation(value):
            return None
        trail.append(path)
        for target in references(value):
            cycle = visit(target)
            if cycle is not None:
                return cycle
        trail.pop()
        return None

    cycle = visit(start)
    if cycle is None:
        return None
    shown = " -> ".join(dotted(path) for path in cycle)
    return tree.problem(
        "E1403",
        start,
        f"interpolation cycle: {shown}",
        value=tree.get(start),
        suggestion="give one of these keys a value",
    )


def _leaf(tree: Tree, path: Path) -> Any:
    try:
        return tree.get(path)
    except KeyError:
        return None


def _source(tree: Tree, good: list[Path], *, bad: list[Path], has_defaults: bool) -> Any:
    """Return values, referenced defaults and aliases for interpolations.

    Defaults are those of our own keys, which files of other tools lack.
    """
    from omegaconf import OmegaConf

    copy = tree.copy()
    for path in bad:
        copy.drop(path)
    for path in good:
        for target in references(tree.get(path)):
            if has_defaults:
                _add_below_verl(copy, target)
                _add_default(copy, target)
    verl = _leaf(copy, VERL_ROOT)
    for name in verl if isinstance(verl, dict) else ():
        copy.values.setdefault(name, verl[name])
    return OmegaConf.create(copy.values)


def _add_below_verl(copy: Tree, target: Path) -> None:
    """Insert a key of veRL's section that is referenced as in veRL's file.

    Of a section that is called the same here: the others are found as a whole.
    """
    value = _leaf(copy, (*VERL_ROOT, *target))
    if target[0] not in SHARED_WITH_VERL or value is None or _leaf(copy, target) is not None:
        return
    node: Any = copy.values
    for part in target[:-1]:
        node = node.setdefault(part, {}) if isinstance(node, dict) else {}
    if isinstance(node, dict):
        node[target[-1]] = value


def _add_default(copy: Tree, target: Path) -> None:
    """Insert the schema's default of a key that is referenced but not written."""
    for path in (target, (*VERL_ROOT, *target)):
        has_default, default = default_at(path)
        if not has_default or any(isinstance(part, int) for part in path):
            continue
        node: Any = copy.values
        for part in path[:-1]:
            node = node.setdefault(part, {}) if isinstance(node, dict) else {}
        if isinstance(node, dict):
            node.setdefault(path[-1], list(default) if isinstance(default, tuple) else default)


def _resolve(source: Any, tree: Tree, path: Path, meant: Meant | None) -> tuple[Any, Finding | None]:
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

    text = tree.get(path)
    try:
        node = source
        for part in path:
            node = node[part]
        value = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    except InterpolationKeyError:
        return None, _unknown_reference(tree, path, meant)
    except (OmegaConfBaseException, RecursionError) as error:
        return None, _failed(tree, path, error)
    if is_secret_name(str(path[-1])) and isinstance(value, str) and value != text:
        add_secret(value)
    return value, None


def _failed(tree: Tree, path: Path, error: Exception) -> Finding:
    text = tree.get(path)
    for name in _ENV.findall(text):
        if name not in os.environ:
            return tree.problem(
                "E1401",
                path,
                f"environment variable `{name}` is not set, `{dotted(path)}` needs it",
                value=text,
                suggestion=f"export {name}=... or write ${{oc.env:{name},default}}",
            )
    code = "E1402" if references(text) else "E1405"
    return tree.problem(code, path, f"cannot resolve `{dotted(path)}`: {_first_line(error)}", value=text)


def _unknown_reference(tree: Tree, path: Path, meant: Meant | None) -> Finding:
    text = tree.get(path)
    for target in references(text):
        has_own = meant is None and (default_at(target)[0] or default_at((*VERL_ROOT, *target))[0])
        if has_own or _leaf(tree, target) is not None:
            continue
        hint = (meant or _meant)(target)
        return tree.problem(
            "E1402",
            path,
            f"`{dotted(path)}` refers to `{dotted(target)}`, which does not exist",
            value=text,
            suggestion=hint,
        )
    return tree.problem("E1402", path, f"`{dotted(path)}` refers to a key that does not exist", value=text)


def _meant(target: Path) -> str | None:
    name, model = str(target[-1]), model_at(target[:-1])
    near = nearest(name, model.model_fields) if model else None
    return f"did you mean `{dotted((*target[:-1], near))}`?" if near else _elsewhere(name)


def _elsewhere(name: str) -> str | None:
    places = homes().get(name)
    if places:
        return f"did you mean `{dotted((*places[0], name))}`?"
    near = nearest(name, homes())
    return f"did you mean `{dotted((*homes()[near][0], near))}`?" if near else None


def _note_environment(tree: Tree, path: Path, text: str) -> None:
    """Add environment variables that were read to the chain of origins."""
    used = tuple(Origin("env", name) for name in _ENV.findall(text) if name in os.environ)
    if used:
        tree.origins[path] = (*tree.origins.get(path, ()), *used)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
