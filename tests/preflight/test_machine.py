"""What `validate` finds on a machine is what a run on it raises, at the places of the file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL
from trinity.catalogue import BUILT_IN
from trinity.common.config import ConfigErrors, load_plan
from trinity.launch.validation import check
from trinity.preflight.machine import check_machine, refuse_unfit_machine

STAGES = """\
stages:
- stage_name: first
- stage_name: second
  buffer:
    explorer_input:
      taskset: {path: gone.jsonl}
"""


@pytest.fixture
def run_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"prompt": "", "response": "2"}\n{"prompt": "1+1", "response": "2"}\n')
    (tmp_path / "run.yaml").write_text(MINIMAL)
    return tmp_path / "run.yaml"


def test_what_validate_finds_is_what_a_run_raises(run_yaml: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan, found = check(run_yaml)
    assert {finding.code for finding in found} >= {"E3101", "W4011"}
    with caplog.at_level(logging.WARNING), pytest.raises(ConfigErrors) as caught:
        refuse_unfit_machine(plan)
    assert caught.value.problems == [finding for finding in found if finding.is_error]
    assert caught.value.exit_code == caught.value.problems[0].exit_code
    warnings = [finding.message for finding in found if not finding.is_error and finding not in plan.warnings]
    assert warnings and [record.message for record in caplog.records] == warnings


def test_a_finding_of_a_stage_stands_where_its_key_is_written(run_yaml: Path) -> None:
    run_yaml.write_text(MINIMAL + STAGES)
    found = {f.code: f for f in check_machine(load_plan(run_yaml, catalogue=BUILT_IN))}
    assert (found["E3101"].key, found["E3101"].line) == ("model.model_path", 4)
    data = found["E4001"]
    assert (data.key, data.line) == ("stages[1].buffer.explorer_input.taskset.path", MINIMAL.count("\n") + 6)
