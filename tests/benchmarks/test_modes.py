"""The table of modes, over a few steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml
from transformers import AutoConfig

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "modes.py"


def test_a_table_has_a_row_a_mode_and_a_mode_that_fails_is_told(tmp_path: Path) -> None:
    few = ["--steps", "3", "--imitation", "2", "--folder", str(tmp_path)]
    command = [sys.executable, str(SCRIPT), *few, "--modes", "2 torch engines", "1 torch engine"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["mode", "---", "2 torch engines", "1 torch engine"]
    assert rows[2][-1] == "1.00" and all(float(cell.replace(",", "")) > 0 for row in rows[2:] for cell in row[1:])

    larger = (
        f"import pathlib, modes; print(modes.write_config(pathlib.Path({str(tmp_path)!r}), size='larger', seed=42, "
    )
    code = f"{larger}steps=3, imitation=2))"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPT.parent, capture_output=True, text=True, timeout=120)
    section = yaml.safe_load(Path(done.stdout.split()[-1]).read_text())["model"]
    assert AutoConfig.from_pretrained(section["model_path"]).num_hidden_layers == 8, done.stderr

    broken = tmp_path / "modes.yaml"
    broken.write_text(broken.read_text().replace("batch_size: 32", "batch_size: 0"))
    code = (
        "import pathlib, modes; "
        f"print(modes.run(pathlib.Path({str(broken)!r}), '1 torch engine', modes.Measured(), number=9))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPT.parent, capture_output=True, text=True, timeout=120)
    assert "1 torch engine: status 2" in done.stdout and "buffer.batch_size" in done.stdout, done.stderr
