"""Names and declarations that plugin files register.

They are read from the text. Nothing is run.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trinity.utils.declaration import Body, Signature, Unread, admits_none, entry_from, unread_in
from trinity.utils.entry import Entry
from trinity.utils.kinds import KINDS, TEXT
from trinity.utils.literals import NotLiteral, Reader, returned
from trinity.utils.syntax import parsed

REGISTERING = frozenset({"register_module", "register_config", "register_check"})
_CALLED = ("default_args", "default_config")
_INTERVAL = re.compile(r"[\[(](-inf|-?[\d.e+-]+|[a-z_]\w*), (inf|-?[\d.e+-]+|[a-z_]\w*)[\])]")
_NO_BASES = frozenset({"ABC", "Generic", "Protocol", "object"})


@dataclass(frozen=True)
class PluginName:
    """One registration found in a plugin file.

    Attributes:
        registry: the variable that registers (`WORKFLOWS`, `REWARD_FUNCTIONS`, ...).
        name: the registered name; `None` where it is not a literal and is known only once the file has run.
        path: the file.
        line: of the registration, from 1.
        column: of the registration, from 1.
        of: the class that is registered, where it stands in the file.
        force: it may take a name that another class has.
        doc: what the class is under this name; "": what its own line says.
        deprecated_for: the name to write in place of this one.
    """

    registry: str
    name: str | None
    path: Path
    line: int
    column: int = field(default=1, compare=False)
    of: ast.ClassDef | None = field(default=None, compare=False)
    force: bool = field(default=False, compare=False)
    doc: str = field(default="", compare=False)
    deprecated_for: str = field(default="", compare=False)


class UndeclaredError(Exception):
    """A declaration that cannot be read without running the file.

    Args:
        name: of the class.
        what: the declaration.
        reason: why not.
        line: of the place, from 1.
    """

    def __init__(self, name: str, what: str, reason: str, line: int) -> None:
        super().__init__(f"{what} of {name} {reason}")
        self.what = what
        self.line = line


class UnknownBaseError(UndeclaredError):
    """A base class of which nothing is known without importing it."""


class UnreadError(UndeclaredError):
    """A declaration that nothing reads.

    Args:
        name: of the class.
        unread: the declaration.
        line: of the class, from 1.
    """

    def __init__(self, name: str, unread: Unread, line: int) -> None:
        super().__init__(name, f"`{unread.what}`", unread.why, line)
        self.way_out = unread.way_out


class PluginSource:
    """A plugin file, or that of a class that a configuration names.

    Args:
        path: the file.
        module: name of the module; None: that of a plugin file.

    Raises:
        OSError, ValueError, SyntaxError: it cannot be read.
    """

    def __init__(self, path: Path, *, module: str | None = None) -> None:
        self.path = path
        self.module = module or f"trinity.plugins.{path.stem}"
        self.tree = parsed(path.read_bytes(), str(path))
        self.classes = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}
        self.constants: dict[str, ast.expr] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.constants[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.constants[node.target.id] = node.value
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                self.imported |= {one.asname or one.name: (module, one.name) for one in node.names}

    def missing_imports(self) -> Iterator[tuple[int, str]]:
        """Yield line and reason of imports of packages that are not there.

        Looked at are those at the beginning of the file, up to a statement that could make them possible.
        """
        for node in self.tree.body:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            elif not _is_harmless(node):
                return
            for package in dict.fromkeys(name.partition(".")[0] for name in names):
                if package not in sys.modules and find_spec(package) is None:
                    yield node.lineno, f"there is no package {package!r}; install it, or leave out its import"

    def registrations(self) -> Iterator[PluginName]:
        """Yield what the file registers."""
        owners: dict[int, ast.ClassDef] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                owners |= {id(decorator): node for decorator in node.decorator_list}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and len(node.args) == 1:
                owners |= self._owner(node.func, node.args[0])
            elif isinstance(node, ast.Call):
                for word in [word for word in node.keywords if word.arg == "module_cls"]:
                    owners |= self._owner(node, word.value)
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in REGISTERING:
                words = [word.value for word in node.keywords if word.arg in ("name", "module_name")]
                first = [*node.args[:1], *words][:1]
                literal = first[0].value if first and isinstance(first[0], ast.Constant) else None
                name = literal if isinstance(literal, str) else None
                if not first and id(node) in owners:
                    name = owners[id(node)].name
                registry, column = self._original(node.func.value), node.col_offset + 1
                force = any(word.arg == "force" and ast.unparse(word.value) != "False" for word in node.keywords)
                texts = {word.arg: _text(word.value) for word in node.keywords if word.arg in ("doc", "deprecated_for")}
                yield PluginName(registry, name, self.path, node.lineno, column, owners.get(id(node)), force, **texts)

    def _owner(self, call: ast.Call, given: ast.expr) -> dict[int, ast.ClassDef]:
        """Return the class that a call registers, by the call."""
        return {id(call): self.classes[given.id]} if isinstance(given, ast.Name) and given.id in self.classes else {}

    def _original(self, registry: ast.expr) -> str:
        """Return the name of a registry where it is defined.

        A file may import it under another name, or with its module.
        """
        name = ast.unparse(registry).rpartition(".")[2]
        return self.imported.get(name, ("", name))[1]


@dataclass(frozen=True)
class _Line:
    """What the bases of a class declare, up to one that has an entry.

    Attributes:
        base: that entry.
        bodies: of the bases in plugin files, the nearest last.
        is_known: a base is known.
        is_open: another is not, so that the class may take arguments that nothing here tells.
    """

    base: Entry | None = None
    bodies: tuple[Body, ...] = ()
    is_known: bool = False
    is_open: bool = False

    def over(self, other: _Line) -> _Line:
        """Return this with `other` over it."""
        base = self.base if other.base is None else other.base
        bodies = (*self.bodies, *other.bodies)
        return _Line(base, bodies, self.is_known or other.is_known, self.is_open or other.is_open)

    def entry(self, kind: str) -> Entry:
        """Return the entry of the last class."""
        base = (self.base or Entry("")).opened() if self.is_open else self.base
        made = entry_from(kind, self.bodies, base=base)
        return made.opened() if self.is_open else made


class ClassReader:
    """Reads what the classes of plugin files declare.

    Args:
        sources: the plugin files.
        bases: entries of the classes that plugins derive from, by name.
    """

    def __init__(self, sources: Sequence[PluginSource], bases: Mapping[str, Entry]) -> None:
        self.sources = sources
        self.bases = bases

    def entry(self, kind: str, source: PluginSource, node: ast.ClassDef) -> Entry:
        """Return the entry of a class.

        Raises:
            UnknownBaseError: the base is neither in a plugin file nor one of Trinity's.
            UndeclaredError: a declaration cannot be read, or nothing reads it.
        """
        line = self._line(kind, source, node)
        if not line.is_known:
            names = ", ".join(ast.unparse(expression) for expression in node.bases)
            reason = f"({names}) is neither in a plugin file nor one of Trinity's"
            raise UnknownBaseError(node.name, "the base", reason, node.lineno)
        return line.entry(kind)

    def _line(self, kind: str, source: PluginSource, node: ast.ClassDef) -> _Line:
        """Return what a class and its bases declare."""
        line = _Line(is_known=not node.bases)
        for expression in reversed(node.bases):
            line = line.over(self._base(kind, source, expression))
        body = self._body(kind, source, node, line)
        line = replace(line, bodies=(*line.bodies, body))
        unread = unread_in(kind, body, line.entry(kind))
        if unread is not None:
            raise UnreadError(node.name, unread, node.lineno)
        return line

    def _base(self, kind: str, source: PluginSource, expression: ast.expr) -> _Line:
        if isinstance(expression, ast.Subscript):
            expression = expression.value
        name = ast.unparse(expression).rpartition(".")[2]
        if name in source.classes:
            return self._line(kind, source, source.classes[name])
        module, original = source.imported.get(name, ("", name))
        if original in self.bases and module.partition(".")[0] in ("", "trinity"):
            return _Line(base=self.bases[original], is_known=True)
        other = next((each for each in self.sources if original in each.classes and each is not source), None)
        if other is not None:
            return self._line(kind, other, other.classes[original])
        return _Line(is_open=original not in _NO_BASES)

    def _body(self, kind: str, source: PluginSource, node: ast.ClassDef, line: _Line) -> Body:
        functions = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        names = frozenset(item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
        reader = Reader(source.constants, lambda call: self._called(kind, source, call, line))
        attributes: dict[str, Any] = {}
        results: dict[str, Any] = {}
        what = node.name
        try:
            for what, value in _assigned(node, KINDS[kind].attributes):
                attributes[what] = reader.value(value)
                fault = _fault(what, attributes[what])
                if fault is not None:
                    raise UndeclaredError(node.name, what, f"must be {fault}, got {attributes[what]!r}", value.lineno)
            for what in sorted(KINDS[kind].results & functions.keys()):
                results[what] = returned(functions[what], reader)
        except NotLiteral as error:
            raise UndeclaredError(node.name, what, f"is computed by `{error}`", error.line) from error
        doc = ast.get_docstring(node) or ""
        init = _signature(functions.get("__init__"), reader)
        if any(not _registers(decorator) for decorator in node.decorator_list):  # such as `dataclass`, which makes one
            init = replace(init or Signature(), is_open=True)
        return Body(
            f"{source.module}:{node.name}",
            doc=doc.split("\n")[0],
            attributes=attributes,
            init=init,
            call=_signature(functions.get("__call__"), reader),
            results=results,
            functions=names,
        )

    def _called(self, kind: str, source: PluginSource, call: ast.Call, line: _Line) -> Any:
        """Return the value of `default_args()` of `super()` or of a named class."""
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in _CALLED or call.args:
            raise NotLiteral(call)
        base = line if ast.unparse(function.value) == "super()" else self._base(kind, source, function.value)
        if not base.is_known:
            raise NotLiteral(call)
        return dict(base.entry(kind).args)


def _is_harmless(node: ast.stmt) -> bool:
    """Return whether a statement cannot make an import possible."""
    if isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return _text(node.test).rpartition(".")[2] == "TYPE_CHECKING"
    return isinstance(node, ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _text(node: ast.expr) -> str:
    """Return a literal text; empty for what only a run could tell."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _registers(node: ast.AST) -> bool:
    """Return whether an expression is the call of a registering function."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REGISTERING


def _assigned(node: ast.ClassDef, names: frozenset[str]) -> Iterator[tuple[str, ast.expr]]:
    """Yield those of the attributes that a class sets."""
    for item in node.body:
        match item:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in names:
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name in names:
                yield name, value


def _fault(what: str, value: Any) -> str | None:
    """Return what a declaration must be, where it is something else."""
    if what == "needs" and not (value is None or isinstance(value, set | frozenset | list | tuple)):
        return "a set of names"
    if what == "ranges":
        rules = value.values() if isinstance(value, dict) else [None]
        is_known = all(isinstance(rule, tuple) or rule == TEXT or _INTERVAL.fullmatch(str(rule)) for rule in rules)
        return None if is_known else "a dict of intervals, such as `(0, inf]`, of tuples of words, or of `text`"
    return None


def _signature(function: ast.FunctionDef | None, reader: Reader) -> Signature | None:
    """Return the parameters of a method.

    A default that only a run could compute makes it open.
    """
    if function is None:
        return None
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args][1:]
    given = [None] * (len(named) - len(arguments.defaults)) + list(arguments.defaults[-len(named) :] if named else [])
    pairs = [*zip(named, given, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    defaults: dict[str, Any] = {}
    is_open = arguments.kwarg is not None
    for parameter, default in pairs:
        if default is not None:
            try:
                defaults[parameter.arg] = reader.value(default)
            except NotLiteral:
                is_open = True
    annotated = ((parameter.arg, parameter.annotation) for parameter, _ in pairs)
    nullable = frozenset(name for name, said in annotated if said is not None and admits_none(ast.unparse(said)))
    required = frozenset(p.arg for p, default in pairs if default is None)
    further = arguments.kwarg and arguments.kwarg.arg
    named_in_body = any(isinstance(node, ast.Name) and node.id == further for node in ast.walk(function))
    reads_further = further is None or named_in_body
    return Signature(defaults, required, is_open, nullable, reads_further)
