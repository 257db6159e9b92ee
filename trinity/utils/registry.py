"""Named extension points: a torch-free table of contents and plugins.

A table of contents maps a name to the place of a class, so that listing, validating and documenting
names imports nothing. The class itself is imported when it is first asked for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trinity.common.errors import ConfigError
from trinity.utils.declaration import entry_of
from trinity.utils.entry import Entry as Entry


class Registry:
    """Classes by name.

    Args:
        name: what the entries are, for messages (`workflow`, `advantage_fn`, ...).
        contents: the built-in table of contents.
        kind: the registry's name in the catalogue; None: `name`.

    Attributes:
        contents: entries by name; what is registered is among them.
        classes: those that were registered or asked for.
    """

    def __init__(self, name: str, contents: Mapping[str, Entry], *, kind: str | None = None) -> None:
        self.name = name
        self.kind = kind or name
        self.contents: dict[str, Entry] = dict(contents)
        self._built_in = {name: entry.path for name, entry in contents.items()}
        self.classes: dict[str, type[Any]] = {}

    def register_module(self, name: str, *, force: bool = False, doc: str = "") -> Callable[[type[Any]], type[Any]]:
        """Return a decorator that registers a class under `name`.

        Args:
            name: the name.
            force: take a name that another class has.
            doc: what the class is under this name, if its `summary` does not say it.

        Raises:
            ConfigError: the name is taken by another class and `force` is not set.
        """

        def register(cls: type[Any]) -> type[Any]:
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
                self.contents[name] = entry_of(cls, kind=self.kind, doc=doc)
            else:  # a function, as published rewards may be
                self.contents[name] = Entry(place, doc=(cls.__doc__ or "").strip().split("\n")[0], is_open=True)
            self.classes[name] = cls
            return cls

        return register

    def get(self, name: str | None) -> Any:
        """Return the class registered under `name`; `None` for `None`.

        Raises:
            ConfigError: no such name; the message lists the known ones and the nearest.
        """
        if name is None:
            return None
        if name not in self.classes:
            entry = self.contents.get(name)
            if entry is None:
                raise ConfigError(self.unknown(name), code="E1701")
            module, _, attribute = entry.path.partition(":")
            self.classes[name] = getattr(importlib.import_module(module), attribute)
        return self.classes[name]

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
        cls, written, fixed = self.get(name), dict(args or {}), fixed or {}
        try:
            if not names_only:
                return cls(*given, **fixed, **written)
            inspect.signature(cls).bind(*given, **fixed, **written)
        except (TypeError, ValueError) as error:
            got = f"; got {sorted(written)}" if names_only else ""
            raise ConfigError(f"{key} of {name}: {error}{got}", code=code) from error
        return cls(*given, **fixed, **written)

    def arguments(self, name: str, written: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the arguments of a class.

        Written arguments override the defaults that its class declares.
        """
        entry = self.contents.get(name)
        return dict(entry.args if entry is not None else {}) | dict(written or {})

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
