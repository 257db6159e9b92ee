"""Thread counts and math-library settings are set before torch loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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


def test_a_driver_whose_parts_are_elsewhere_imports_no_torch() -> None:
    modules = "trinity.launch.run, trinity.launch.stage, trinity.launch.placement, trinity.runtime.process"
    program = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0
