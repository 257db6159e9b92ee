"""Parsing of YAML text into a `Tree`.

Keeps positions, refuses duplicate keys, applies limits, and never constructs objects from tags.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from trinity.common.config.nearest import nearest
from trinity.common.config.problems import ConfigErrors, Finding
from trinity.common.config.tree import MAX_DEPTH, Origin, Tree, dotted
from trinity.common.config.tree import Path as TreePath

MAX_BYTES = 1 << 20
MAX_NODES = 50_000

_STANDARD = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "map", "seq", "merge")}
_TRUE = {"yes", "true", "on"}


class _Loader(yaml.SafeLoader):
    """Resolves null, booleans and numbers; `1e-6` is a number, a date is text."""


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same, by libyaml where PyYAML has it, in a tenth of the time.

    It reads some texts that PyYAML refuses, and others differently (`_DISPUTED`); its errors say less.
    """


# Not read alike: tabs, tags, explicit keys, comments after a block mark, line breaks of Unicode, half characters.
_DISPUTED = re.compile("[\t!?\x85\u2028\u2029\ufeff\ud800-\udfff]|[|>][^\n]*#")

_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    ("merge", r"<<", "<"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first]
    )

_FastLoader.yaml_implicit_resolvers = IMPLICIT_RESOLVERS = _Loader.yaml_implicit_resolvers
"""Which plain words are no text, for whoever writes what is read here."""


def read_file(path: Path) -> Tree:
    """Return the values of a YAML (or JSON) file with their places.

    Raises:
        ConfigErrors: the file cannot be read or is not one mapping.
    """
    return parse_text(_decode(path), str(path))


def parse_text(text: str, file: str) -> Tree:
    """Return the values of YAML text; `file` names it in problems.

    Raises:
        ConfigErrors: syntax, duplicate keys, unsafe tags or limits.
    """
    lines = text.splitlines()
    try:
        node = _compose(text, file)
    except yaml.YAMLError as error:
        if not text.lstrip().startswith("{") or not _is_json(text):
            raise ConfigErrors([_syntax_problem(error, file, lines)]) from error
        node = _compose(text.replace("\t", " "), file)
    if node is None:
        raise ConfigErrors(
            [
                Finding(
                    "E1002",
                    "",
                    f"{file} is empty",
                    file=file,
                    suggestion="write at least `model`, `buffer` and `algorithm`",
                )
            ]
        )
    if not isinstance(node, yaml.MappingNode):
        raise ConfigErrors([_not_a_mapping(node, file, lines)])
    builder = _Builder(file, lines)
    values = builder.build(node, ())
    if builder.problems:
        raise ConfigErrors(builder.problems)
    return Tree(values, builder.origins)


def parse_value(text: str) -> Any:
    """Return the value of a `--set` argument: YAML, or else the text itself."""
    try:
        node = _compose(text, "--set")
    except (yaml.YAMLError, ConfigErrors):
        return text
    if node is None:
        return None
    builder = _Builder("--set", [text])
    value = builder.build(node, ())
    return text if builder.problems else value


def _decode(path: Path) -> str:
    if not path.is_file():
        raise ConfigErrors([_missing_file(path)])
    if path.suffix.lower() == ".toml":
        raise ConfigErrors([Finding("E1004", "", f"{path} is TOML; a configuration is YAML or JSON", file=str(path))])
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigErrors([Finding("E1003", "", f"cannot read {path}: {error.strerror}")]) from error
    if len(data) > MAX_BYTES:
        raise ConfigErrors([Finding("E1007", "", f"{path} is larger than {MAX_BYTES} bytes")])
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigErrors(
            [
                Finding(
                    "E1001",
                    "",
                    f"{path} is not {encoding[:6].upper()} text",
                    file=str(path),
                    line=line,
                    column=1,
                    suggestion="save it as UTF-8",
                )
            ]
        ) from error


def _missing_file(path: Path) -> Finding:
    what = "is a folder" if path.is_dir() else "does not exist"
    names = []
    if path.parent.is_dir():
        names = [p.name for p in path.parent.iterdir() if p.is_file()]
    near = nearest(path.name, names)
    hint = f"did you mean `{path.parent / near}`?" if near else "give the YAML file with --config"
    return Finding("E1003", "", f"configuration {path} {what}", file=str(path), suggestion=hint)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _compose(text: str, file: str) -> yaml.Node | None:
    if not _DISPUTED.search(text):
        try:
            return _composed(text, file, _FastLoader)
        except yaml.YAMLError:  # PyYAML says more about it
            pass
    return _composed(text, file, _Loader)


def _composed(text: str, file: str, loader_type: type[yaml.SafeLoader]) -> yaml.Node | None:
    _check_depth(text, file, loader_type)
    loader = loader_type(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


def _check_depth(text: str, file: str, loader_type: type[yaml.SafeLoader]) -> None:
    """Refuse deep nesting before any function recurses into it."""
    depth = 0
    for event in yaml.parse(text, Loader=loader_type):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            mark = event.start_mark
            raise ConfigErrors(
                [
                    Finding(
                        "E1007",
                        "",
                        f"nested deeper than {MAX_DEPTH} levels",
                        file=file,
                        line=mark.line + 1 if mark else None,
                        column=mark.column + 1 if mark else None,
                    )
                ]
            )


def _syntax_problem(error: yaml.YAMLError, file: str, lines: list[str]) -> Finding:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    line = mark.line + 1 if mark else None
    column = mark.column + 1 if mark else None
    near = [n for n in (line, (line or 1) - 1, (line or 1) - 2) if n and 1 <= n <= len(lines)]
    hint = "check the indentation and the quotes here"
    for number in near:
        if "：" in lines[number - 1]:
            hint, line, column = "use ':' instead of the full-width '：'", number, lines[number - 1].index("：") + 1
            break
        if re.match(r"\s*\t", lines[number - 1]):
            hint, line, column = "a tab is no indentation in YAML; use spaces", number, 1
            break
    if "'`'" in str(what):
        hint = "remove the backticks or use quotes"
    source = lines[line - 1] if line and line <= len(lines) else None
    return Finding(
        "E1001",
        "",
        f"YAML syntax: {what}",
        file=file,
        line=line,
        column=column,
        suggestion=hint,
        source_line=source,
    )


def _not_a_mapping(node: yaml.Node, file: str, lines: list[str]) -> Finding:
    mark = node.start_mark
    wide = isinstance(node, yaml.ScalarNode) and "：" in node.value
    hint = "use ':' instead of the full-width '：'" if wide else "begin with `project:` or another section"
    return Finding(
        "E1001",
        "",
        "a configuration is a mapping of sections",
        file=file,
        line=mark.line + 1,
        column=mark.column + 1,
        suggestion=hint,
        source_line=lines[mark.line],
    )


class _Builder:
    """Builds plain values from nodes and records the position of each."""

    def __init__(self, file: str, lines: list[str]) -> None:
        self.file = file
        self.lines = lines
        self.origins: dict[TreePath, tuple[Origin, ...]] = {}
        self.problems: list[Finding] = []
        self._nodes = 0

    def build(self, node: yaml.Node, path: TreePath) -> Any:
        """Return the value of a node."""
        self._nodes += 1
        if len(path) > MAX_DEPTH:
            raise ConfigErrors([self._problem("E1007", node, path[:4], f"nested deeper than {MAX_DEPTH} levels")])
        if self._nodes > MAX_NODES:
            raise ConfigErrors([self._problem("E1007", node, path, f"more than {MAX_NODES} values (aliases count)")])
        if node.tag not in _STANDARD:
            self.problems.append(
                self._problem("E1005", node, path, f"tag `{node.tag}` is not allowed", "write plain values only")
            )
            return None
        self.origins.setdefault(path, (self._origin(node, path),))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, index)) for index, child in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode), "YAML knows mappings, sequences and scalars"
        return _scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: TreePath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            if key_node.tag.endswith(":merge"):
                values = {**self._merged(value_node, path), **values}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(self._problem("E1001", key_node, path, "a key must be a word"))
                continue
            name = key_node.value
            if name in first:
                self._duplicate(name, key_node, first[name], path)
                continue
            first[name] = key_node
            self.origins[(*path, name)] = (self._origin(key_node, (*path, name)),)
            values[name] = self.build(value_node, (*path, name))
        return values

    def _merged(self, node: yaml.Node, path: TreePath) -> dict[str, Any]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for part in parts:
            if not isinstance(part, yaml.MappingNode):
                self.problems.append(self._problem("E1001", part, path, "`<<` takes a mapping"))
                continue
            merged = {**self._mapping(part, path), **merged}
        return merged

    def _duplicate(self, name: str, node: yaml.Node, first: yaml.Node, path: TreePath) -> None:
        line = first.start_mark.line + 1
        message = f"duplicate key `{dotted((*path, name))}`, first written in line {line}"
        self.problems.append(self._problem("E1006", node, (*path, name), message, "keep one of them"))

    def _origin(self, node: yaml.Node, path: TreePath) -> Origin:
        mark = node.start_mark
        text = self.lines[mark.line] if mark.line < len(self.lines) else None
        return Origin("file", self.file, mark.line + 1, mark.column + 1, path, text)

    def _problem(self, code: str, node: yaml.Node, path: TreePath, message: str, hint: str | None = None) -> Finding:
        origin = self._origin(node, path)
        return Finding(
            code,
            dotted(path),
            message,
            file=self.file,
            line=origin.line,
            column=origin.column,
            suggestion=hint,
            source_line=origin.text,
        )


def _scalar(node: yaml.ScalarNode) -> Any:
    kind = node.tag.rsplit(":", 1)[-1]
    text: str = node.value
    try:
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() in _TRUE
        if kind == "int":
            return int(text, 16) if text.lower().startswith("0x") else int(text.replace("_", ""))
        if kind == "float":
            return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        return text
    return text
