"""Names, lazy classes and clashes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trinity.common.errors import ConfigError
from trinity.utils.registry import Entry, Registry

CONTENTS = {"fraction": Entry("fractions:Fraction"), "decimal": Entry("decimal:Decimal", args={"value": "0"})}


def test_a_built_in_class_is_imported_when_it_is_first_asked_for() -> None:
    from fractions import Fraction

    registry = Registry("number", CONTENTS)
    assert registry.get("fraction") is Fraction
    assert registry.get("fraction") is Fraction
    assert registry.get(None) is None


def test_listing_names_imports_nothing() -> None:
    code = (
        "import sys; from trinity.utils.registry import Entry, Registry;"
        "r = Registry('n', {'x': Entry('wave:Wave_read')}); 'x' in r; list(r); r.modules; print('wave' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_the_decorator_adds_a_class_and_its_first_line() -> None:
    registry = Registry("number", CONTENTS)

    @registry.register_module("mine")
    class Mine:
        """My own number.

        More.
        """

    assert registry.get("mine") is Mine
    assert registry.contents["mine"].doc == "My own number."
    assert registry.modules == ["decimal", "fraction", "mine"]
    assert sorted(registry) == registry.modules and "mine" in registry and "other" not in registry
    assert "mine" not in Registry("number", CONTENTS)  # the table of contents is copied


def test_a_name_clash_names_both_places() -> None:
    registry = Registry("number", CONTENTS)
    with pytest.raises(ConfigError, match=r"E3903.*number 'fraction' is already registered by fractions:Fraction"):

        @registry.register_module("fraction")
        class Mine:
            pass


def test_force_replaces() -> None:
    registry = Registry("number", CONTENTS)

    @registry.register_module("fraction", force=True)
    class Mine:
        pass

    assert registry.get("fraction") is Mine


def test_registering_the_same_class_again_changes_nothing() -> None:
    registry = Registry("number", {})

    class Mine:
        pass

    assert registry.register_module("mine")(Mine) is Mine
    assert registry.register_module("mine")(Mine) is Mine
    assert registry.get("mine") is Mine


def test_an_unknown_name_lists_the_known_and_the_nearest() -> None:
    registry = Registry("number", CONTENTS)
    with pytest.raises(
        ConfigError, match=r"E1701.*unknown number 'fractoin'; did you mean 'fraction'\? known: decimal"
    ):
        registry.get("fractoin")
    assert registry.unknown("zzz").startswith(
        "unknown number 'zzz'; known: decimal, fraction; a name of your own needs"
    )
    assert "--plugin-dir" in registry.unknown("zzz")


class Bounded:
    """A number that takes one argument."""

    def __init__(self, unit: str, *, most: int = 1, names: tuple[str, ...] = ()) -> None:
        if most < 0:
            raise ValueError("most must be >= 0")
        self.made = (unit, most, names)


def test_a_component_is_made_with_what_was_written() -> None:
    registry = Registry("number", {})
    registry.register_module("bounded")(Bounded)
    made = registry.build("bounded", {"most": 3}, "m", key="a.args", fixed={"names": ("x",)})
    assert made.made == ("m", 3, ("x",))
    with pytest.raises(ConfigError, match=r"\[E1302\] a.args of bounded: most must be >= 0"):
        registry.build("bounded", {"most": -1}, "m", key="a.args", code="E1302")
    with pytest.raises(ConfigError, match=r"\[E1866\] a.args of bounded: .*'least'"):
        registry.build("bounded", {"least": 1}, "m", key="a.args", code="E1866")
    with pytest.raises(ConfigError, match=r"multiple values for keyword argument 'most'"):
        registry.build("bounded", {"most": 1}, "m", key="a.args", fixed={"most": 2})


def test_where_only_names_are_checked_a_constructor_fails_as_itself() -> None:
    registry = Registry("number", {})
    registry.register_module("bounded")(Bounded)
    with pytest.raises(ValueError, match="must be >= 0"):
        registry.build("bounded", {"most": -1}, "m", key="a.args", names_only=True)
    with pytest.raises(ConfigError, match=r"a.args of bounded: got an unexpected .*'least'; got \['least'\]"):
        registry.build("bounded", {"least": 1}, "m", key="a.args", names_only=True)
