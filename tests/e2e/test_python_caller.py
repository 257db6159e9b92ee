"""A deterministic run that Python code starts after it has computed: the weights of the command, or a refusal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from tests.e2e.plugin_texts import REWARD
from tests.e2e.short_run import ROOT
from tests.e2e.test_algorithms import make_run
from tests.e2e.test_resume import final_weights
from tests.e2e.tiny_run import TinyRun

pytestmark = pytest.mark.slow

STEPS = 2
CALLER = """
import sys
from pathlib import Path

import torch

torch.mm(torch.ones(2, 3), torch.ones(3, 2))
torch.set_num_threads(2)

from trinity.common.errors import TrinityError
from trinity.launch.run import RunOptions, plan_run, run_plan

options = RunOptions(plugin_dirs=[Path("plugins")])
try:
    run_plan(plan_run(Path("run.yaml"), options), options)
except TrinityError as error:
    sys.exit(str(error))
"""


def prepared(folder: Path) -> TinyRun:
    """Return a deterministic run of `STEPS` steps, its files written."""
    folder.mkdir()
    run = make_run(folder, {"algorithm_type": "grpo"}).change(buffer__total_steps=STEPS)
    run.plugin = REWARD
    (folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    (folder / "plugins").mkdir()
    (folder / "plugins" / "own.py").write_text(REWARD)
    return run


def called(run: TinyRun, **environment: str) -> subprocess.Popen[str]:
    """Start the program `CALLER` in the folder of `run`."""
    return subprocess.Popen(
        [sys.executable, "-c", CALLER],
        cwd=run.folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.nightly
def test_a_caller_that_has_computed_gets_the_weights_of_the_command_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MKL_CBWR")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    command, late, early = (prepared(tmp_path / name) for name in ("command", "late", "early"))
    callers = [called(late), called(early, MKL_CBWR="AUTO")]
    ended = command.finish(is_real=True)
    outputs = [caller.communicate(timeout=240)[0] for caller in callers]
    assert (ended.status, callers[1].returncode) == (0, 0), ended.output + outputs[1]
    assert final_weights(early, STEPS) == final_weights(command, STEPS)
    if callers[0].returncode:
        assert "[E3303] deterministic: true gives the weights of `trinity run`, but this process" in outputs[0]
        assert "set MKL_CBWR=AUTO before Python starts" in outputs[0] and not late.job.exists()
    else:
        assert not torch.backends.mkl.is_available(), outputs[0]
        assert final_weights(late, STEPS) == final_weights(command, STEPS)
