"""`trinity quickstart` as a command."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from trinity.cli.quickstart import quickstart, show
from trinity.quickstart.summary import StageSummary, Summary

app = typer.Typer()
app.command()(quickstart)


def test_prepare_only_writes_the_folder_and_says_how_to_run_it(tmp_path: Path) -> None:
    folder = tmp_path / "quickstart"
    result = CliRunner().invoke(app, ["--dir", str(folder), "--prepare-only"])
    assert result.exit_code == 0
    assert f"run --config {folder / 'quickstart.yaml'}" in result.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["data", "model", "quickstart.yaml", "trinity.schema.json"]


def test_a_second_call_says_that_it_keeps_the_files(tmp_path: Path) -> None:
    arguments = ["--dir", str(tmp_path), "--prepare-only", "--seed", "5"]
    assert CliRunner().invoke(app, arguments).stdout.startswith("Wrote")
    assert CliRunner().invoke(app, arguments).stdout.startswith("Using the files in")


def test_a_wrong_option_ends_with_the_status_of_a_configuration_error(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["--dir", str(tmp_path), "--prepare-only"])
    result = CliRunner().invoke(app, ["--dir", str(tmp_path), "--prepare-only", "--seed", "7"])
    assert result.exit_code == 2
    assert "[E1091]" in result.stderr


def test_the_table_shows_what_was_measured_and_dashes_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    stages = (
        StageSummary("sft_warmup", "/job/a", 40.0, 550, 1e6, None, 0.301, 2.9, 0.012, False, None),
        StageSummary("rft", "/job/b", 20.5, 80, 2e5, 0.301, 0.994, 1e-4, 2e-4, True, None),
    )
    show(Summary(42, 0.301, 0.994, 60.5, 19834.0, stages), ["curve  x.png"])
    lines = [" ".join(line.replace("│", " ").split()) for line in capsys.readouterr().out.splitlines()]
    assert "sft_warmup 550 40.0 2.900 -> 0.012 - -> 30.1%" in lines
    assert "rft 80 20.5 - 30.1% -> 99.4%" in lines
    assert "60 seconds in all, 19,834 trained tokens per second" in lines
    assert lines[-1] == "curve x.png"
