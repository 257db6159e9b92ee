"""ModelArts' form of a veRL file: `backend_config.*` and `af_output_dir`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from trinity.common.config.dialects.hydra import WRAPPED
from trinity.common.config.dialects.table import children, is_section, row_of
from trinity.common.config.dialects.translation import FOREIGN, Translation
from trinity.common.config.nearest import nearest
from trinity.common.config.problems import Finding, described
from trinity.common.config.tree import Origin, Path, Tree, dotted
from trinity.utils.remote.addresses import scheme_name

ESTIMATOR = "algorithm.adv_estimator"
OUTPUT, BACKEND, ENGINE = "af_output_dir", WRAPPED, "engine_kwargs"
WRAPPER = (OUTPUT, BACKEND, ENGINE)
REQUIRED = ("data.train_files", "data.val_files", "actor_rollout_ref.model.path")
"""Keys of `backend_config` that have to be written, beside `af_output_dir`."""
DEFAULTS: dict[str, Any] = {"actor_rollout_ref.actor.use_kl_loss": True, ESTIMATOR: "grpo"}
"""Defaults that differ from veRL's own.

With a KL term in the loss, the reward has none. ModelArts' keys know no critic, which veRL's default would need.
"""
_NAME = re.compile(r"(?<!--set )(?<![\w./-])[a-z_]+(?:\.\w+)+(?![\w/])")
_INSIDE: Path = ("actor_rollout_ref", "rollout", ENGINE)


def is_modelarts(values: dict[str, Any]) -> bool:
    """Return whether a file has ModelArts' form."""
    return any(name in (OUTPUT, BACKEND) or name.startswith(f"{BACKEND}.") for name in values)


def unwrapped(tree: Tree) -> tuple[Tree, list[Finding]]:
    """Return the file under veRL's names, and what is wrong with its form.

    Keys may be nested or dotted, and those of veRL may lack the prefix.
    """
    result, problems = Tree(), list[Finding]()
    for path, value in _leaves(tree.values, ()):
        words = _words(path)
        place = words[1:] if words[0] == BACKEND else (*_INSIDE, *words[1:]) if words[0] == ENGINE else words
        if not place:
            continue
        if place[0] not in (OUTPUT, *children()[""]):
            problems.append(_unknown(tree, path, words))
            continue
        before = _get(result, place)
        if before is not None and before != value:
            message = f"`{dotted(path)}` is {value}, but it was written before as {before}"
            problems.append(tree.problem("E1943", path, message, suggestion="keep one of them"))
            continue
        _put(result, place, value, tree.origin(path))
    return result, problems


def verl_name_of(name: str) -> str:
    """Return veRL's name of a dotted key of ModelArts, or the name itself."""
    name = name.removeprefix(f"{BACKEND}.")
    inside = name.removeprefix(f"{ENGINE}.")
    return name if inside == name else f"{dotted(_INSIDE)}.{inside}"


def _words(path: Path) -> tuple[str, ...]:
    return tuple(word for part in path for word in str(part).split("."))


def _leaves(value: Any, path: Path) -> list[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        return [leaf for name, inner in value.items() for leaf in _leaves(inner, (*path, name))]
    return [(path, value)] if path else []


def _unknown(tree: Tree, path: Path, words: tuple[str, ...]) -> Finding:
    is_inside = words[0] == BACKEND
    word = words[1] if is_inside else words[0]
    near = nearest(word, children()[""] if is_inside else (*WRAPPER, *children()[""]))
    known = ", ".join(sorted(children()[""]) if is_inside else WRAPPER)
    hint = f"did you mean `{near}`?" if near else f"known here: {known}"
    return tree.problem("E1941", path, f"`{dotted(path)}` is no key of ModelArts", suggestion=hint)


def _get(tree: Tree, place: Path) -> Any:
    try:
        return tree.get(place)
    except KeyError:
        return None


def _put(tree: Tree, place: Path, value: Any, origin: Origin | None) -> None:
    node: Any = tree.values
    for part in place[:-1]:
        node = node.setdefault(part, {})
    node[place[-1]] = value
    if origin is not None:
        tree.origins[place] = (origin,)


def apply_wrapper(t: Translation, tree: Tree, wrapper: dict[str, Any]) -> None:
    """Make `af_output_dir` the root of all outputs."""
    if not t.is_written(ESTIMATOR):
        t.tell("W1941", ESTIMATOR, f"`{BACKEND}.{ESTIMATOR}` is not written: it is {DEFAULTS[ESTIMATOR]} here",
               suggestion=f"write `{BACKEND}.{ESTIMATOR}` to be clear")  # fmt: skip
    root = wrapper.get(OUTPUT)
    if not root:
        return
    origin = tree.origin((OUTPUT,))
    if not isinstance(root, str):
        message = f"`{OUTPUT}` must be a folder, got {described(OUTPUT, root)}"
        t.problems.append(tree.problem("E1101", (OUTPUT,), message, rule="a folder", value=root))
        return
    folder = "trainer.default_local_dir"
    written = PurePath(str(t.value(folder))) if t.is_written(folder) else None
    is_elsewhere = scheme_name(t.value(folder)) is not None or (written is not None and written.is_absolute())
    if written is not None and is_elsewhere and not written.is_relative_to(root):
        t.tell("E1943", folder, f"`{t.written(folder)}` is {t.value(folder)}, which is not below {OUTPUT} ({root})",
               suggestion=f"remove `{folder}`, or write a folder below {OUTPUT}")  # fmt: skip
        return
    inner = t.ours.values.get("checkpoint_root_dir", "") if written is not None else ""
    t.ours.values["checkpoint_root_dir"] = root if scheme_name(root) is not None else str(PurePath(root) / inner)
    place = Origin(FOREIGN, "", written=(OUTPUT,)) if origin is None else origin
    t.ours.origins[("checkpoint_root_dir",)] = (
        Origin(FOREIGN, place.file, place.line, place.column, (OUTPUT,), place.text),
    )


def with_prefix(t: Translation) -> None:
    """Let problems of a translation name keys as a ModelArts file does."""

    def spelt(name: str) -> str:
        is_theirs = row_of(name) is not None or is_section(name)
        return f"{BACKEND}.{name}" if is_theirs and not t.is_there(name) else t.written(name)

    def said(text: str) -> str:
        return _NAME.sub(lambda found: spelt(found[0]), text)

    t.problems = [
        replace(
            each,
            key=spelt(each.key) if each.file is None else each.key,
            message=said(each.message),
            suggestion=None if each.suggestion is None else said(each.suggestion),
        )
        for each in t.problems
    ]


def check_required(t: Translation, tree: Tree, wrapper: dict[str, Any]) -> None:
    """Note each required key that is missing (E1942)."""
    missing = [] if wrapper.get(OUTPUT) else [OUTPUT]
    missing += [f"{BACKEND}.{name}" for name in REQUIRED if not t.is_written(name)]
    origin = next(iter(tree.origins.values()), (None,))[0]
    file = None if origin is None else origin.file
    t.problems += [
        Finding("E1942", name, f"`{name}` is missing: a ModelArts file must have it", file=file,
                suggestion=f"write `{name}`, or give it after the file: {name}=...")
        for name in missing
    ]  # fmt: skip
