"""Problems of a configuration, each with place, rule, value and way out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from trinity.common.errors import ConfigError, ExitCode
from trinity.utils.log import REDACTED, is_secret_name, redact

_EXIT = {"1": ExitCode.USAGE, "2": ExitCode.USAGE, "3": ExitCode.ENVIRONMENT, "4": ExitCode.DATA}
MAX_VALUE_CHARS = 200


@dataclass(frozen=True)
class Finding:
    """One error or warning; `validate` prints it and `run` raises it.

    Attributes:
        code: stable identifier, `E....` or `W....`.
        key: the key, such as `algorithm.optimizer.lr`; with a place it is as written, in `stages[1]` for instance.
        message: what is wrong, in one line.
        severity: `error` or `warning`; it follows from the code unless given.
        rule: what the value must be.
        value: what was found; the value of a secret is never kept.
        file: the YAML file, or `--set #n`.
        line: line in the file, from 1.
        column: column in the line, from 1.
        suggestion: the way out.
        source_line: the text of the line.
    """

    code: str
    key: str
    message: str
    _: KW_ONLY
    severity: str = ""
    rule: str = ""
    value: Any = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    suggestion: str | None = None
    source_line: str | None = None

    def __post_init__(self) -> None:
        if not self.severity:
            object.__setattr__(self, "severity", "warning" if self.code.startswith("W") else "error")

    @property
    def is_error(self) -> bool:
        """Whether the configuration cannot be used."""
        return self.severity == "error"

    @property
    def exit_code(self) -> ExitCode:
        """Exit status of a command that ends because of this problem."""
        return _EXIT.get(self.code[1:2], ExitCode.USAGE)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON-ready values, without secrets."""
        return {
            "code": self.code,
            "severity": self.severity,
            "key": self.key,
            "message": redact(self.message),
            "rule": self.rule,
            "value": shown_value(self.key, self.value),
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "suggestion": None if self.suggestion is None else redact(self.suggestion),
        }

    def render(self) -> str:
        """Return the finding as text: message, place, line and way out."""
        lines = [f"{self.severity}[{self.code}]: {self.message}"]
        if self.file is not None:
            place = [str(number) for number in (self.line, self.column) if number is not None]
            lines.append("  --> " + ":".join([self.file, *place]))
        if self.source_line is not None and self.line is not None and self.column is not None:
            lines += self._excerpt(self.source_line, line=self.line, column=self.column)
        elif self.suggestion:
            lines.append(f"   = {self.suggestion}")
        return redact("\n".join(lines))

    def _excerpt(self, text: str, *, line: int, column: int) -> list[str]:
        last = self.key.rsplit(".", 1)[-1].split("[", 1)[0]
        width = len(last) if text[column - 1 :].startswith(last) else 1
        gutter = f"{line:>4} | "
        pad = " " * (len(gutter) - 2) + "| " + " " * (column - 1)
        return [gutter + text.rstrip()[:MAX_VALUE_CHARS], f"{pad}{'^' * width} {self.suggestion or ''}".rstrip()]


def shown_value(key: str, value: Any) -> Any:
    """Return a printable value: secrets hidden, long texts cut, JSON types."""
    if is_secret_name(key.rsplit(".", 1)[-1]) and value not in (None, "", "EMPTY"):
        return REDACTED
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    text = redact(text)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."


def described(key: str, value: Any) -> str:
    """Return a value with its YAML type: `string "abc"`, `integer 3`, `null`."""
    shown = shown_value(key, value)
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list", dict: "mapping"}
    kind = kinds.get(type(value), "value")
    if isinstance(value, list | dict):
        return f"a {kind}"
    return f"{kind} {json.dumps(shown, ensure_ascii=False)}"


def unique(problems: Iterable[Finding]) -> list[Finding]:
    """Return each problem once, errors and warnings in file order."""
    seen: dict[tuple[Any, ...], Finding] = {}
    for problem in problems:
        place = (problem.code, problem.key, problem.message, problem.file, problem.line, problem.column)
        seen.setdefault(place, problem)
    order = {"error": 0, "warning": 1}
    return sorted(seen.values(), key=lambda p: (order[p.severity], p.file or "~", p.line or 0, p.column or 0))


class ConfigErrors(ConfigError):
    """All errors of a configuration.

    Args:
        problems: errors and warnings; at least one is an error.
    """

    def __init__(self, problems: Sequence[Finding]) -> None:
        self.problems = list(problems)
        errors = [problem for problem in self.problems if problem.is_error]
        first = errors[0] if errors else self.problems[0]
        self.exit_code = first.exit_code
        count = f"{len(errors)} error{'s' if len(errors) != 1 else ''} in the configuration"
        self._text = "\n\n".join([*(problem.render() for problem in self.problems), count])
        super().__init__(self._text, code=first.code)

    def format(self) -> str:
        """Return all problems as text, with places, ways out and error count."""
        return self._text

    def __str__(self) -> str:
        return self._text
