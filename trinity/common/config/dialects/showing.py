"""A translated file as YAML of ours, with what each foreign key became."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from trinity.common.config.dialects.foreign_key import Fate
from trinity.common.config.dialects.opening import Opened
from trinity.common.config.dialects.translation import Translation
from trinity.common.config.reading import IMPLICIT_RESOLVERS
from trinity.common.config.tree import Origin, Path, Tree, dotted

_WIDTH = 2**20


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = IMPLICIT_RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value again where it stands again."""
        return True


def converted(opened: Opened) -> str:
    """Return the YAML text of a translated file.

    Behind each value stands the key that gave it; at the end, the keys that give none.
    """
    lines = list(_lines(opened.tree, opened.tree.values, (), indent=0))
    translation = opened.translation
    rest = [] if translation is None else list(_rest(translation.became))
    lines += ["", "# Keys that have no place here:", *rest] if rest else []
    shipped = [] if translation is None else list(_shipped(translation))
    lines += ["", "# veRL's own default values, without effect here, or whose keys have newer names:", *shipped] * (
        len(shipped) > 0
    )
    return "\n".join(lines) + "\n"


def _lines(tree: Tree, values: Any, path: Path, *, indent: int) -> Iterator[str]:
    pad = " " * indent
    for name, value in values.items():
        here = (*path, name)
        if isinstance(value, Mapping) and value:
            yield f"{pad}{name}:"
            yield from _lines(tree, value, here, indent=indent + 2)
        elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            yield f"{pad}{name}:"
            for index, each in enumerate(value):
                first, *others = _lines(tree, each, (*here, index), indent=indent + 4)
                yield f"{pad}  - {first.lstrip()}"
                yield from others
        else:
            yield f"{pad}{name}: {_written(value)}{_comment(tree.origins.get(here))}"


def _written(value: Any) -> str:
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=_WIDTH)
    return text.removesuffix("\n").removesuffix("...").rstrip("\n")


def _comment(chain: tuple[Origin, ...] | None) -> str:
    if not chain:
        return ""
    place = chain[0]
    name = dotted(place.written)
    if place.line is None:
        return f"  # {name} ({place.file})"
    return f"  # {name}, line {place.line}"


def _rest(became: Any) -> Iterator[str]:
    for each in became:
        if each.fate in (Fate.HARMLESS, Fate.REFUSED) and each.value is not None:
            yield f"# {each.written}: {_written(each.value)}  ({each.why})"


def _shipped(translation: Translation) -> Iterator[str]:
    """Yield what is told together of the file, apart from what has a line."""
    shown = {each.written for each in translation.became if each.fate in (Fate.HARMLESS, Fate.REFUSED)}
    for finding in translation.shipped:
        if finding.key not in shown:
            yield f"# {finding.key}: {_written(finding.value)}  ({finding.message})"
