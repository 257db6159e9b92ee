"""What the published questions and answers tell a user to do, on a run that really took place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.common.schema.test_sql_schema import FAQ_SCRIPT
from tests.e2e.short_run import ROOT
from tests.e2e.tiny_run import TinyRun

pytestmark = pytest.mark.slow

URL = "sqlite:///countdown_buffer.db"
LOAD = """
import os
from transformers import AutoTokenizer, AutoModelForCausalLM
from trinity.common.models.utils import load_fsdp_state_dict_from_verl_checkpoint

model = AutoModelForCausalLM.from_pretrained(model_path)
before = model.lm_head.weight.detach().clone()
ckp_path = os.path.join(checkpoint_root_dir, project, name, "global_step_2", "actor")
model.load_state_dict(load_fsdp_state_dict_from_verl_checkpoint(ckp_path))
print("moved", not (model.lm_head.weight == before).all())
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A run as the page shows it: `trinity run ... 2>&1 | tee debug.log`, `log.level` in lower case."""
    made = TinyRun(tmp_path_factory.mktemp("faq"))
    made.change(
        buffer__trainer_input={"experience_buffer": {"name": "countdown_buffer", "storage_type": "queue", "path": URL}},
        log__level="debug",
    )
    made.start().communicate(timeout=120)
    return made


def python(run: TinyRun, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=run.folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_output_can_be_piped_into_a_file(run: TinyRun) -> None:
    (run.folder / "piped.yaml").write_text((run.folder / "run.yaml").read_text().replace("name: run", "name: piped"))
    command = f"{sys.executable} -m trinity run --config piped.yaml 2>&1 | tee debug.log"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
    shown = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=run.folder, env=environment, capture_output=True, timeout=120
    )
    assert shown.returncode == 0 and shown.stderr == b"", shown.stdout.decode()
    text = (run.folder / "debug.log").read_bytes()
    assert text == shown.stdout
    assert b"\x1b" not in text and b"\r" not in text
    assert any(line.startswith(b"[piped] step 2/2 ") for line in text.splitlines())


def test_debug_in_lower_case_shows_more(run: TinyRun) -> None:
    log = (run.folder / "out" / "tiny" / "run" / "log" / "run.log").read_text()
    assert " DEBUG trinity.synchronizer: engine serves version 1" in log
    assert " INFO trinity.trainer: checkpoint of step 2" in log


def test_the_script_shows_the_experiences_of_the_run(run: TinyRun) -> None:
    done = python(run, "-c", FAQ_SCRIPT.format(url=URL))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("exp.prompt_text='") and "+" in line and "exp.response_text='" in line for line in lines)


def test_validate_names_the_database_file(run: TinyRun) -> None:
    done = python(run, "-m", "trinity", "validate", "--config", "run.yaml")
    assert f"database file: {run.folder}/countdown_buffer.db" in done.stdout
    assert (run.folder / "countdown_buffer.db").stat().st_size > 0


def test_the_checkpoint_loads_outside_of_the_framework(run: TinyRun) -> None:
    values = {"model_path": "model", "checkpoint_root_dir": "out", "project": "tiny", "name": "run"}
    given = "".join(f"{key} = {value!r}\n" for key, value in values.items())
    done = python(run, "-c", given + LOAD)
    assert done.stdout.strip().endswith("moved True"), done.stderr
    assert Path(run.folder / "out" / "tiny" / "run" / "latest_checkpointed_iteration.txt").read_text() == "2"
