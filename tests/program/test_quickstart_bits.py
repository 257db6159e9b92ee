"""The quickstart from a script and from a notebook: the weights of the command, bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from trinity.launch.process import VARIABLES
from trinity.quickstart.folder import prepare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples/notebook.ipynb"
SHORT = {
    "stages[0].trainer.total_steps": 12,
    "stages[0].trainer.save_interval": 0,
    "stages[1].buffer.batch_size": 8,
    "stages[1].buffer.train_batch_size": 32,
    "stages[1].buffer.total_steps": 2,
    "stages[1].explorer.eval_interval": 1,
}
SCRIPT = """
import json, sys
import trinity

heard = []
report = trinity.run(
    "quickstart/quickstart.yaml", json.loads(sys.argv[1]), on_step=heard.append, on_checkpoint=heard.append
)
assert {event.stage for event in heard} == {"sft_warmup", "rft"}
print(report.model_path)
"""


def notebook() -> Any:
    """Return the notebook of the examples."""
    return nbformat.read(NOTEBOOK, as_version=4)


def execute(book: Any, folder: Path, overrides: Mapping[str, Any]) -> None:
    """Execute the notebook in `folder` with other overrides."""
    (cell,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
    assert cell.source == "overrides = {}", "the quickstart as it is"
    cell.source = f"overrides = {dict(overrides)!r}"
    NotebookClient(book, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()


def weights(folder: Path) -> dict[str, str]:
    """Return the fingerprint of the weights of each stage."""
    files = sorted((folder / "quickstart" / "checkpoints").rglob("huggingface/model.safetensors"))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.nightly
def test_script_and_notebook_give_the_weights_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    folders = [tmp_path / name for name in ("command", "script", "notebook")]
    for folder in folders:
        prepare(folder / "quickstart")
    words = [word for key, value in SHORT.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "trinity", "run", "quickstart/quickstart.yaml", *words]
    script = [sys.executable, "-c", SCRIPT, json.dumps(SHORT)]
    for program, folder in zip((command, script), folders, strict=False):
        done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    book = notebook()
    execute(book, folders[2], SHORT)
    shown = {
        cell.id: cell.outputs[-1]["data"]["text/plain"]
        for cell in book.cells
        if cell.cell_type == "code" and cell.outputs
    }
    assert shown["train"].startswith("RunReport(stages=(StageReport(name='sft_warmup'")
    assert shown["curve"].startswith("{0: 0.") and "'accuracy'" in shown["scores-code"]
    found = [weights(folder) for folder in folders]
    assert len(found[0]) == 2 and found[1] == found[0] and found[2] == found[0]


def test_the_notebook_is_committed_without_outputs() -> None:
    book = notebook()
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
