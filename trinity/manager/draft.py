"""A configuration while it is edited: what was written, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from trinity.common.config import ConfigErrors, Finding, Plan
from trinity.common.config.dialects import open_source
from trinity.common.config.schema_index import default_at
from trinity.common.config.showing import leaves, redacted
from trinity.common.config.tree import Path, dotted, value_at
from trinity.common.errors import ConfigError, EnvironmentProblem
from trinity.explain.editor_schema import SCHEMA_LINE, SCHEMA_MARK, write_schema
from trinity.launch.validation import check
from trinity.utils.disk import write_atomically

MISSING = object()


@dataclass(frozen=True)
class Difference:
    """A written value that is not the default.

    Attributes:
        key: with dots.
        value: what was written.
        default: what an absent key would have; None: nothing, or what follows from other keys.
    """

    key: str
    value: Any
    default: Any


@dataclass
class Draft:
    """The values that stand in the YAML file, by nested keys.

    Attributes:
        values: nested; keys that no form shows are among them.
        file: where they were read from, or last written to; None: nowhere yet.
        text_of_file: what stood there then.
    """

    values: dict[str, Any] = field(default_factory=dict)
    file: FilePath | None = None
    text_of_file: str = ""

    @classmethod
    def of_file(cls, file: FilePath) -> Draft:
        """Read a YAML file; one of another dialect is translated.

        Raises:
            ConfigErrors: it cannot be read.
        """
        opened = open_source(file)
        errors = [problem for problem in opened.problems if problem.is_error]
        if errors:
            raise ConfigErrors(errors)
        if opened.dialect is not None:  # it is not written back in its own words
            return cls(opened.tree.values)
        return cls(opened.tree.values, file, file.read_text(encoding="utf-8"))

    def get(self, path: Path) -> Any:
        """Return what is written at a path, or `MISSING`."""
        try:
            return value_at(self.values, path)
        except KeyError:
            return MISSING

    def put(self, path: Path, value: Any) -> None:
        """Write a value, with the sections above it.

        Raises:
            ConfigError: what is written above it is no section (E1972).
        """
        node: Any = self.values
        for depth, part in enumerate(path[:-1], start=1):
            inner = node.get(part)
            if inner is not None and not isinstance(inner, dict):
                raise ConfigError(
                    f"`{dotted(path)}` cannot be written: `{dotted(path[:depth])}` is {inner!r} in the file, which is "
                    "no section; correct the file, or load another one",
                    code="E1972",
                )
            if inner is None:
                inner = node[part] = {}
            node = inner
        node[path[-1]] = copy.deepcopy(value)

    def drop(self, path: Path) -> None:
        """Remove a key, and the sections that are empty without it."""
        if self.get(path) is MISSING:
            return
        for depth in range(len(path), 0, -1):
            node = value_at(self.values, path[: depth - 1])
            if not isinstance(node, dict):
                return
            del node[path[depth - 1]]
            if node:
                return

    @property
    def has_comments(self) -> bool:
        """The file has comments, which are not kept; its first line is."""
        lines = [line.strip() for line in self.text_of_file.splitlines()]
        return any(line.startswith("#") for line in lines if not line.startswith(SCHEMA_MARK))

    def save(self, file: FilePath, text: str, *, replaces: bool) -> None:
        """Write `text` to a file, in place of what was read from there.

        Its first line tells editors where the schema is: the line that the file has, or one that names the schema,
        which is then written beside it.

        Raises:
            ConfigError: the file holds something that was not read from there (E1973).
            EnvironmentProblem: its folder is not there (E3490).
        """
        now = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
        if not file.parent.is_dir() or file.is_dir():
            raise EnvironmentProblem(
                f"{file} cannot be written: {file.parent} is no folder, or {file.name} is one; give a file in a folder "
                "that exists",
                code="E3490",
            )
        is_own = self.file is not None and self.file == file and now == self.text_of_file
        said = [line for line in (now or "").splitlines()[:1] if line.startswith(SCHEMA_MARK)]
        values, text = text, f"{(said or [SCHEMA_LINE])[0]}\n{text}"
        if now not in (None, values, text) and not replaces and not is_own:
            raise ConfigError(
                f"{file} exists, and holds something that was not read from it here; choose another name, load it "
                "first, or replace it",
                code="E1973",
            )
        if not said:
            write_schema(file.parent)
        write_atomically(file, text)
        self.file, self.text_of_file = file, text


def differences(values: dict[str, Any]) -> Iterator[Difference]:
    """Yield what is written and is not the default, without secrets."""
    for path, value in leaves(redacted(values)):
        has_default, default = default_at(path)
        default = list(default) if isinstance(default, tuple) else default
        if not has_default or value != default:
            yield Difference(dotted(path), value, default)


def checked(values: dict[str, Any], *, plugin_dirs: Sequence[FilePath] = ()) -> tuple[Plan | None, list[Finding]]:
    """Return the plan of values and all problems, as `trinity validate`.

    There is no plan where the values are not those of a YAML file.
    """
    try:
        return check(values, plugin_dirs=tuple(plugin_dirs))
    except ConfigErrors as error:
        return None, list(error.problems)
