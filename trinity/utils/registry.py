"""Named extension points: a torch-free table of contents and plugins.

A table of contents maps a name to the place of a class, so that listing, validating and documenting
names imports nothing. The class itself is imported when it is first asked for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from trinity.common.errors import ConfigError
from trinity.utils.declaration import declared_args, entry_of, unread_of
from trinity.utils.entry import Entry as Entry


class UnknownNameError(ConfigError, ValueError):
    """A name that nothing is registered under."""


class Registry:
    """Classes by name.

    Args:
        name: what the entries are, for messages (`workflow`, `advantage_fn`, ...).
        contents: the built-in table of contents: entries, or places such as `package.module.Class`.
        kind: the registry's name in the catalogue; None: `name`.

    Attributes:
        contents: entries by name; what is registered is among them.
        classes: those that were registered or asked for.
    """

    def __init__(
        self,
        name: str,
        contents: Mapping[str, Entry | str] | None = None,
        *,
        kind: str | None = None,
    ) -> None:
        self.name = name
        self.kind = kind or name
        self.contents: dict[str, Entry] = {each: _entry(what) for each, what in (contents or {}).items()}
        self._built_in = {name: entry.path for name, entry in self.contents.items()}
        self.classes: dict[str, type[Any]] = {}

    def register_module(
        self,
        module_name: str | None = None,
        module_cls: Any = None,
        force: bool = False,
        lazy: bool = False,
        *,
        name: str | None = None,
        doc: str = "",
        deprecated_for: str = "",
    ) -> Any:
        """Register a class, or return a decorator that does.

        Args:
            module_name: the name; None: that of the class.
            module_cls: the class; None: the decorated one.
            force: take a name that another class has.
            lazy: changes nothing: built-in classes are imported when they are first asked for, and a registered one is
                there.
            name: another word for `module_name`.
            doc: what the class is under this name, if its `summary` does not say it.
            deprecated_for: the name to write in place of this one.

        Raises:
            ConfigError: the name is taken by another class and `force` is not set (E3903), or the class declares what
                nothing reads (E3907).
        """
        chosen = module_name or name

        def register(cls: Any) -> Any:
            name = chosen or cls.__name__
            place = f"{cls.__module__}:{cls.__qualname__}"
            known = self.contents.get(name)
            if known is not None and known.path != place and self._built_in.get(name) == place and not force:
                return cls  # a plugin took the name of this built-in before its file was imported
            if known is not None and known.path != place and not force:
                raise ConfigError(
                    f"{self.name} {name!r} is already registered by {known.path}; "
                    f"choose another name for {place} or pass force=True",
                    code="E3903",
                )
            if isinstance(cls, type):
                self._check_declarations(cls)
                self.contents[name] = entry_of(cls, kind=self.kind).named(doc=doc, deprecated_for=deprecated_for)
            else:  # a function, as published rewards may be
                self.contents[name] = Entry(place, doc=(cls.__doc__ or "").strip().split("\n")[0], is_open=True)
            self.classes[name] = cls
            return cls

        return register if module_cls is None else register(module_cls)

    def _check_declarations(self, cls: type[Any]) -> None:
        unread = unread_of(cls, kind=self.kind)
        if unread is not None:
            raise ConfigError(
                f"`{unread.what}` of {cls.__module__}:{cls.__qualname__} {unread.why}; {unread.way_out}", code="E3907"
            )

    def get(self, name: str | None) -> Any:
        """Return the class registered under `name`; `None` for `None`.

        A name such as `package.module.Class` is imported from there, and stays unknown to `in`: what a row of data
        names must be registered.

        Raises:
            UnknownNameError: no such name; the message lists the known ones and the nearest.
        """
        if name is None:
            return None
        if name not in self.classes:
            entry = self.contents.get(name)
            if entry is None and "." in name:
                return self._imported(name)
            if entry is None:
                raise UnknownNameError(self.unknown(name), code="E1701")
            module, _, attribute = entry.path.partition(":")
            self.classes[name] = getattr(importlib.import_module(module), attribute)
        return self.classes[name]

    def _imported(self, place: str) -> Any:
        """Return the class at `package.module.Class`."""
        module, _, name = place.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UnknownNameError(
                f"{self.name} {place!r} cannot be imported: {type(error).__name__}: {error}; put the folder of its "
                "package on PYTHONPATH, or register the class in a file under --plugin-dir",
                code="E1701",
            ) from error

    def build(
        self,
        name: str,
        args: Mapping[str, Any] | None,
        *given: Any,
        key: str,
        code: str | None = None,
        names_only: bool = False,
        fixed: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return an object of a class, made with the written arguments.

        What its class declares in `default_args` is an argument, too, where it is not written.

        Args:
            name: of the class.
            args: the written arguments.
            given: positional arguments that the configuration does not set.
            key: key of the written arguments, for the message.
            code: code of the error.
            names_only: check the arguments' names; a failure of the constructor is not one of its arguments.
            fixed: further arguments; one that is written as well is an error.

        Raises:
            ConfigError: an unknown name (E1701), or arguments that the class does not take (`code`).
        """
        cls, fixed = self.get(name), fixed or {}
        written = declared_args(cls, kind=self.kind) | dict(args or {})
        try:
            if not names_only:
                return cls(*given, **fixed, **written)
            inspect.signature(cls).bind(*given, **fixed, **written)
        except (TypeError, ValueError) as error:
            got = f"; got {sorted(written)}" if names_only else ""
            raise ConfigError(f"{key} of {name}: {error}{got}", code=code) from error
        return cls(*given, **fixed, **written)

    def unknown(self, name: str) -> str:
        """Return the message for an unknown name.

        It has the nearest known name and the whole list.
        """
        near = difflib.get_close_matches(name, self.contents, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return (
            f"unknown {self.name} {name!r}; {hint}known: {', '.join(sorted(self.contents))}; "
            "a name of your own needs --plugin-dir (or `plugin_dirs`) with the folder of the file that registers it"
        )

    @property
    def modules(self) -> list[str]:
        """Names of all entries, built-in and registered."""
        return sorted(self.contents)

    def __contains__(self, name: object) -> bool:
        return name in self.contents

    def __iter__(self) -> Iterator[str]:
        return iter(self.contents)


def _entry(what: Entry | str) -> Entry:
    """Return the entry of a place, of whose class nothing is known."""
    return what if isinstance(what, Entry) else Entry(":".join(what.rsplit(".", 1)), is_open=True)
