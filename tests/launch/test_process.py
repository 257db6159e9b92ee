"""Thread counts and math-library settings are set before torch loads."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from trinity.common.weights import Ticket
from trinity.explorer.summary import ExploreSummary
from trinity.launch.facts import process_facts
from trinity.trainer.summary import TrainSummary

SHOW = """
import json, os, sys
from trinity.launch.facts import process_facts
from trinity.launch.process import prepare_process
prepare_process(sys.argv[1], deterministic=True)
assert "torch" not in sys.modules
facts = process_facts()
facts["wait_policy"] = os.environ["OMP_WAIT_POLICY"]
print(json.dumps(facts))
"""


def facts_for(model_dir: Path, **environment: str) -> dict[str, object]:
    environment |= {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", SHOW, str(model_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_small_model_runs_on_one_thread_that_sleeps_while_it_waits(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 128}))
    facts = facts_for(tmp_path)
    assert (facts["threads"], facts["wait_policy"], facts["mkl_cbwr"]) == (1, "PASSIVE", "AUTO")


def test_what_the_user_set_stays(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 128}))
    assert facts_for(tmp_path, OMP_NUM_THREADS="2")["threads"] == 2


SUMMARIES = (ExploreSummary(3, 24), TrainSummary(3, None, False, {"loss": 0.5}), process_facts(), Ticket(3, "", "", 0))

# Of a run whose parts have processes of their own: each that imports more starts later, by seconds.
NEEDED = {
    "driver": ("import trinity.launch.run, trinity.launch.stage, trinity.runtime.process", "torch"),
    "synchronizer": ("from trinity.launch.placement import make_synchronizer", "torch"),
    "explorer": ("from trinity.launch.explorer_side import ExplorerSide; ExplorerSide.load()", "transformers"),
    "fast engine": ("import trinity.engine.torch.engine", "transformers.generation.utils"),
}


@pytest.mark.parametrize(("work", "unneeded"), NEEDED.values(), ids=NEEDED)
def test_a_process_imports_only_what_it_needs(work: str, unneeded: str) -> None:
    assert unneeded not in modules_after(work)


def test_what_processes_say_to_a_driver_is_read_without_torch() -> None:
    told = pickle.dumps(SUMMARIES)
    assert "torch" not in modules_after(f"import pickle; pickle.loads({told!r})")


def modules_after(work: str) -> list[str]:
    """Return what a process has imported after `work`."""
    program = f"{work}; import json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], timeout=120, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])
