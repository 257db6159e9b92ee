"""Plugins: Python files of the user's directories.

They are imported from where they are, as `trinity.plugins.<stem>`.

Only the directories that are asked for are read, nothing is copied, and a file that cannot be imported ends the
command. `scan_plugins` reads the registered names without running anything.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
import types
from collections.abc import Iterable
from pathlib import Path

from trinity.common.constants import PLUGIN_DIRS_ENV_VAR
from trinity.common.errors import ConfigError
from trinity.utils.log import get_logger
from trinity.utils.plugin_source import PluginName, PluginSource

PACKAGE = "trinity.plugins"

PluginDirs = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None


def plugin_dirs(dirs: PluginDirs = None) -> list[Path]:
    """Return the absolute plugin directories, without repeats, in order.

    Args:
        dirs: one path, several joined as in `PATH`, or a list; `None` means those of `TRINITY_PLUGIN_DIRS`.

    Raises:
        ConfigError: E3901, one is missing or is not a directory.
    """
    given = os.environ.get(PLUGIN_DIRS_ENV_VAR, "") if dirs is None else dirs
    parts = [os.fspath(given)] if isinstance(given, str | os.PathLike) else [os.fspath(item) for item in given]
    texts = [text for part in parts for text in part.split(os.pathsep) if text.strip()]
    found = list(dict.fromkeys(Path(text).expanduser().resolve() for text in texts))
    for path in found:
        if not path.is_dir():
            what = "is not a directory" if path.exists() else "does not exist"
            raise ConfigError(
                f"plugin directory {path} {what}; give --plugin-dir or {PLUGIN_DIRS_ENV_VAR} existing directories",
                code="E3901",
            )
    return found


def plugin_files(directory: Path) -> list[Path]:
    """Return the plugin files of a directory, sorted.

    They are its own `*.py`, without those that begin with `__`.
    """
    return sorted(path for path in directory.glob("*.py") if not path.name.startswith("__"))


def scan_plugins(dirs: PluginDirs = None) -> list[PluginName]:
    """Return what the plugin files register.

    This reads their text and imports nothing.

    Raises:
        ConfigError: E3901, a directory is missing; E3902, a file is not Python.
    """
    return [name for directory in plugin_dirs(dirs) for path in plugin_files(directory) for name in _scan_file(path)]


def _scan_file(path: Path) -> list[PluginName]:
    try:
        return list(PluginSource(path).registrations())
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise ConfigError(f"plugin {path}:{line} cannot be imported: {error}", code="E3902") from error


def load_plugins(dirs: PluginDirs = None) -> list[str]:
    """Import the plugin files of directories; return their module names.

    A file that this process has already loaded is not run again.

    Args:
        dirs: as of `plugin_dirs`; `None` means those of `TRINITY_PLUGIN_DIRS`.

    Raises:
        ConfigError: E3901, a directory is missing; E3902, a file cannot be imported; E3903, two files have the same
            name, or a name is registered twice; E3907, a class declares what nothing reads.
    """
    directories = plugin_dirs(dirs)
    package = _package()
    before = list(package.__path__)
    package.__path__[:] = list(dict.fromkeys([*before, *map(str, directories)]))
    loaded: list[str] = []
    try:
        for directory in directories:
            loaded += _load_directory(directory)
    except ConfigError:
        package.__path__[:] = before  # nobody else is told to load what is refused here
        raise
    return loaded


def _load_directory(directory: Path) -> list[str]:
    files = plugin_files(directory)
    loaded = [_load_file(path) for path in files]
    if not any(_scan_file(path) for path in files):
        get_logger("plugins").warning(
            "[W3904] plugin folder %s registers nothing; register its classes and functions with register_module in "
            "its *.py files, or leave the folder out",
            directory,
        )
    return loaded


def loaded_directories() -> list[Path]:
    """Return the plugin directories that this process has loaded, in order."""
    package = sys.modules.get(PACKAGE)
    return [Path(folder) for folder in package.__path__] if package is not None else []


def _package() -> types.ModuleType:
    """Return the package of plugin modules, which has no directory."""
    if PACKAGE not in sys.modules:
        package = types.ModuleType(PACKAGE, "Modules loaded from the plugin directories.")
        package.__path__ = []
        sys.modules[PACKAGE] = package
        importlib.import_module("trinity").plugins = package  # type: ignore[attr-defined]
    return sys.modules[PACKAGE]


def _load_file(path: Path) -> str:
    name = f"{PACKAGE}.{path.stem}"
    known = sys.modules.get(name)
    if known is not None:
        place = getattr(known, "__file__", None)
        if place is not None and Path(place).resolve() == path:
            return name
        raise ConfigError(
            f"plugin {path} and plugin {place} have the same module name {name}; rename one of them", code="E3903"
        )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    # A plugin is foreign code and may raise anything, sys.exit included; the command must name the file.
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        is_own = isinstance(error, ConfigError) and error.code in ("E3903", "E3907")
        code = error.code if is_own and isinstance(error, ConfigError) else "E3902"
        line = _line_of(error, path)
        raise ConfigError(
            f"plugin {path}:{line} cannot be imported: {type(error).__name__}: {error}", code=code
        ) from error
    return name


def _line_of(error: BaseException, path: Path) -> int:
    """Return the line of `path` where the error arose.

    For a syntax error that is its own line, else the innermost frame's.
    """
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or 1 for frame in reversed(frames) if frame.filename == str(path)), 1)
