"""The names that a configuration may use; the caller supplies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trinity.common.config.nearest import nearest
from trinity.utils.entry import Entry

Contents = Mapping[str, Entry]


@dataclass(frozen=True)
class Catalogue:
    """Tables of contents by registry name; each name has its arguments.

    The `args` of an algorithm type are its defaults: `repeat_times`, `advantage_fn`, `policy_loss_fn`,
    `kl_loss_fn`, `kl_penalty_fn`, `entropy_loss_fn`, `sample_strategy`, and their `..._args`.

    Attributes:
        tables: entries by registry and name.
        bases: entries of the classes that plugins may derive from, by name of the class.
        plugins: names that plugin files register.
        plugin_entries: the declarations of their classes, for registries that have declarations.
        dotted: the declarations of classes that the file names by their place, by registry and name.
        dotted_faults: why such names lead nowhere, by registry and name.
        has_unknown_plugins: a plugin file registers a name that only a run could tell.
    """

    tables: Mapping[str, Contents] = field(default_factory=dict)
    bases: Mapping[str, Entry] = field(default_factory=dict)
    plugins: Mapping[str, frozenset[str]] = field(default_factory=dict)
    plugin_entries: Mapping[str, Contents] = field(default_factory=dict)
    dotted: Mapping[str, Mapping[str, Entry | None]] = field(default_factory=dict)
    dotted_faults: Mapping[tuple[str, str], str] = field(default_factory=dict)
    has_unknown_plugins: bool = False

    def contents(self, registry: str) -> Contents:
        """Return the table of contents of a registry; empty for an unknown one."""
        return self.tables.get(registry, {})

    def entry(self, registry: str, name: str | None) -> Entry | None:
        """Return the entry of a name.

        Returns `None` for an unknown name and for a plugin that declares nothing.
        """
        if name is None:
            return None
        if name in self.plugins.get(registry, ()):
            return self.plugin_entries.get(registry, {}).get(name)
        return self.contents(registry).get(name) or self.dotted.get(registry, {}).get(name)

    def schema_of(self, algorithm_type: str) -> str:
        """Return the kind of experiences of an algorithm type.

        It is `experience`, `sft`, `cpt` or `dpo`.
        """
        entry = self.entry("algorithm_type", algorithm_type)
        return "experience" if entry is None else entry.schema

    def is_built_in(self, registry: str, name: str | None) -> bool:
        """Return whether a name belongs to a built-in, not to a plugin."""
        return name in self.contents(registry) and name not in self.plugins.get(registry, ())

    def names(self, registry: str) -> list[str]:
        """Return all known names of a registry, built in or from plugins, sorted."""
        return sorted({*self.contents(registry), *self.plugins.get(registry, ())})

    def knows(self, registry: str, name: str) -> bool:
        """Return whether a name exists."""
        return name in self.contents(registry) or name in self.plugins.get(registry, ())

    def nearest(self, registry: str, name: str) -> str | None:
        """Return the known name closest to a misspelled one."""
        return nearest(name, self.names(registry))

    def with_plugins(
        self,
        names: Mapping[str, frozenset[str]],
        *,
        entries: Mapping[str, Contents] | None = None,
        has_unknown: bool = False,
    ) -> Catalogue:
        """Return a catalogue extended by what plugin files register and declare."""
        return replace(self, plugins=names, plugin_entries=entries or {}, has_unknown_plugins=has_unknown)
