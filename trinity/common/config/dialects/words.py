"""Findings of a translated file in the words of that file.

Rules speak of our keys. Here, and only here, a finding gets the key that the user wrote, its line, its value, and a way
out that can be written into that file. The way back is that of `backwards`, so that units are the file's too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import yaml

from trinity.common.config.dialects.algorithms import LOSSES
from trinity.common.config.dialects.backwards import as_verl
from trinity.common.config.dialects.foreign_key import VERL_TREE, ForeignKey
from trinity.common.config.dialects.table import by_name, is_section, row_of, words
from trinity.common.config.dialects.translation import FOREIGN, Translation
from trinity.common.config.overrides import parse_path
from trinity.common.config.problems import Finding
from trinity.common.config.reading import parse_value
from trinity.common.config.schema_index import annotation_at, facts_below, field_at, homes
from trinity.common.config.tree import Origin, Path, Tree, dotted, value_at

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "buffer.train_batch_size": ("data.train_batch_size", f"{_ROLLOUT}.n"),
}
"""Our keys that are the product of several of veRL's; a finding is at the first of them."""
_KNOWN = {
    "algorithm.repeat_times": f"{_ROLLOUT}.n",
    "algorithm.optimizer": f"{_ACTOR}.optim",
    "algorithm.policy_loss_fn_args": f"{_ACTOR}.policy_loss",
    "model.lora_configs[0].path": "actor_rollout_ref.model.lora_adapter_path",
    "explorer.rollout_model": _ROLLOUT,
    "trainer.megatron": f"{_ACTOR}.megatron",
    "buffer.explorer_input.taskset": "data.train_files",
    "buffer.explorer_input.tasksets": "data.train_files",
    "buffer.explorer_input.eval_tasksets": "data.val_files",
    "trainer.total_steps": "trainer.total_training_steps",
    "trainer.max_checkpoints_to_keep": "trainer.max_actor_ckpt_to_keep",
    "monitor.monitor_args": "trainer.logger",
}
"""Sections, and keys of which the table has several: the one that users think of."""
_CHOOSING = ("algorithm.algorithm_type", "algorithm.advantage_fn", "algorithm.policy_loss_fn")
_MODES = {"mode both": "a run that trains", "mode bench": "`trainer.val_only: true`"}
_KEY = r"[a-z_]+(?:\.\w+|\[\d+\])+|[a-z]+(?:_[a-z0-9]+)+"
_SAID = re.compile(
    rf"(?<![\w./-])(?P<key>{_KEY})(?![\w/]|\.\w)(?:(?P<gap>`?(?: is |: | \(|, got | ))(?P<value>[\w.+-]*\w))?"
)
_WRITTEN = re.compile(
    r"`(?P<key>[\w.\[\]]+): (?P<value>[^`]+)`(?: under `(?P<section>[\w.]+)`)?"
    r"|--set (?P<set>[\w.\[\]]+)=(?P<to>[\w./:+-]+)"
)


@dataclass(frozen=True)
class ForeignWords:
    """The words of a foreign file.

    Attributes:
        foreign: its values under veRL's names, with their places.
        prefix: what stands in it before veRL's names.
        changed: our keys with another value than the file has: ours, and the file's.
        names: our names for what a key of the file chooses: that key and its value.
    """

    foreign: Tree
    prefix: str
    changed: Mapping[str, tuple[Any, Any]]
    names: Mapping[str, str]

    def problem(self, tree: Tree, path: Path, found: Finding) -> Finding:
        """Return a finding about one of our keys as one about the file."""
        key, origin = self._place(tree, path)
        details: dict[str, Any] = {"key": key}
        if origin is not None:
            details |= {"file": origin.file, "line": origin.line, "column": origin.column, "source_line": origin.text}
        with suppress(KeyError):
            details["value"] = self.foreign.get(parse_path(key.removeprefix(self.prefix)) or ())
        hint = found.suggestion
        if hint is not None:
            hint = self._hint(hint, tree, path)
            if dotted(path) in PRODUCTS and path not in tree.origins:
                hint = re.sub(r"^use (?=\d)", "make the product ", hint)
        message = found.message
        if annotation_at(path) is None:
            message = message.replace(f"`{dotted(path)}`", f"`{key}`")
        message = self._said(message, tree, path)
        for ours, theirs in _MODES.items():
            message = message.replace(ours, theirs)
        return replace(found, message=message, rule=self._said(found.rule, tree, path), suggestion=hint, **details)

    def key(self, tree: Tree, path: Path) -> str | None:
        """Return the file's key for one of ours, as the file has it.

        None: it has none for that, or ours was given beside the file.
        """
        chain = tree.origins.get(path) or tree.origins.get((*path, 0))  # a list is written as a whole
        if chain:
            return self._spelt(chain[0]) if chain[0].kind == FOREIGN else None
        name = counterparts().get(dotted(path)) or _below_verl(path)
        if name is not None:
            return f"{self.prefix}{name}"
        above = self.key(tree, path[:-1]) if len(path) > 1 else None
        if above is None:
            return None
        if isinstance(path[-1], int):
            return f"{above}[{path[-1]}]"
        row = row_of(above.removeprefix(self.prefix))
        return f"{above}.{path[-1]}" if row is not None and row.is_section else None

    def _spelt(self, origin: Origin) -> str:
        """Return the key of an origin; that of a default has no prefix yet."""
        name = dotted(origin.written)
        is_default = origin.line is None and not origin.file.startswith("override")
        return f"{self.prefix}{name}" if is_default and self.prefix and row_of(name) is not None else name

    def _place(self, tree: Tree, path: Path) -> tuple[str, Origin | None]:
        """Return the key of a finding, and its place or that around it."""
        product = PRODUCTS.get(dotted(path))
        if product is not None and path not in tree.origins:
            return f"{self.prefix}{product[0]}", self._origin(product[0])
        name, chain = self.key(tree, path), tree.origins.get(path)
        if chain:
            return (dotted(path) if name is None else name), chain[0]
        if name is not None:
            return name, self._origin(name.removeprefix(self.prefix))
        return dotted(path), tree.origin(path) or self._origin("")

    def _origin(self, name: str) -> Origin | None:
        """Return the place of a key of veRL's, or the one around it."""
        found = self.foreign.origin(parse_path(name) or ())
        if found is not None:
            return found
        first = next(iter(self.foreign.origins.values()), None)
        return None if first is None else Origin(FOREIGN, first[0].file)

    def _said(self, text: str, tree: Tree, path: Path, *, is_hint: bool = False) -> str:
        """Return a text with the file's keys and values in place of ours."""

        def said(found: re.Match[str]) -> str:
            place = self._meant(found["key"], tree, path)
            rest = f"{found['gap'] or ''}{_SAID.sub(said, found['value'] or '')}"
            if place is None:
                if found["key"] in self.names:
                    return f"{self.names[found['key']]}{rest}"
                is_whole = text[: found.start()].endswith("`") and text[found.end("key") :].startswith("`")
                return f"{_given(found['key']) if is_hint and is_whole else found['key']}{rest}"
            product = PRODUCTS.get(dotted(place)) if place not in tree.origins else None
            if product is not None:
                return " x ".join(f"{self.prefix}{name}" for name in product) + rest
            name = self.key(tree, place)
            if name is not None and "." not in found["key"] and name.endswith(f".{found['key']}"):
                name = found["key"]
            if name is None:
                is_given = place in tree.origins
                return f"{found['key'] if is_given or not is_hint else f'--set {dotted(place)}=...'}{rest}"
            ours, theirs = self.changed.get(dotted(place), (None, None))
            if _is_switch(ours, theirs):
                return f"{name}: {_text(theirs)}{rest}"
            if found["value"] and theirs is not None and found["value"] == _text(ours):
                is_count = isinstance(ours, int | float) and not isinstance(ours, bool)
                value = f"{_text(theirs)}, here {_text(ours)}" if is_count else _text(theirs)
                return f"{name}{found['gap']}{value}"
            return f"{name}{rest}"

        return _SAID.sub(said, text)

    def _meant(self, word: str, tree: Tree, path: Path) -> Path | None:
        """Return the path of a key of ours that a text names, maybe in part."""
        if "." in word or "[" in word:
            place = parse_path(word) or ()
            tried = (place, (*path[:-1], *place))  # from the top, or beside the key
            return next((each for each in tried if annotation_at(each) is not None), None)
        if word in words() and path[-1:] != (word,):
            return None
        beside = (*path[:-1], word)
        sections = [home for home in homes().get(word, ()) if "*" not in home and dotted(home[:2]) != VERL_TREE]
        is_beside = field_at(beside) is not None or beside in tree.origins or dotted(beside) in counterparts()
        places = [*([beside] * is_beside), *((*home, word) for home in sections)]
        known = [place for place in places if self.key(tree, place) is not None]
        return next((place for place in known if place in tree.origins), known[0] if known else None)

    def _hint(self, text: str, tree: Tree, path: Path) -> str:
        """Return a way out that can be written into the file, or given beside it."""
        said, end = "", 0
        for found in _WRITTEN.finditer(text):
            said += self._said(text[end : found.start()], tree, path, is_hint=True)
            said += self._way_out(found, tree, path)
            end = found.end()
        return said + self._said(text[end:], tree, path, is_hint=True)

    def _way_out(self, found: re.Match[str], tree: Tree, path: Path) -> str:
        name, value = found["key"] or found["set"], parse_value(found["value"] or found["to"])
        section = () if found["section"] is None else parse_path(found["section"]) or ()
        place = _full(name, section, path)
        if place is None:
            return found[0]
        sign, is_example = "=" if found["set"] else ": ", "..." in found[0]
        said = [] if is_example else _backwards(place, value, tree)
        changes = [f"{self.prefix}{key}{sign}{_text(new)}" for key, new in said]
        own = self.key(tree, place)
        if is_example and own is not None:
            return f"`{own}: {found['value']}`"
        if not changes and own is not None and own.endswith(f".{place[-1]}"):
            changes = [f"{own}{sign}{_text(value)}"]
        ours, theirs = self.changed.get(dotted(place), (None, None))
        if _is_switch(ours, theirs) and changes and not any(each.startswith(str(own)) for each in changes):
            changes.append(f"{own}{sign}{_text(not theirs)}")
        if not changes:
            given = f"--set {dotted(place)}={found['value'] or found['to']}"
            return given if found["set"] else f"`{given}`"
        if found["set"]:
            return " ".join(f"--set {change}" for change in changes)
        return " and ".join(f"`{change}`" for change in changes)


def _is_switch(ours: Any, theirs: Any) -> bool:
    """Return whether a switch of the file decides another kind of value."""
    return isinstance(theirs, bool) and not isinstance(ours, bool | str)


def words_of(translation: Translation, *, prefix: str) -> ForeignWords:
    """Return the words of a translated file."""
    changed: dict[str, tuple[Any, Any]] = {}
    chosen: dict[str, str] = {}
    for place, names in translation.sources.items():
        ours, theirs = value_at(translation.ours.values, parse_path(place) or ()), translation.value(names[-1])
        is_loss = place == "algorithm.policy_loss_fn"
        if is_loss:  # which is one key of a section
            theirs = str(ours).removeprefix("verl_")
        if theirs is not None and (ours != theirs or isinstance(ours, bool) != isinstance(theirs, bool)):
            changed[place] = (ours, theirs)
            if place in _CHOOSING:
                name = f"{prefix}{names[-1]}" if not translation.is_there(names[-1]) else translation.written(names[-1])
                chosen[str(ours)] = f"{name}{'.loss_mode' * is_loss} {theirs}"
    return ForeignWords(translation.foreign, prefix, changed, chosen)


@functools.cache
def counterparts() -> Mapping[str, str]:
    """Return veRL's key for each of ours that one decides, as the table says.

    A key of the same name comes first, then one whose value is taken over as it is.
    """
    found = dict(_KNOWN)
    rows = sorted(by_name().values(), key=lambda row: (bool(row.via), len(row.to), row.is_section))
    for place, name in (pair for row in rows for pair in _pairs(row)):
        found.setdefault(place, name)
    for loss in LOSSES.values():
        for key, argument in loss.items():
            found.setdefault(f"algorithm.policy_loss_fn_args.{argument}", f"{_ACTOR}.{key}")
    for path, facts in facts_below(tuple(VERL_TREE.split("."))):
        name = dotted(path[2:])
        if (facts.mirrors or facts.set_from) and name in by_name():
            found.setdefault(facts.mirrors or facts.set_from or "", name)
    return found


def _pairs(row: ForeignKey) -> Iterator[tuple[str, str]]:
    """Yield the places of a row.

    In a mapping of arguments, or an adapter, a key has the last part of the row's name.
    """
    word = row.name.rpartition(".")[2]
    for place in row.to:
        if place.endswith("_args") or place == "model.lora_configs":
            yield f"{place}{'[0]' * (not place.endswith('_args'))}.{word}", row.name
        else:
            yield place, row.name


def _below_verl(path: Path) -> str | None:
    """Return veRL's name of a key below our section of its keys, if any."""
    name = dotted(path[2:])
    is_below = dotted(path[:2]) == VERL_TREE and bool(name)
    return name if is_below and (row_of(name) is not None or is_section(name)) else None


def _given(word: str) -> str:
    """Return a key of ours as one that is given beside the file."""
    home = next(iter(homes().get(word, ())), None) if word not in words() else None
    return word if home is None else f"--set {dotted((*home, word))}=..."


def _full(name: str, section: Path, path: Path) -> Path | None:
    """Return the path of a key that a way out has, maybe by its last part."""
    own = parse_path(name) or ()
    tried = [(*section, *own)] if section else [(*path[:-1], *own), own]
    tried += [(*home, *own) for home in homes().get(name, ()) if "*" not in home]
    return next((place for place in tried if annotation_at(place) is not None), None)


def _backwards(place: Path, value: Any, tree: Tree) -> list[tuple[str, Any]]:
    """Return veRL's keys, with values, that say a value of ours, if any."""
    if any(isinstance(part, int) for part in place):
        return []
    context: dict[str, Any] = {}
    try:
        repeats = tree.get(("algorithm", "repeat_times"))
    except KeyError:
        repeats = None
    if isinstance(repeats, int) and place != ("algorithm", "repeat_times"):
        context = {"algorithm": {"repeat_times": repeats}}
    before = as_verl(context)
    node = context
    for part in place[:-1]:
        node = node.setdefault(str(part), {})
    node[str(place[-1])] = value
    return [(name, new) for name, new in as_verl(context).items() if name not in before or before[name] != new]


def _text(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=2**20).removesuffix("\n").removesuffix("\n...")
