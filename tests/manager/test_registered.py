"""Parameters that are registered with decorators, as in the guide."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, Page
from tests.manager.studio_page import checked, expert, opened, said, yaml_of
from trinity.common.errors import ConfigError
from trinity.manager.config_manager import ConfigManager
from trinity.manager.config_registry import CONFIG_GENERATORS
from trinity.manager.config_registry.config_registry import ConfigRegistry

# As in the guide, with its indentation restored.
GUIDE = """
@CONFIG_GENERATORS.register_config(
    default_value=96,
    visible=lambda: st.session_state["trainer_gpu_num"] > 0,
    other_configs={"_train_batch_size_per_gpu": 16},
)
def set_train_batch_size(**kwargs):
    key = kwargs.get("key")
    trainer_gpu_num = st.session_state["trainer_gpu_num"]
    st.session_state[key] = (
        st.session_state["_train_batch_size_per_gpu"] * st.session_state["trainer_gpu_num"]
    )

    def on_change():
        st.session_state["_train_batch_size_per_gpu"] = max(
            st.session_state[key] // st.session_state["trainer_gpu_num"], 1
        )

    st.number_input(
        "Train Batch Size",
        min_value=trainer_gpu_num,
        step=trainer_gpu_num,
        help=_str_for_train_batch_size(),
        on_change=on_change,
        **kwargs,
    )


@CONFIG_GENERATORS.register_check()
def check_train_batch_size(unfinished_fields: set, key: str):
    if st.session_state[key] % st.session_state["trainer_gpu_num"] != 0:
        unfinished_fields.add(key)
        st.warning(_str_for_train_batch_size())
"""
IN_A_PLUGIN = """
from trinity.manager.config_registry.buffer_config_manager import CONFIG_GENERATORS, _str_for_train_batch_size, st
"""
OWN = """
from trinity.manager.config_registry.config_registry import CONFIG_GENERATORS
import streamlit as st

@CONFIG_GENERATORS.register_config(default_value="plain")
def set_flavour(**kwargs):
    st.selectbox("Flavour", ["plain", "spicy", "none"], **kwargs)

@CONFIG_GENERATORS.register_check()
def check_flavour(unfinished_fields: set, key: str):
    if st.session_state[key] == "none":
        unfinished_fields.add(key)
"""
KEY = '    shuffle_seed: Natural = key(7, "Seed of the order of answers.", OWN)\n'
WITH_A_KEY = """
import os, sys
from pathlib import Path
import trinity
assert Path(trinity.__file__).is_relative_to(Path.cwd()), trinity.__file__
from streamlit.testing.v1 import AppTest
from trinity.common.config import json_schema
from trinity.explain.keys import explained_key
from trinity.manager.draft import checked
from trinity.manager.studio import page

assert "shuffle_seed" in json_schema()["$defs"]["SynchronizerConfig"]["properties"]
assert explained_key("synchronizer.shuffle_seed")["default"] == 7
assert "E1101" in {each.code for each in checked({"synchronizer": {"shuffle_seed": "x"}})[1]}
test = AppTest.from_file(page.__file__, default_timeout=120).run()
test.radio(key="_form").set_value("expert").run()
test.radio(key="_part").set_value("explorer").run()
field = test.number_input(key="field:shuffle_seed")
assert field.label == "synchronizer.shuffle_seed" and "Seed of the order of answers" in field.help, field
field.set_value(8).run()
test.radio(key="_part").set_value("buffer").run()
size = test.number_input(key="field:train_batch_size")
print(test.exception, size.label, [each.value for each in test.code if each.language == "yaml"])
"""


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    """Registrations of a test end with it."""
    before = dict(CONFIG_GENERATORS._configs), dict(CONFIG_GENERATORS._checks)
    yield
    CONFIG_GENERATORS._configs, CONFIG_GENERATORS._checks = before


def test_a_name_without_its_prefix_and_a_name_of_two_functions_are_refused() -> None:
    registry = ConfigRegistry()

    def flavour(**kwargs: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"E1970.*set_<parameter>, got flavour; rename it to set_flavour"):
        registry.register_config(default_value=1)(flavour)
    with pytest.raises(ConfigError, match=r"E1970.*check_<parameter>, got flavour"):
        registry.register_check()(flavour)

    def set_flavour(**kwargs: Any) -> None: ...

    def another() -> Any:
        def set_flavour(**kwargs: Any) -> None: ...

        return set_flavour

    registry.register_config()(set_flavour)
    registry.register_config()(set_flavour)  # its module is read again
    with pytest.raises(ConfigError, match=r"E1971.*flavour is registered twice"):
        registry.register_config()(another())


def test_a_parameter_that_is_no_key_is_shown_checked_and_keeps_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flavour_of_mine.py").write_text(OWN)
    test = opened(monkeypatch, plugin_dirs=(str(tmp_path),))
    assert test.selectbox(key="flavour").value == "plain"
    checked(test.selectbox(key="flavour").select("spicy").run())
    checked(test.radio(key="_page").set_value("runs").run())
    checked(test.radio(key="_page").set_value("configure").run())
    assert test.selectbox(key="flavour").value == "spicy"
    assert not test.button(key="_save").disabled
    checked(test.selectbox(key="flavour").select("none").run())
    assert "To be corrected first: flavour." in said(test)
    assert test.button(key="_save").disabled and test.button(key="_start").disabled


def test_the_guides_example_works_as_written_in_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPUs it is not visible, and the key has the schema's field."""
    (tmp_path / "batch_size_of_the_guide.py").write_text(IN_A_PLUGIN + GUIDE)
    test = opened(monkeypatch, plugin_dirs=(str(tmp_path),))
    expert(test, "buffer")
    assert test.number_input(key="field:train_batch_size").label == "buffer.train_batch_size"
    assert "train_batch_size" not in yaml_of(test)
    monkeypatch.setattr(ConfigManager, "_implied", lambda self, path: 4 if path[-1] == "trainer_gpu_num" else None)
    checked(test.run())
    field = test.number_input(key="train_batch_size")
    assert (field.label, field.value, field.min, field.step) == ("Train Batch Size", 64, 4, 4)
    assert "trainer_gpu_num" in field.help and "train_batch_size: 64" in yaml_of(test)
    checked(field.set_value(72).run())
    assert test.number_input(key="train_batch_size").value == 72 and "train_batch_size: 72" in yaml_of(test)
    expert(test, "model")
    assert "train_batch_size: 72" in yaml_of(test), "also where it is not shown"


@pytest.mark.runs("docs/studio.md", "from typing")
def test_a_manager_of_ones_own_orders_fields_and_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`get_configs` in a part, and the dictionary of a section, as in the guide."""
    names: dict[str, Any] = {}
    exec(Page(ROOT / "docs/studio.md").code("python")[1], names)  # noqa: S102 - as a user does
    Mine = names["MyManager"]
    monkeypatch.setattr("trinity.manager.studio.configure.ConfigManager", Mine)
    test = opened(monkeypatch)
    checked(test.run())
    with pytest.raises(KeyError, match="no function set_nothing is registered"):
        Mine._is_new(object.__new__(Mine), "nothing")
    expert(test, "buffer")
    labels = [each.label for each in test.number_input]
    assert (
        labels[:2] == ["Passes over the tasks (buffer.total_epochs)", "buffer.train_batch_size"]
        and labels.count(labels[0]) == 1
    )
    assert "train_batch_size: 0" in yaml_of(test), "not written by anybody else"
    checked(test.number_input(key="field:train_batch_size").set_value(16).run())
    assert "train_batch_size: 16" in yaml_of(test)


@pytest.mark.slow
def test_a_key_that_one_edit_adds_is_in_schema_help_checks_and_studio_and_the_guides_edits_hold(tmp_path: Path) -> None:
    """In a copy of the package, of which two files are edited: one for the key, one as the guide says."""
    import shutil

    import trinity

    package = Path(trinity.__file__).parent
    shutil.copytree(package, tmp_path / "trinity", ignore=shutil.ignore_patterns("__pycache__"))
    section = tmp_path / "trinity" / "common" / "config" / "synchronizer.py"
    text = section.read_text()
    start = text.index("    sync_method:")
    section.write_text(text[:start] + KEY + text[start:])
    with open(tmp_path / "trinity" / "manager" / "config_registry" / "buffer_config_manager.py", "a") as file:
        file.write(GUIDE)
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_KEY], cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "shuffle_seed: 8" in done.stdout and "buffer.train_batch_size" in done.stdout


@pytest.mark.runs("docs/studio.md", "import streamlit")
def test_the_page_of_the_studio_shows_the_guides_example() -> None:
    for page in ("studio.md", "studio.zh.md"):
        example, _ = Page(ROOT / "docs" / page).code("python")
        assert [ast.dump(each) for each in ast.parse(example).body[-2:]] == list(map(ast.dump, ast.parse(GUIDE).body))
