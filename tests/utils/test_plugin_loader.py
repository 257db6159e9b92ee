"""Plugins are imported from where they lie, at once or not at all."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trinity
from tests.loaded_plugins import forget_plugins
from trinity.common.constants import PLUGIN_DIRS_ENV_VAR
from trinity.common.errors import ConfigError, ExitCode
from trinity.common.workflows import WORKFLOWS
from trinity.utils.plugin_loader import PACKAGE, PluginName, load_plugins, loaded_directories, plugin_dirs, scan_plugins

PLUGIN = """\
from trinity.common.workflows import WORKFLOWS, Workflow

@WORKFLOWS.register_module("{name}")
class Mine(Workflow):
    \"\"\"A workflow of the test.\"\"\"
    def run(self):
        return []
"""


@pytest.fixture(autouse=True)
def _no_plugins_after_each_test() -> Iterator[None]:
    yield
    forget_plugins()


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for stem, text in files.items():
        (directory / f"{stem}.py").write_text(text, encoding="utf-8")
    return directory


def tree_hash(directory: Path) -> str:
    files = sorted(path for path in directory.rglob("*.py"))
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


@pytest.mark.difference("Plugins")
def test_a_plugin_runs_from_its_directory_and_is_not_copied(tmp_path: Path) -> None:
    package = Path(trinity.__file__).parent
    before = tree_hash(package)
    directory = write(tmp_path / "plugins", first=PLUGIN.format(name="plugin_first"), __init__="raise RuntimeError")
    assert load_plugins(directory) == ["trinity.plugins.first"]
    cls = WORKFLOWS.get("plugin_first")
    assert cls.__module__ == "trinity.plugins.first"
    assert sys.modules[cls.__module__].__file__ == str(directory / "first.py")
    assert tree_hash(package) == before
    assert not (package / "plugins" / "first.py").exists()


def test_a_second_load_does_not_run_the_file_again(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    text = PLUGIN.format(name="plugin_once") + f"with open({str(counter)!r}, 'a') as file:\n    file.write('x')\n"
    directory = write(tmp_path / "plugins", once=text)
    assert load_plugins(directory) == load_plugins([directory, directory]) == ["trinity.plugins.once"]
    assert counter.read_text() == "x"


def test_only_what_is_asked_for_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = write(tmp_path / "asked", asked=PLUGIN.format(name="plugin_asked"))
    write(tmp_path / "other", other="raise RuntimeError('not asked for')")
    write(asked / "nested", nested="raise RuntimeError('not asked for')")
    monkeypatch.chdir(tmp_path)
    assert load_plugins() == []
    monkeypatch.setenv(PLUGIN_DIRS_ENV_VAR, f"asked{os.pathsep}")
    assert load_plugins() == ["trinity.plugins.asked"]


def test_plugins_may_import_each_other_in_any_order(tmp_path: Path) -> None:
    first = write(tmp_path / "one", aaa="from trinity.plugins.zzz import NAME\n" + PLUGIN.format(name="plugin_aaa"))
    second = write(tmp_path / "two", zzz="NAME = 'z'\n" + PLUGIN.format(name="plugin_zzz"))
    assert load_plugins(os.pathsep.join([str(first), str(second)])) == ["trinity.plugins.aaa", "trinity.plugins.zzz"]
    assert {"plugin_aaa", "plugin_zzz"} <= set(WORKFLOWS)


@pytest.mark.difference("Plugins")
@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("x = 1\ndef broken(:\n", 2, "SyntaxError"),
        ("\n\nimport a_package_that_is_not_there\n", 3, "ModuleNotFoundError: .*a_package_that_is_not_there"),
        ("def f():\n    return 1 / 0\n\nf()\n", 2, "ZeroDivisionError"),
        ("raise SystemExit('stop')\n", 1, "SystemExit: stop"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_fatal(tmp_path: Path, text: str, line: int, reason: str) -> None:
    directory = write(tmp_path / "plugins", broken=text)
    with pytest.raises(
        ConfigError, match=rf"E3902.*{directory}/broken.py:{line} cannot be imported: {reason}"
    ) as caught:
        load_plugins(directory)
    assert caught.value.exit_code == ExitCode.USAGE
    assert f"{PACKAGE}.broken" not in sys.modules


def test_a_missing_directory_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"E3901.*{tmp_path}/none does not exist"):
        load_plugins(tmp_path / "none")
    (tmp_path / "file.py").write_text("")
    with pytest.raises(ConfigError, match=r"E3901.*file.py is not a directory"):
        plugin_dirs([tmp_path / "file.py"])


def test_a_registered_name_taken_twice_is_fatal(tmp_path: Path) -> None:
    directory = write(tmp_path / "plugins", clash=PLUGIN.format(name="math_workflow"))
    with pytest.raises(
        ConfigError, match=r"E3903.*clash.py:3 .*'math_workflow' is already registered by trinity.common"
    ):
        load_plugins(directory)
    assert WORKFLOWS.get("math_workflow").__name__ == "MathWorkflow"


def test_two_files_of_one_name_are_fatal(tmp_path: Path) -> None:
    first = write(tmp_path / "one", same=PLUGIN.format(name="plugin_same_1"))
    second = write(tmp_path / "two", same=PLUGIN.format(name="plugin_same_2"))
    with pytest.raises(ConfigError, match=r"E3903.*two/same.py and plugin .*one/same.py have the same module name"):
        load_plugins([first, second])
    assert loaded_directories() == [], "a process that is started next would be told to load what is refused"
    load_plugins(first)
    assert loaded_directories() == [first], "a folder that could not be loaded is not one of those that were"


def test_a_directory_that_registers_nothing_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nothing = write(tmp_path / "nothing", helper="VALUE = 3\n")
    useful = write(tmp_path / "useful", useful=PLUGIN.format(name="plugin_useful"))
    with caplog.at_level(logging.WARNING, logger="trinity"):
        load_plugins([nothing, useful])
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        f"[W3904] plugin folder {nothing} registers nothing"
    ]


def test_scanning_reads_names_and_runs_nothing(tmp_path: Path) -> None:
    text = (
        "raise RuntimeError('must not run')\n"
        "@WORKFLOWS.register_module('literal')\nclass A: ...\n"
        "@trinity.common.rewards.REWARD_FUNCTIONS.register_module(name='by_keyword')\nclass B: ...\n"
        "WORKFLOWS.register_module(NAME)(A)\n"
    )
    path = write(tmp_path / "plugins", scanned=text) / "scanned.py"
    assert sorted(scan_plugins(tmp_path / "plugins"), key=lambda found: found.line) == [
        PluginName("WORKFLOWS", "literal", path, 2),
        PluginName("REWARD_FUNCTIONS", "by_keyword", path, 4),
        PluginName("WORKFLOWS", None, path, 6),
    ]
    write(tmp_path / "plugins", broken="def (\n")
    with pytest.raises(ConfigError, match=r"E3902.*broken.py:1 cannot be imported"):
        scan_plugins(tmp_path / "plugins")


def test_loading_plugins_imports_no_torch(tmp_path: Path) -> None:
    directory = write(tmp_path / "plugins", light=PLUGIN.format(name="plugin_light"))
    code = (
        "import sys; from trinity.utils.plugin_loader import load_plugins;"
        "load_plugins(sys.argv[1]); import trinity.plugins.light as light;"
        "print(light.Mine.__doc__, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "A workflow of the test. False"
