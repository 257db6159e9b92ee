"""A plugin with an error: every command names its file and line, and nothing has begun."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.e2e.tiny_run import TinyRun
from trinity.common.errors import ExitCode

SOUND = """
from trinity.common.workflows import WORKFLOWS, SimpleWorkflow


@WORKFLOWS.register_module("mine")
class Mine(SimpleWorkflow):
    pass
"""
# Kind of error -> what the file says, the line that is named, and the code.
BROKEN = {
    "syntax": (SOUND + "\ndef run(:\n    pass\n", 9, "E3902"),
    "import": (SOUND + "\nimport no_such_package\n", 9, "E3902"),
    "raises": (SOUND + "\n\ndef deep():\n    return {}['key']\n\n\ndeep()\n", 11, "E3902"),
    "leaves": (SOUND + "\nraise SystemExit(0)\n", 9, "E3902"),
    "a name of ours": (SOUND.replace('"mine"', '"math_workflow"'), 5, "E3903"),
    "declares nonsense": (SOUND.replace("    pass", "    needs = {'praise'}"), 5, "E3907"),
    "computes its declaration": (SOUND.replace("    pass", "    needs = frozenset(open('x'))"), 7, "E3906"),
}
KNOWN_ONCE_RUN = ("raises", "leaves")
"""`validate` runs no plugin."""
COMMANDS = {
    "run": ("run",),
    "validate": ("validate",),
    "try": ("try", "-n", "1"),
    "debug workflow": ("debug", "--module", "workflow"),
    "debug inference_model": ("debug", "--module", "inference_model"),
    "env-check": ("env-check",),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    run = TinyRun(tmp_path_factory.mktemp("broken"))
    run.change(buffer__explorer_input__default_workflow_type="mine")
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    return run


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_plugin_with_an_error_is_named_with_file_and_line_before_anything_starts(
    run: TinyRun, command: str, kind: str
) -> None:
    text, line, code = BROKEN[kind]
    is_found = command != "validate" or kind not in KNOWN_ONCE_RUN
    plugins = run.folder / "plugins"
    plugins.mkdir(exist_ok=True)
    file = plugins / "own.py"
    file.write_text(text)
    before = files(run.folder)
    first, *words = COMMANDS[command]
    ended = run.finish(words=(first, "--config", "run.yaml", "--plugin-dir", "plugins", *words))
    assert (ended.status in (ExitCode.USAGE, ExitCode.ENVIRONMENT)) == is_found, ended.output
    named = [f"{place}:{line}" in ended.output for place in (file, file.relative_to(run.folder))]
    assert (code in ended.output and any(named)) == is_found, ended.output
    assert "Traceback" not in ended.output and ":None" not in ended.output, ended.output
    assert code != "E3902" or "E1701" not in ended.output, "whether that file registers it is not known"
    assert files(run.folder) == before, "no job, no log, no database"


@pytest.mark.parametrize("command", ["run", "validate", "debug workflow"])
def test_a_folder_that_registers_nothing_is_warned_about(run: TinyRun, command: str) -> None:
    for folder, name, text in (("plugins", "own.py", SOUND), ("empty", "helper.py", "VALUE = 3\n")):
        (run.folder / folder).mkdir(exist_ok=True)
        (run.folder / folder / name).write_text(text)
    first, *words = COMMANDS[command]
    folders = ("--plugin-dir", "plugins", "--plugin-dir", "empty")
    ended = run.finish(words=(first, "--config", "run.yaml", *folders, *words))
    assert "W3904" in ended.output and "empty registers nothing" in ended.output, ended.output
    assert ended.status == (ExitCode.ENVIRONMENT if first == "debug" else ExitCode.DONE), ended.output
