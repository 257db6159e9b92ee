"""What is refused of a value, and the words for it.

Rules note a `Refusal` at its place in the file. An engine raises it for a configuration that no rule has read, such as
that of a script that tries a workflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trinity.common.config.base import Section, Support, facts_of
from trinity.common.config.config import Config
from trinity.common.config.keys import Key, last_part, part_of, value_of
from trinity.common.config.problems import shown_value
from trinity.common.errors import ConfigError, NotAvailableError

_SAID = {"E1886": "is refused", "E1857": "is not done here"}


@dataclass(frozen=True)
class Refusal:
    """A value that is not served.

    Attributes:
        code: stable identifier, `E....`.
        key: the key.
        message: what is wrong, in one line.
        suggestion: the way out.
        rule: what the value must be.
        involves: other keys that the message depends on.
    """

    code: str
    key: Key[Any]
    message: str
    suggestion: str
    rule: str = ""
    involves: tuple[Key[Any], ...] = ()

    def error(self) -> ConfigError:
        """Return the error that says so."""
        kind = NotAvailableError if self.code == NotAvailableError.default_code else ConfigError
        return kind(f"{self.message}; {self.suggestion}", code=self.code)


def support_refusal(key: Key[Any], support: Support, value: Any, *, default: Any) -> Refusal:
    """Return the refusal of a value that `support` does not allow."""
    if support.why:
        said, rule = f"`{key}: {value}` {_SAID[support.code]}: {support.why}", "the default"
        if support.code == "E1886":
            best = support.only[-1] if support.only else default
            rule = "null" if best is None else f"{best}"
    else:
        said = f"`{key}: {shown_value(str(key), value)}` is not available yet in this version"
        rule = f"one of {', '.join(str(v) for v in support.only)}" if support.only else "the default"
    return Refusal(support.code, key, said, support.instead or _hint(key, support.only), rule)


def section_refusal(key: Key[Any], support: Support) -> Refusal:
    """Return the refusal of a section that is not available."""
    said = f"`{key}` is not available yet in this version"
    return Refusal("E1900", key, said, support.instead or f"remove `{key}`")


def is_served(support: Support, value: Any) -> bool:
    """Return whether `support` allows a value beside the default."""
    return any(
        (choice == value and type(choice) is type(value)) or _same_number(choice, value) for choice in support.only
    )


def is_default(value: Any, default: Any) -> bool:
    """Return whether a value is null or the default."""
    if value is None:
        return True
    plain = list(default) if isinstance(default, tuple) else default
    return bool(plain == value or str(plain) == str(value))


def unserved(config: Config, section: Key[Any]) -> Iterator[Refusal]:
    """Yield the refusals of a section's values, by what its fields support.

    The sections below it are not looked at; a list of them is refused as a whole.
    """
    model = value_of(config, section)
    for name, field in type(model).model_fields.items():
        key, value, support = part_of(section, name), vars(model)[name], facts_of(field).support
        if support is None or field.default_factory is not None or value in ({}, (), []):
            continue
        default = field.get_default()
        if is_default(value, default) or is_served(support, value):
            continue
        if isinstance(value, list | tuple) and isinstance(value[0], Section):
            yield section_refusal(key, support)
        else:
            yield support_refusal(key, support, value, default=default)


def _same_number(left: Any, right: Any) -> bool:
    numbers = (int, float)
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    return isinstance(left, numbers) and isinstance(right, numbers) and left == right


def _hint(key: Key[Any], allowed: tuple[Any, ...]) -> str:
    words = [str(value) for value in allowed if value not in (None, {}, [])]
    return f"available: {', '.join(words)}" if words else f"remove `{last_part(key)}`"
