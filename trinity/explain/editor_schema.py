"""The JSON schema for editors: every key with its values.

Names of algorithms, workflows and other classes are among them.

A file that is written here says in its first line where the schema is, which lies beside it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trinity.catalogue import BUILT_IN
from trinity.common.config import Catalogue, json_schema
from trinity.common.config.dotted import registry_of
from trinity.common.config.sections import OperatorConfig
from trinity.utils.disk import write_atomically

SCHEMA_FILE = "trinity.schema.json"
SCHEMA_MARK = "# yaml-language-server:"
SCHEMA_LINE = f"{SCHEMA_MARK} $schema={SCHEMA_FILE}"
REFERENCE = {"type": "string", "pattern": r"^\$\{.*\}$"}
"""A value that is taken from another key or from the environment."""

ABOUT = ("title", "description", "default", "source", "text", "facts", "derived", "secret")
"""What a declaration says beside the values."""


def editor_schema(catalogue: Catalogue = BUILT_IN) -> dict[str, Any]:
    """Return the JSON schema of the configuration file for editors.

    Keys that hold the name of a class list those of `catalogue`, and take others, which plugins may register. Every
    value may be a reference `${...}`.
    """
    schema = copy.deepcopy(json_schema())
    for title, section in {"": schema, **schema["$defs"]}.items():
        for name, declared in section.get("properties", {}).items():
            registry = "operator" if (title, name) == (OperatorConfig.__name__, "name") else registry_of((name,))
            if registry is not None:
                _add_names(declared, catalogue.names(registry))
            section["properties"][name] = _with_reference(declared)
    return schema


def write_schema(folder: Path) -> Path:
    """Write the schema into a folder; return its file.

    Files beside it that begin with `SCHEMA_LINE` are checked and completed by an editor that has the YAML language
    server.
    """
    path = folder / SCHEMA_FILE
    write_atomically(path, json.dumps(editor_schema(), indent=1, ensure_ascii=False) + "\n")
    return path


def _add_names(declared: dict[str, Any], names: list[str]) -> None:
    """Let every text of a declaration be one of `names`, or another."""
    for text in _texts(declared):
        text.pop("type")
        text["anyOf"] = [{"enum": names}, {"type": "string"}]


def _texts(declared: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a declaration that are a text or the items of a list."""
    if declared.get("type") == "string":
        yield declared
        return
    for each in declared.get("anyOf", ()):
        yield from _texts(each)
    if isinstance(declared.get("items"), dict):
        yield from _texts(declared["items"])


def _with_reference(declared: dict[str, Any]) -> dict[str, Any]:
    """Return a declaration that a reference meets, too.

    Of a section it is a condition, not a choice: a mistake inside is then told where it is.
    """
    about = {name: declared[name] for name in ABOUT if name in declared}
    values = {name: value for name, value in declared.items() if name not in about}
    choices = values.pop("anyOf") if set(values) == {"anyOf"} else [values]
    if any(choice.get("type") == "string" and not {"enum", "pattern"} & choice.keys() for choice in choices):
        return declared
    others = [choice for choice in choices if not _has_keys(choice)]
    sections = [choice for choice in choices if _has_keys(choice)]
    if len(sections) != 1:
        return {**about, "anyOf": [*choices, REFERENCE]}
    types = [choice["type"] for choice in others if isinstance(choice.get("type"), str)]
    simple = {"if": {"type": ["string", *types]}, "then": {"anyOf": [*others, REFERENCE]}}
    return {**about, **simple, "else": sections[0]}


def _has_keys(choice: dict[str, Any]) -> bool:
    return "$ref" in choice or choice.get("type") in ("array", "object")
