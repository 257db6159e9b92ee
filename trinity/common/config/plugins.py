"""Registrations and declarations of plugins, read without importing them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trinity.common.config.nearest import nearest
from trinity.common.config.problems import Finding
from trinity.common.config.row_schemas import SCHEMAS
from trinity.utils.entry import Entry
from trinity.utils.formula import arguments
from trinity.utils.kinds import KINDS, REGISTRIES, ROLES
from trinity.utils.plugin_loader import plugin_files
from trinity.utils.plugin_source import (
    ClassReader,
    PluginName,
    PluginSource,
    UndeclaredError,
    UnknownBaseError,
    UnreadError,
)

MAX_FILE_BYTES = 4 << 20
# What `default_config` of an algorithm type may name; its mode follows from the schema.
DEFAULTS = ("repeat_times", *ROLES, *(f"{role}_args" for role in ROLES), "mode")


@dataclass
class PluginScan:
    """Registrations of plugin files.

    Attributes:
        names: registry name to the names registered in it.
        entries: the declarations of the classes, by registry name and name.
        problems: files and declarations that cannot be read (errors), names that only the run can know (warnings).
        has_unknown: a name is computed, so that an unknown name may still turn out to be registered.
    """

    names: dict[str, frozenset[str]] = field(default_factory=dict)
    entries: dict[str, dict[str, Entry]] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)
    has_unknown: bool = False


def scan_plugins(dirs: Iterable[Path]) -> dict[str, frozenset[str]]:
    """Return the names that plugins in `dirs` register, by registry name."""
    return read_plugins(dirs).names


def read_plugins(
    dirs: Iterable[Path],
    *,
    bases: Mapping[str, Entry] | None = None,
    taken: Mapping[str, Collection[str]] | None = None,
) -> PluginScan:
    """Return what plugins in `dirs` register and declare, and the problems.

    Args:
        dirs: folders of plugin files.
        bases: entries of the classes that plugins derive from, by name; without them only names are read.
        taken: names that are taken, by registry.
    """
    scan = PluginScan()
    names = {kind: dict.fromkeys(known, "a built-in") for kind, known in (taken or {}).items()}
    sources: list[PluginSource] = []
    for folder in dirs:
        if folder.is_dir():
            read = [_read_file(path, scan) for path in plugin_files(folder)]
            sources += [source for source in read if source is not None]
            if not any(source is None or any(source.registrations()) for source in read):
                scan.problems.append(_nothing_in(folder))
            continue
        message = f"plugin folder {folder} {'is a file' if folder.exists() else 'does not exist'}"
        scan.problems.append(
            Finding("E3901", "--plugin-dir", message, value=str(folder), suggestion="give an existing folder")
        )
    reader = ClassReader(sources, bases or {})
    for source in sources:
        scan.problems += [_not_imported(source.path, line, reason) for line, reason in source.missing_imports()]
        for found in source.registrations():
            _check_name(found, scan, names)
            _read_registration(found, source, scan, reader=None if bases is None else reader)
    return scan


def _read_file(path: Path, scan: PluginScan) -> PluginSource | None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
        return PluginSource(path)
    except SyntaxError as error:
        scan.problems.append(_not_imported(path, error.lineno or 1, error.msg, column=error.offset))
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        message = f"plugin {path} cannot be read: {error}"
        scan.problems.append(Finding("E3901", "--plugin-dir", message, file=str(path)))
    scan.has_unknown = True  # what it registers
    return None


def _nothing_in(folder: Path) -> Finding:
    message = f"plugin folder {folder} registers nothing, so that its names are not known"
    way_out = "register its classes and functions with register_module in its *.py files, or leave the folder out"
    return Finding("W3904", "--plugin-dir", message, value=str(folder), suggestion=way_out)


def _not_imported(path: Path, line: int, reason: str, *, column: int | None = None) -> Finding:
    message = f"plugin {path}:{line} cannot be imported: {reason}"
    return Finding("E3902", "--plugin-dir", message, file=str(path), line=line, column=column)


def _check_name(found: PluginName, scan: PluginScan, taken: dict[str, dict[str, str]]) -> None:
    """Note a name that is already taken; importing the file would fail."""
    kind = REGISTRIES.get(found.registry.rpartition(".")[2])
    if kind is None or found.name is None:
        return
    place = f"{found.path.name}:{found.of.name if found.of is not None else found.line}"
    owner = taken.setdefault(kind, {}).setdefault(found.name, place)
    if owner != place and not found.force:
        message = f"plugin {found.path}:{found.line}: {kind} `{found.name}` is already registered by {owner}"
        way_out = "choose another name, or register it with force=True"
        scan.problems.append(
            Finding("E3903", "--plugin-dir", message, file=str(found.path), line=found.line, suggestion=way_out)
        )


def _read_registration(
    found: PluginName, source: PluginSource, scan: PluginScan, *, reader: ClassReader | None
) -> None:
    word = found.registry.rpartition(".")[2]
    kind = REGISTRIES.get(word)
    if kind is None:
        return
    if found.name is None:
        scan.has_unknown = True
        message = f"{found.path.name} registers a computed name in {word}; it is checked when the run starts"
        scan.problems.append(
            Finding("W3905", "--plugin-dir", message, file=str(found.path), line=found.line, column=found.column)
        )
        return
    scan.names[kind] = scan.names.get(kind, frozenset()) | {found.name}
    if reader is None or found.of is None:
        return
    entry, problems = declared(found, source, kind=kind, reader=reader)
    scan.problems += problems
    if entry is not None:
        scan.entries.setdefault(kind, {})[found.name] = entry


def declared(
    found: PluginName, source: PluginSource, *, kind: str, reader: ClassReader
) -> tuple[Entry | None, list[Finding]]:
    """Return what a class declares, and the problems.

    What cannot be told is None.

    Args:
        found: the class and its name.
        source: the file that it stands in.
        kind: name of the registry.
        reader: of its bases.
    """
    assert found.of is not None, "the caller has found the class"
    try:
        entry = reader.entry(kind, source, found.of).named(doc=found.doc, deprecated_for=found.deprecated_for)
    except UnknownBaseError as error:
        return None, [_unknown_base(error, found, kind)]
    except UnreadError as error:
        return None, [_unread(found, f"{error}", error.way_out)]
    except UndeclaredError as error:
        return None, [_undeclared(error, found, kind)]
    faults = _faults(entry, found, kind)
    return None if faults else entry, faults


def _undeclared(error: UndeclaredError, found: PluginName, kind: str) -> Finding:
    """Return the finding of a computed declaration."""
    is_asked = KINDS[kind].is_asked and error.what == "default_args"
    when = "only when the file is imported" if is_asked else "from its source"
    return Finding(
        "W3906" if is_asked else "E3906",
        "--plugin-dir",
        f"plugin {found.path}:{error.line}: {error}; what a class declares is read {when}",
        file=str(found.path),
        line=error.line,
        suggestion=None if is_asked else 'write it as a literal, such as `return {"clip_range": 0.2}`',
    )


def _unknown_base(error: UnknownBaseError, found: PluginName, kind: str) -> Finding:
    """Return the finding of a class whose base is known only at run time.

    For an algorithm type that is too late, since it determines the run.
    """
    is_type = kind == "algorithm_type"
    return Finding(
        "E3906" if is_type else "W3906",
        "--plugin-dir",
        f"plugin {found.path}:{error.line}: {error}; what it declares is known only when the file is imported",
        file=str(found.path),
        line=error.line,
        suggestion="derive from AlgorithmType, or from a class in a plugin file" if is_type else None,
    )


def _unread(found: PluginName, message: str, way_out: str) -> Finding:
    """Return the finding of a declaration that nothing reads."""
    text = f"plugin {found.path}:{found.line}: {message}"
    return Finding("E3907", "--plugin-dir", text, file=str(found.path), line=found.line, suggestion=way_out)


def _faults(entry: Entry, found: PluginName, kind: str) -> list[Finding]:
    """Return the findings of declarations that nothing reads."""

    def fault(message: str, suggestion: str) -> Finding:
        return _unread(found, message.replace("{}", entry.path.partition(":")[2]), suggestion)

    if kind != "algorithm_type":
        known = sorted({*entry.args, *entry.required})
        unknown = sorted(arguments(entry.formula).difference(known))
        what = "`formula` of {} names the argument `%s`, which it does not have"
        problems = [fault(what % name, f"known: {', '.join(known) or 'none'}") for name in unknown]
        needs = KINDS[kind].needs
        if needs is not None:
            what = "`needs` of {} names `%s`, which nothing provides"
            hint = f"known: {', '.join(sorted(needs))}"
            problems += [fault(what % name, hint) for name in sorted(entry.needs - needs)]
        return problems
    problems = []
    for key in sorted(entry.args.keys() - set(DEFAULTS)):
        near = nearest(key, DEFAULTS)
        hint = f"did you mean `{near}`?" if near else f"known: {', '.join(DEFAULTS)}"
        problems.append(fault(f"`default_config` of {{}} names `{key}`, which is no default of an algorithm", hint))
    if entry.schema not in SCHEMAS:
        message = f"`schema` of {{}} must be one of {', '.join(SCHEMAS)}, got {entry.schema!r}"
        problems.append(fault(message, 'write `schema = "experience"`'))
    return problems
