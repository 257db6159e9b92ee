"""Commands and options with typing errors, published commands of later versions, both spellings of options."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.common.config.conftest import MINIMAL
from trinity.cli.app import app
from trinity.cli.later import INSTEAD
from trinity.common.errors import ExitCode
from trinity.runtime.collector import THRESHOLDS
from trinity.utils.log import ROOT


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """`run` sends the log to the console of its process; here that is the console of one call."""
    root = logging.getLogger(ROOT)
    before = list(root.handlers), root.propagate, root.level
    yield
    root.handlers[:], root.propagate = before[:2]
    root.setLevel(before[2])


def invoke(*words: str) -> Result:
    # One wide line: the messages are looked at, not how a terminal breaks them.
    return CliRunner(env={"COLUMNS": "250", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, list(words))


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("rnu", "--config", "run.yaml"), "'run'"),
        (("validat",), "'validate'"),
        (("qickstart",), "'quickstart'"),
        (("config", "shwo"), "'show'"),
        (("run", "--conifg", "run.yaml"), "--config"),
        (("run", "--config", "run.yaml", "--plugin-dri", "."), "--plugin-dir"),
        (("validate", "--config", "run.yaml", "--shcema-only"), "--schema-only"),
    ],
)
def test_a_typing_error_gets_a_suggestion(words: tuple[str, ...], meant: str) -> None:
    result = invoke(*words)
    assert result.exit_code == ExitCode.USAGE
    assert meant in result.output


def test_run_without_a_file_says_what_is_missing() -> None:
    result = invoke("run")
    assert result.exit_code == ExitCode.USAGE
    assert "--config" in result.output


@pytest.mark.parametrize("name", INSTEAD)
def test_a_command_of_a_later_version_says_so_and_what_serves_instead(name: str) -> None:
    result = invoke(*name.split(), "--config", "run.yaml", "--port", "8080", "rest")
    assert result.exit_code == ExitCode.USAGE
    assert result.output == f"error[E1900]: `trinity {name}` is not available yet in this version; {INSTEAD[name]}\n"
    assert f" {name} " not in invoke("--help").output


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--dtype", "int8"), ExitCode.USAGE, "keep, float32, bfloat16, float16, got 'int8'"),
        (("--part", "ref"), ExitCode.USAGE, "actor, critic, got 'ref'"),
        (("--push", "model"), ExitCode.USAGE, "E1955"),
        ((), ExitCode.CHECKPOINT, "error[E7003]: nowhere is no folder; give a job, global_step_N, or its actor"),
    ],
)
def test_a_conversion_of_a_checkpoint_says_what_is_wrong(words: tuple[str, ...], status: ExitCode, said: str) -> None:
    result = invoke("convert", "checkpoint", "nowhere", "-o", "out", *words)
    assert result.exit_code == status and said in " ".join(result.output.replace("│", " ").split()), result.output


def test_debug_knows_its_modules() -> None:
    words = ("debug", "--config", "run.yaml", "--output_file", "out.jsonl", "--plugin_dir", "plugins", "--module")
    wrong = invoke(*words, "worflow")
    assert wrong.exit_code == ExitCode.USAGE
    said = "error[E2001]: --module must be one of inference_model, workflow, viewer, got `worflow`"
    assert wrong.output == f"{said}; did you mean `workflow`?\n"


@pytest.mark.parametrize("flag", ["--plugin-dir", "--plugin_dir"])
def test_run_takes_both_spellings_of_the_plugin_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text('@WORKFLOWS.register_module("own_workflow")\nclass A: ...\n')
    (tmp_path / "run.yaml").write_text(MINIMAL.replace("math_workflow", "own_workflow"))
    assert "E1701" in invoke("run", "--config", "run.yaml").output
    result = invoke("run", "--config", "run.yaml", flag, "mine")
    # The name of the plugin is known; what stops the run is the model, which is not there.
    assert "E1701" not in result.output and "E3101" in result.output
    assert result.exit_code == ExitCode.ENVIRONMENT
    (tmp_path / "run.yaml").write_text(
        MINIMAL.replace("math_workflow", "own_workflow") + "plugin_dirs: ['${oc.env:MINE,mine}']\n"
    )
    for command in ("run", "validate"):
        result = invoke(command, "--config", "run.yaml")
        assert "E1701" not in result.output and "E3101" in result.output, result.output
    result = invoke("run", "--config", "run.yaml", "--set", "plugin_dirs=[nowhere]")
    assert "E3901" in result.output and "nowhere" in result.output
    missing = invoke("run", "--config", "run.yaml", flag, "nowhere")
    assert "E3901" in missing.output and missing.exit_code == ExitCode.ENVIRONMENT
    assert "resume with" not in missing.output, "nothing was started"


COMMAND = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_threshold()))
sys.argv = ["trinity", "--help"]
from trinity.cli import main
main()
"""


def test_the_process_of_a_command_collects_seldom() -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == str(THRESHOLDS)
