"""The names that a configuration may use, handed in by the caller: config knows no component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from trinity.common.config.nearest import nearest
from trinity.utils.registry import Entry

Contents = Mapping[str, Entry]


@dataclass(frozen=True)
class Catalogue:
    """Tables of contents by registry name, each name with its arguments and defaults.

    The `args` of an algorithm type are its defaults: `repeat_times`, `advantage_fn`, `policy_loss_fn`,
    `kl_loss_fn`, `kl_penalty_fn`, `entropy_loss_fn`, `sample_strategy`, and their `..._args`.
    """

    algorithm_type: Contents = field(default_factory=dict)
    advantage_fn: Contents = field(default_factory=dict)
    policy_loss_fn: Contents = field(default_factory=dict)
    kl_fn: Contents = field(default_factory=dict)
    entropy_loss_fn: Contents = field(default_factory=dict)
    sample_strategy: Contents = field(default_factory=dict)
    workflow: Contents = field(default_factory=dict)
    reward_fn: Contents = field(default_factory=dict)
    reward_model: Contents = field(default_factory=dict)
    operator: Contents = field(default_factory=dict)
    selector: Contents = field(default_factory=dict)
    monitor: Contents = field(default_factory=dict)
    priority_fn: Contents = field(default_factory=dict)
    plugins: Mapping[str, frozenset[str]] = field(default_factory=dict)
    has_unknown_plugins: bool = False

    def contents(self, registry: str) -> Contents:
        """Return the table of contents of a registry; empty for an unknown one."""
        tables: dict[str, Contents] = {f.name: vars(self)[f.name] for f in fields(self) if f.name in REGISTRIES}
        return tables.get(registry, {})

    def entry(self, registry: str, name: str | None) -> Entry | None:
        """Return the entry of a built-in name, or `None` for none and for plugin names."""
        return None if name is None else self.contents(registry).get(name)

    def names(self, registry: str) -> list[str]:
        """Return all known names of a registry, built in or from plugins, sorted."""
        return sorted({*self.contents(registry), *self.plugins.get(registry, ())})

    def knows(self, registry: str, name: str) -> bool:
        """Return whether a name exists."""
        return name in self.contents(registry) or name in self.plugins.get(registry, ())

    def nearest(self, registry: str, name: str) -> str | None:
        """Return the known name that a typing error most likely meant."""
        return nearest(name, self.names(registry))

    def with_plugins(self, names: Mapping[str, frozenset[str]], *, has_unknown: bool = False) -> Catalogue:
        """Return a catalogue that also knows what plugin files register."""
        return replace(self, plugins=names, has_unknown_plugins=has_unknown)


REGISTRIES = (
    "algorithm_type",
    "advantage_fn",
    "policy_loss_fn",
    "kl_fn",
    "entropy_loss_fn",
    "sample_strategy",
    "workflow",
    "reward_fn",
    "reward_model",
    "operator",
    "selector",
    "monitor",
    "priority_fn",
)
