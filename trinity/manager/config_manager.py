"""The studio's form: two modes over one draft, and the YAML that it gives.

The forms are made from the schema. What `register_config` adds is shown by `get_configs`, and written by the function
of its section, `_gen_<section>_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from trinity.catalogue import BUILT_IN
from trinity.common.config import Catalogue, Config, Finding, Plan
from trinity.common.config.schema_index import model_at
from trinity.common.config.tree import Path as KeyPath
from trinity.common.config.tree import value_at
from trinity.manager.config_registry import CONFIG_GENERATORS
from trinity.manager.draft import MISSING, Draft, checked
from trinity.manager.fields import (
    REGISTRIES,
    FormField,
    computed_keys,
    field_of_finding,
    fields_by_key,
    section_title,
)
from trinity.manager.language import language
from trinity.manager.studio.words import ESSENTIAL, IMPORTANT, word
from trinity.manager.widgets import plain, show_field, show_finding

COLUMNS = 2


class ConfigManager:
    """Shows the forms of a draft, once for each run of the page.

    Args:
        draft: what is edited.
        plugin_dirs: folders of plugins, whose names are known then.

    Attributes:
        findings: the problems of the draft, as `trinity validate` has them.
        checked_values: what the problems are about; after the forms, `generate_config` may return something else.
        plan: what a run of the draft would be; None: its values are no configuration.
        unfinished_fields: names of parameters that a registered check has found unfit.
    """

    def __init__(self, draft: Draft, plugin_dirs: Sequence[Path] = ()) -> None:
        self.draft = draft
        self.checked_values: dict[str, Any] = {}
        self.plan: Plan | None = None
        self.findings: list[Finding] = []
        self.unfinished_fields = CONFIG_GENERATORS.unfinished_fields
        self._plugin_dirs = plugin_dirs
        self._shown: dict[str, None] = {}
        self._wanted = ""
        self._check()

    @property
    def shown_keys(self) -> Mapping[str, None]:
        """The keys whose fields are on the page."""
        return self._shown

    def beginner_mode(self) -> None:
        """Show the few keys that every run has to say, and those that matter."""
        st.subheader(word("essential"))
        self._labelled(ESSENTIAL)
        st.subheader(word("important"))
        self._labelled(IMPORTANT)

    def expert_mode(self) -> None:
        """Show every key, in four parts."""
        parts = {
            "model": self._expert_model_part,
            "buffer": self._expert_buffer_part,
            "explorer": self._expert_explorer_part,
            "trainer": self._expert_trainer_part,
        }
        chosen = st.radio(
            word("part"), list(parts), format_func=lambda part: word(f"part_{part}"), key="_part", horizontal=True
        )
        self._wanted = st.text_input(word("find"), key="_find", help=word("find_help")).strip().lower()
        for part in parts if self._wanted else [chosen]:
            parts[part]()

    def get_configs(self, *config_names: str) -> None:
        """Show the fields of these names, side by side, each once on the page.

        Raises:
            KeyError: there is neither a key nor a registered function of a name.
        """
        names = [name for name in dict.fromkeys(config_names) if self._is_new(name)]
        for start in range(0, len(names), COLUMNS):
            for column, name in zip(st.columns(COLUMNS), names[start : start + COLUMNS], strict=False):
                with column:
                    self._show(name)

    def generate_config(self) -> dict[str, Any]:
        """Return the values of the YAML file; what is not written has its default."""
        generated = self._gen_global_config()
        for section, generate in self._generators().items():
            values = generate()
            if values:
                generated[section] = values
        order = [name for name in self.draft.values if name in generated]
        return {name: generated[name] for name in dict.fromkeys([*order, *generated])}

    def _generators(self) -> dict[str, Callable[[], dict[str, Any]]]:
        own: dict[str, Callable[[], dict[str, Any]]] = {
            "model": self._gen_model_config,
            "algorithm": self._gen_algorithm_config,
            "cluster": self._gen_cluster_config,
            "buffer": self._gen_buffer_config,
            "explorer": self._gen_explorer_config,
            "trainer": self._gen_trainer_config,
            "synchronizer": self._gen_synchronizer_config,
            "monitor": self._gen_monitor_config,
        }
        others = [name for name in self._sections() if name not in own]
        return own | {name: lambda name=name: self._written(name) for name in others}

    def _expert_model_part(self) -> None:
        self._part("model")

    def _expert_buffer_part(self) -> None:
        self._part("buffer")

    def _expert_explorer_part(self) -> None:
        self._part("explorer")

    def _expert_trainer_part(self) -> None:
        self._part("trainer")

    def _gen_global_config(self) -> dict[str, Any]:
        """Return the values that are in no section."""
        sections = set(self._sections())
        values = {name: value for name, value in self.draft.values.items() if name not in sections}
        own = {each.path[0]: value for each, value in self._own_values() if len(each.path) == 1}
        return values | {str(name): value for name, value in own.items()}

    def _gen_model_config(self) -> dict[str, Any]:
        return self._written("model")

    def _gen_algorithm_config(self) -> dict[str, Any]:
        return self._written("algorithm")

    def _gen_cluster_config(self) -> dict[str, Any]:
        return self._written("cluster")

    def _gen_buffer_config(self) -> dict[str, Any]:
        return self._written("buffer")

    def _gen_explorer_config(self) -> dict[str, Any]:
        return self._written("explorer")

    def _gen_trainer_config(self) -> dict[str, Any]:
        return self._written("trainer")

    def _gen_synchronizer_config(self) -> dict[str, Any]:
        return self._written("synchronizer")

    def _gen_monitor_config(self) -> dict[str, Any]:
        return self._written("monitor")

    def _sections(self) -> list[str]:
        return [name for name in Config.model_fields if model_at((name,)) is not None]

    def _written(self, section: str) -> dict[str, Any]:
        """Return what is written in a section, and what functions have there."""
        written = self.draft.values.get(section) or {}
        if not isinstance(written, dict):  # what is wrong with it is among the findings
            return written
        copy = Draft()
        copy.put((section,), written)
        for each, value in self._own_values():
            if each.path[0] == section and len(each.path) > 1:
                copy.put(each.path, value)
        return dict(copy.values[section])

    def _own_values(self) -> Iterable[tuple[FormField, Any]]:
        """Yield the keys that registered functions show, with their values."""
        for name in CONFIG_GENERATORS.own_names():
            field = CONFIG_GENERATORS.field(name)
            if field is not None and CONFIG_GENERATORS.registered(name) is not None:
                yield field, st.session_state[name]

    def _check(self) -> None:
        """Check the draft, and tell functions what values a run would have.

        These are at `st.session_state[<name>]` for every key; a registered function keeps its own there.
        """
        for name in computed_keys():
            st.session_state.setdefault(name, 0)
        CONFIG_GENERATORS.prepare(self.draft)
        self._tell_fields()
        self.checked_values = self.generate_config()
        self.plan, self.findings = checked(self.checked_values, plugin_dirs=self._plugin_dirs)
        for name, path in computed_keys().items():
            value = self._implied(path)
            if value is not None:  # else as it was: a mistake elsewhere hides no field that depends on it
                st.session_state[name] = value
        self._tell_fields()

    def _tell_fields(self) -> None:
        """Tell what is written, else what follows, else the default."""
        for name in CONFIG_GENERATORS.names():
            field = CONFIG_GENERATORS.field(name)
            if field is None or CONFIG_GENERATORS.registered(name) is not None:
                continue
            written, implied = self.draft.get(field.path), self._implied(field.path)
            if written is not MISSING and field.holds(written):
                st.session_state[name] = written
            elif self.plan is not None or name not in st.session_state:
                st.session_state[name] = field.default if implied is None else implied

    @property
    def _catalogue(self) -> Catalogue:
        return BUILT_IN if self.plan is None else self.plan.stages[0].catalogue

    def _implied(self, path: KeyPath) -> Any:
        """Return the value that a run would have at a path.

        None: it has none, or that is not known, or its stages have different ones.
        """
        if self.plan is None:
            return None
        try:
            first, *others = [value_at(each.config, path) for each in self.plan.stages]
        except KeyError:  # a section above it is not there
            return None
        return first if all(each == first for each in others) else None

    def _labelled(self, keys: Iterable[str]) -> None:
        known = fields_by_key()
        self.get_configs(*(known[key].name for key in keys))

    def _part(self, part: str) -> None:
        """Show all fields of a part, by sections."""
        by_section: dict[KeyPath, list[str]] = {}
        for name in CONFIG_GENERATORS.names(part):
            field = CONFIG_GENERATORS.field(name)
            assert field is not None, name
            if self._wanted in field.key.lower() or self._wanted in field.help(language()).lower():
                by_section.setdefault(field.path[:-1], []).append(name)
        for path, names in by_section.items():
            said = plain(section_title(path, language()))
            title = f"`{'.'.join(map(str, path))}`: {said}" if path else word("top_level")
            with st.expander(title, expanded=bool(self._wanted) or len(path) < 2):
                self.get_configs(*names)

    def _is_new(self, name: str) -> bool:
        field = CONFIG_GENERATORS.field(name)
        if field is None and name not in CONFIG_GENERATORS.own_names():
            raise KeyError(f"{name!r} is no key of the configuration, and no function set_{name} is registered")
        return (name if field is None else field.key) not in self._shown

    def _show(self, name: str) -> None:
        field = CONFIG_GENERATORS.field(name)
        self._shown[name if field is None else field.key] = None
        findings = self._findings_of(field)
        if field is None or CONFIG_GENERATORS.registered(name) is not None:
            CONFIG_GENERATORS.show(name)
            for finding in findings:
                show_finding(finding)
            return
        registry = REGISTRIES.get(str(field.path[-1]))
        show_field(
            field,
            self.draft,
            label=word(field.key) if field.key in {**ESSENTIAL, **IMPORTANT} else "",
            implied=self._implied(field.path),
            names=self._catalogue.names(registry) if registry else (),
            findings=findings,
        )
        CONFIG_GENERATORS.check(name)

    def _findings_of(self, field: FormField | None) -> list[Finding]:
        if field is None:
            return []
        return [each for each in self.findings if field_of_finding(each.key, {field.key: None})]


def other_findings(findings: Iterable[Finding], shown: Mapping[str, Any]) -> list[Finding]:
    """Return the problems that no field on the page shows."""
    return [each for each in findings if field_of_finding(each.key, shown) is None]
