"""`--set` texts to print: secrets become environment references."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trinity.common.config.overrides import parse_path
from trinity.common.config.reading import parse_value
from trinity.common.config.tree import Path, dotted
from trinity.utils.log import is_secret_name, redact

NO_SECRETS = (None, "", "EMPTY", "None", "null")
PREFIX = "TRINITY_"


def masked_override(override: str) -> tuple[str, dict[str, str]]:
    """Return an equivalent `--set` text without secrets, and its variables.

    A secret is the value of a key with the name of one, a URL with a password, or a text that holds a secret known
    from elsewhere. It becomes `${oc.env:NAME}`, with a name made of the key's.

    Returns:
        The text, and the environment variables that must hold the secrets, by key.
    """
    name, equals, text = override.partition("=")
    path = parse_path(name.strip())
    if path is None or not equals:
        return redact(override), {}
    variables: dict[str, str] = {}
    value = _masked(parse_value(text), path, variables)
    if not variables:
        return override, {}
    return f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}", variables


def is_secret(path: Path, value: Any) -> bool:
    """Return whether a value must not be shown; environment references may be."""
    if isinstance(value, bool) or value in NO_SECRETS:
        return False
    if isinstance(value, str) and redact(value) != value:
        return True
    names = [part for part in path if isinstance(part, str)]
    return bool(names) and is_secret_name(names[-1]) and not (isinstance(value, str) and "${" in value)


def _masked(value: Any, path: Path, variables: dict[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _masked(inner, (*path, str(key)), variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner, (*path, index), variables) for index, inner in enumerate(value)]
    if not is_secret(path, value):
        return value
    key = dotted(path)
    variables[key] = PREFIX + re.sub(r"[^A-Za-z0-9]+", "_", key).strip("_").upper()
    return f"${{oc.env:{variables[key]}}}"
