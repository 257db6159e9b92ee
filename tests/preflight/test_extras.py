"""What `trinity validate` says of packages that a file asks for and that are not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.test_validate import app, runner
from tests.common.config.conftest import MINIMAL
from trinity.buffer.store import ExperienceStore
from trinity.common.errors import EnvironmentProblem
from trinity.utils.packages import postgresql_driver

OUTPUT = "buffer.trainer_input.experience_buffer"
NEEDED = {
    "wandb": ("monitor.monitor_type=wandb", "wandb", "wandb"),
    "mlflow": ("monitor.monitor_type=mlflow", "mlflow", "mlflow"),
    "ray": ("cluster.runtime=ray", "ray", "ray"),
    "ray of two machines": ("cluster.node_num=2", "ray", "ray"),
    "psycopg2": (f"{OUTPUT}.path=postgresql+psycopg2://me@host/d", "psycopg2", "postgres"),
    "psycopg": (f"{OUTPUT}.path=postgresql://me@host/d", "psycopg", "postgres"),
}


TASKSET = "buffer.explorer_input.taskset"
ENVIRONMENTS = {
    "frozen_lake_workflow": ("gymnasium", "`pip install 'trinity-rft[gymnasium]'`"),
    "RAFT_reflect_alfworld_workflow": ("alfworld", "`pip install 'trinity-rft[alfworld]'`"),
    "sciworld_workflow": ("scienceworld", "`pip install 'trinity-rft[scienceworld]'`"),
    "webshop_workflow": ("web_agent_site", "the set-up of https://github.com/princeton-nlp/WebShop"),
}


@pytest.mark.parametrize("workflow", ENVIRONMENTS)
def test_the_package_of_an_environment_that_is_not_installed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workflow: str
) -> None:
    package, way_out = ENVIRONMENTS[workflow]
    (tmp_path / "run.yaml").write_text(MINIMAL)
    monkeypatch.setitem(sys.modules, package, None)
    command = ["validate", "-c", str(tmp_path / "run.yaml"), "--set", f"{TASKSET}.default_workflow_type={workflow}"]
    shown = " ".join(runner.invoke(app, command).output.split())
    key = f"{TASKSET}.default_workflow_type"
    assert f"error[E3301]: `{key}` needs the package {package}, which is not installed" in shown
    assert f"run {way_out}, or use --set {key}=" in shown
    assert "E3301" not in runner.invoke(app, [*command, "--schema-only"]).output


@pytest.mark.parametrize(("override", "package", "extra"), NEEDED.values(), ids=NEEDED)
def test_a_package_that_is_not_installed_is_told_with_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, package: str, extra: str
) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    for name in {package, "psycopg2"}:
        monkeypatch.setitem(sys.modules, name, None)
    command = ["validate", "-c", str(tmp_path / "run.yaml"), "--set", override]
    shown = " ".join(runner.invoke(app, command).output.split())
    key = override.partition("=")[0].replace("node_num", "runtime")
    assert f"error[E3301]: `{key}` needs the package {package}, which is not installed" in shown
    assert f"run `pip install 'trinity-rft[{extra}]'`, or use --set " in shown
    assert "E3301" not in runner.invoke(app, [*command, "--schema-only"]).output


def test_the_driver_is_the_one_that_is_written_or_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    assert postgresql_driver("postgresql://me@host/d") == "psycopg"
    assert postgresql_driver("postgresql+pg8000://me@host/d") == "pg8000"
    assert postgresql_driver("sqlite:///file.db") is None
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(EnvironmentProblem, match=r"needs the package psycopg.*trinity-rft\[postgres\]") as caught:
        ExperienceStore("postgresql://me:secret@host/d").open()
    assert caught.value.code == "E3301" and "secret" not in str(caught.value)


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    (tmp_path / "no_such_driver").mkdir()  # as W&B leaves one of its name where it has run
    monkeypatch.syspath_prepend(tmp_path)
    command = ["validate", "-c", str(tmp_path / "run.yaml"), "--set", f"{OUTPUT}.path=postgresql+no_such_driver://h/d"]
    shown = " ".join(runner.invoke(app, command).output.split())
    assert "needs the package no_such_driver, which is not installed" in shown
