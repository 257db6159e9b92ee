"""The registry of the studio's fields.

They are those of the schema and those that are registered.

A function that is registered for a name takes the place of the field that the schema gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import streamlit as st

from trinity.common.errors import ConfigError
from trinity.manager.draft import MISSING, Draft
from trinity.manager.fields import FormField, form_fields

F = TypeVar("F", bound=Callable[..., Any])
PREFIX, CHECK_PREFIX = "set_", "check_"


@dataclass(frozen=True)
class RegisteredConfig:
    """A function that shows a parameter's field.

    Attributes:
        name: of the parameter; the function's without `set_`.
        function: is called with `key=name`; keeps its value at `st.session_state[name]`.
        default: the first value.
        visible: says whether it is shown; None: always.
        others: first values of further names.
    """

    name: str
    function: Callable[..., Any]
    default: Any = None
    visible: Callable[[], bool] | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    def is_visible(self) -> bool:
        """Return whether it is shown now."""
        return self.visible is None or bool(self.visible())


class ConfigRegistry:
    """Which field shows which parameter, and what checks it.

    Attributes:
        unfinished_fields: names of the parameters that a check has found unfit.
    """

    def __init__(self) -> None:
        self.unfinished_fields: set[str] = set()
        self._fields: dict[str, FormField] = {}
        self._configs: dict[str, RegisteredConfig] = {}
        self._checks: dict[str, Callable[..., Any]] = {}

    def register_config(
        self,
        default_value: Any = None,
        visible: Callable[[], bool] | None = None,
        other_configs: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]:
        """Return a decorator for a function that shows a parameter's field.

        The function is called `set_<parameter>`, and is called with `key="<parameter>"`.

        Args:
            default_value: the first value at `st.session_state[<parameter>]`.
            visible: says whether the field is shown; None: always.
            other_configs: first values at further names of `st.session_state`.

        Raises:
            ConfigError: the name does not begin with `set_` (E1970), or another function has it (E1971).
        """

        def registered(function: F) -> F:
            name = _parameter(function, PREFIX)
            _check_free(name, self._configs.get(name), function)
            others = dict(other_configs or {})
            self._configs[name] = RegisteredConfig(name, function, default_value, visible, others)
            return function

        return registered

    def register_check(self) -> Callable[[F], F]:
        """Return a decorator for a function that checks a parameter.

        The function is called `check_<parameter>`, and is called with `key="<parameter>"` and `unfinished_fields`, a
        set to which it adds the key of what is unfit.

        Raises:
            ConfigError: the name does not begin with `check_` (E1970), or another function has it (E1971).
        """

        def registered(function: F) -> F:
            name = _parameter(function, CHECK_PREFIX)
            before = self._checks.get(name)
            _check_free(name, None if before is None else RegisteredConfig(name, before), function)
            self._checks[name] = function
            return function

        return registered

    def register_part(self, part: str) -> None:
        """Register the fields that the schema gives a part of the form."""
        self._fields |= {each.name: each for each in form_fields() if each.part == part}

    def names(self, part: str | None = None) -> list[str]:
        """Return the names of all fields of the schema, or of a part."""
        return [name for name, each in self._fields.items() if part in (None, each.part)]

    def field(self, name: str) -> FormField | None:
        """Return the schema's field of a name; None: the schema has none."""
        return self._fields.get(name)

    def registered(self, name: str) -> RegisteredConfig | None:
        """Return the function that shows a name now; None: none does."""
        found = self._configs.get(name)
        return found if found is not None and found.is_visible() else None

    def own_names(self) -> list[str]:
        """Return the names that functions are registered for."""
        return list(self._configs)

    def prepare(self, draft: Draft) -> None:
        """Give the names of functions that are shown their first values.

        That is what the draft has for the key of the name, else the default; later values are kept.
        """
        self.unfinished_fields.clear()
        begun: set[str] = st.session_state.setdefault("_begun", set())
        for each in self._configs.values():
            for name, value in each.others.items():
                st.session_state.setdefault(name, value)
            if not each.is_visible():
                begun.discard(each.name)
            elif each.name not in begun:
                begun.add(each.name)
                field = self._fields.get(each.name)
                written = MISSING if field is None else draft.get(field.path)
                st.session_state[each.name] = each.default if written is MISSING else written

    def keep(self) -> None:
        """Keep the values of functions.

        Streamlit forgets the value of a field that a page does not show, unless it is written again.
        """
        for name in self._configs:
            if name in st.session_state:
                st.session_state[name] = st.session_state[name]

    def forget(self) -> None:
        """Forget the values of functions: another draft is edited."""
        st.session_state["_begun"] = set()

    def show(self, name: str) -> None:
        """Show the field of a function, and what its check says."""
        found = self.registered(name)
        if found is not None:
            found.function(key=name)
        self.check(name)

    def check(self, name: str) -> None:
        """Check a parameter, if a function is registered for that.

        One that another function shows is checked while it is visible.
        """
        check = self._checks.get(name)
        if check is not None and (name not in self._configs or self.registered(name) is not None):
            check(key=name, unfinished_fields=self.unfinished_fields)


def _parameter(function: Callable[..., Any], prefix: str) -> str:
    name = function.__name__
    if not name.startswith(prefix) or name == prefix:
        raise ConfigError(
            f"a function that is registered here is called {prefix}<parameter>, got {name}; rename it to "
            f"{prefix}{name}",
            code="E1970",
        )
    return name.removeprefix(prefix)


def _check_free(name: str, before: RegisteredConfig | None, function: Callable[..., Any]) -> None:
    """Refuse a second function; the same one may be defined again."""
    if before is None or _place(before.function) == _place(function):
        return
    raise ConfigError(
        f"the parameter {name} is registered twice, by {_place(before.function)} and {_place(function)}; rename one",
        code="E1971",
    )


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


CONFIG_GENERATORS = ConfigRegistry()
"""The fields of the studio."""
