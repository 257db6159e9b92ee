"""What a shell offers, asked for in the way in which bash and zsh ask."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trinity
from tests.docs.followed import run_lines
from tests.docs.pages import ROOT, page
from trinity.cli.app import app
from trinity.launch.job import LOCKS, RECORD
from trinity.utils.environment import environment


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of these tests, which their processes share."""
    with environment({"TRINITY_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}):
        yield


def offered(*words: str, of: str = "bash") -> list[str]:
    """Return what is offered in place of the last word, in this process."""
    line = " ".join(("trinity", *words))
    environment = {"_TRINITY_COMPLETE": f"complete_{of}", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    result = CliRunner().invoke(app, prog_name="trinity", env=environment | {"_TYPER_COMPLETE_ARGS": line})
    return result.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("vali",), ["validate"]),
        (("run", "--set", "algorithm.repeat"), ["algorithm.repeat_times="]),
        (("run", "--set", "algorithm.algorithm_type=mix"),
         ["algorithm.algorithm_type=mix", "algorithm.algorithm_type=mix_chord"]),
        (("run", "--set", "deterministic"), ["deterministic=true", "deterministic=false"]),
        (("run", "run.yaml", "--set", "mode=b"), ["mode=both", "mode=bench"]),
        (("run", "--set", "buffer.explorer_input.default_workflow_type=math_w"),
         ["buffer.explorer_input.default_workflow_type=math_workflow"]),
        # In bash a word ends at `=`.
        (("run", "--set", "algorithm.algorithm_type", "=", "mix_"), ["mix_chord"]),
        (("run", "--set", "stages[1].mode", "=", "t"), ["train"]),
        (("run", "run.yaml", "deterministic", "="), ["true", "false"]),
        (("run", "--set", "buffer.explorer_input.tasksets[1].default_workflow_type", "=", "math_w"), ["math_workflow"]),
        (("run", "run.yaml", "project"), ["project="]),
        (("run", "run.yaml", "monitor.monitor_ty"),
         [f"monitor.monitor_type={name}" for name in ("mlflow", "prometheus", "swanlab", "tensorboard", "wandb")]),
        (("algorithms", "reinforce"), ["reinforce_plus_plus_baseline", "reinforceplusplus"]),
        (("explain", "E120"), ["E1203", "E1204", "E1205"]),
        (("explain", "algorithm.repeat"), ["algorithm.repeat_times"]),
    ],
)  # fmt: skip
def test_a_word_is_completed(words: tuple[str, ...], found: list[str]) -> None:
    assert sorted(offered(*words)) == sorted(found)


def test_every_key_with_a_value_is_offered_and_no_section() -> None:
    keys = offered("run", "--set", "algorithm.")
    assert len(keys) > 20 and "algorithm.optimizer.lr" in keys and "algorithm.optimizer" not in keys


def test_jobs_are_offered_by_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "runs" / "project" / "first"
    (job / LOCKS).mkdir(parents=True)
    (job / RECORD).write_text("{}")
    (tmp_path / "runs" / "project" / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    for command in ("status", "log", "stop", "resume", "show"):
        assert offered(command, "r") == ["runs/project/first"]
    assert offered("status", "runs/") == ["runs/project/first"]
    assert offered("status", f"{tmp_path}/runs/proj") == [str(job)]


def test_zsh_gets_the_same() -> None:
    assert "algorithm.repeat_times=" in " ".join(offered("run", "--set", "algorithm.repeat", of="zsh"))


def asked_apart(package: Path) -> list[str]:
    """Return what a process of its own offers, and, in the last line, which modules it has imported."""
    code = (
        "import sys; sys.argv = ['trinity']; from trinity.cli.app import app\n"
        "seen = ('torch', 'numpy', 'sqlalchemy', 'trinity.common.config.config')\n"
        "try: app(prog_name='trinity')\nfinally: print([name for name in seen if name in sys.modules])"
    )
    asked = {"_TRINITY_COMPLETE": "complete_bash", "COMP_WORDS": "trinity run --set algorithm.", "COMP_CWORD": "3"}
    command, folder = [sys.executable, "-c", code], package.parent  # the folder is the first place of imports
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | asked, cwd=folder)
    return done.stdout.splitlines()


def test_a_completion_imports_nothing_heavy_and_knows_a_new_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for at every press of the key; the seconds are in benchmarks/README.md."""
    monkeypatch.setenv("TRINITY_CACHE_DIR", str(tmp_path / "cache"))
    package = tmp_path / "trinity"
    shutil.copytree(Path(trinity.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    *first, modules = asked_apart(package)
    assert modules == "['trinity.common.config.config']", "no more than the schema, and that once"
    *second, modules = asked_apart(package)
    assert (second, modules) == (first, "[]")
    section = package / "common" / "config" / "algorithm.py"
    key = "    repeat_times: Count"
    text = section.read_text(encoding="utf-8")
    assert text.count(key) == 1
    section.write_text(text.replace(key, f'    own_key: bool = key(False, "Ours.", OWN)\n{key}'), encoding="utf-8")
    *third, _ = asked_apart(package)
    assert set(third) - set(first) == {"algorithm.own_key"}


@pytest.mark.runs("docs/configuration.md", "trinity --install-completion")
def test_the_documented_command_installs_it_for_the_shell_that_calls(tmp_path: Path) -> None:
    (tmp_path / "trinity").write_text(f'#!/bin/sh\nexec {sys.executable} -m trinity "$@"\n')
    (tmp_path / "trinity").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    lines = page("docs/configuration.md").lines("trinity --install-completion")
    run_lines(lines, tmp_path, {"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)})
    (script,) = re.findall(r"source '?([^'\n]+)", (tmp_path / ".bashrc").read_text())
    assert "_TRINITY_COMPLETE" in Path(script).read_text()
