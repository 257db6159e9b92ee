"""`make gpu`: parts that hang, fail and are killed hide nothing, and the report says so, whole whenever it is read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.e2e.tiny_run import Ended
from tools.gpu import quickstart, vllm_step
from tools.gpu.__main__ import refusal
from tools.gpu.parts import FACTS_S, TOTAL_S, parts_of
from tools.gpu.records import counts, recorded
from tools.gpu.report import summary
from trinity.launch.run import RunOptions, plan_run

ROOT = Path(__file__).resolve().parents[2]
# A shell, which starts at once; what it leaves behind has a session of its own and does not listen.
HANGING = """echo '{"half": 1}' > "$0/figures.json"
setsid sh -c 'trap "" TERM; echo begun $$; sleep 600' &
sleep 600"""
DRIVER = """
import json, sys
from pathlib import Path
from tools.gpu.process import adopt_orphans
from tools.gpu.report import Part, Report, run_parts, summary
adopt_orphans()
where = Path(sys.argv[1])
here = (sys.executable, "-c")
made = "import sys; open(sys.argv[1] + '/figures.json', 'w').write('{\\"problems\\": [\\"seven\\"]}')"
parts = [
    Part("hangs", "", ("sh", "-c", HANGING, "{out}"), 1, float(sys.argv[2])),
    Part("fails", "", (*here, made + "; print('the reason'); sys.exit(3)", "{out}"), 1, 60),
    Part("killed", "", (*here, "import os; os.kill(os.getpid(), 9)"), 1, 60),
    Part("absent", "", (*here, "raise AssertionError"), 1, 60, package="nothere"),
    Part("works", "", ("sh", "-c", "echo '{\\"a\\": 5}' > $0/figures.json", "{out}"), 1, 60),
    Part("no fault", "", (*here, "raise SystemExit(1)"), 1, 60, counts=False),
    Part("late", "", (*here, "pass"), 0, 0.5),
]
parts = [part for part in parts if part.name in sys.argv[3:] or not sys.argv[3:]]
machine = {"devices": [], "driver": None, "python": "3", "packages":
           {"missing_required": ["omegaconf>=2"], "other_versions": [], "missing_optional": ["nothere"]}}
report = Report(where / "report.json", {"machine": machine})
fine = run_parts(parts, report, work=where / "work", total_s=100, missing=["nothere"])
print(summary(report.values))
sys.exit(not fine)
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the driver over its own parts."""
    code = f"HANGING = {HANGING!r}\n{DRIVER}"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), *arguments], cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE
    )


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the parts of the report by name."""
    return {entry["name"]: entry for entry in json.loads((folder / "report.json").read_text())["parts"]}


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, though nobody may have asked for its status yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_part_that_hangs_fails_or_is_killed_hides_no_other(tmp_path: Path) -> None:
    driver = start(tmp_path, "3")
    shown, _ = driver.communicate(timeout=120)
    found = entries(tmp_path)
    statuses = {name: entry["status"] for name, entry in found.items()}
    assert statuses == {
        "hangs": "timeout", "fails": "failed", "killed": "failed", "absent": "skipped", "works": "ok",
        "no fault": "failed", "late": "skipped",
    }  # fmt: skip
    assert driver.returncode == 1 and json.loads((tmp_path / "report.json").read_text())["result"] == "failed"
    assert found["hangs"]["figures"] == {"half": 1} and found["hangs"]["tail"][0].startswith("begun ")
    assert is_gone(int(found["hangs"]["tail"][0].split()[1])), "what it left behind is ended, too"
    assert found["fails"]["exit_status"] == 3 and found["fails"]["tail"] == ["the reason"]
    assert found["killed"]["reason"] == "it was killed by signal 9"
    assert found["absent"]["reason"] == "nothere is not installed" and found["late"]["reason"] == "no time was left"
    assert found["works"]["figures"] == {"a": 5}
    for text in ("required and missing: omegaconf>=2", "it ended with status 3; seven", "(does not count)"):
        assert text in shown


def test_what_does_not_count_fails_nothing(tmp_path: Path) -> None:
    driver = start(tmp_path, "3", "works", "no fault", "absent")
    assert "ok after" in driver.communicate(timeout=60)[0] and driver.returncode == 0


def test_a_driver_that_is_killed_leaves_what_it_had_found(tmp_path: Path) -> None:
    driver = start(tmp_path, "60", "hangs")
    deadline = time.monotonic() + 60
    found: dict[str, Any] = {}
    while found.get("figures") != {"half": 1} and time.monotonic() < deadline:
        time.sleep(0.1)
        found = entries(tmp_path).get("hangs", {}) if (tmp_path / "report.json").exists() else {}
    try:
        assert found["status"] == "running" and found["figures"] == {"half": 1}
    finally:
        left = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
        driver.communicate(timeout=30)
        for process in left:
            process.kill()


# ---------------------------------------------------------------------- the tests' processes
TESTS = """
import os, signal, time
def test_fine(): pass
def test_crash(): os.kill(os.getpid(), signal.SIGKILL)
def test_wrong(): assert 1 == 2
def test_hang(): time.sleep(600)
def test_lost_device(): raise RuntimeError("CUDA error: device-side assert triggered")
def test_last(): pass
"""


def test_a_test_that_crashes_or_hangs_costs_itself_only(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import a_package_that_is_not_there")
    out = tmp_path / "out"
    out.mkdir()
    files = [str(tmp_path / name) for name in ("test_some.py", "test_broken.py")]
    command = [
        sys.executable,
        "-m",
        "tools.gpu.suite",
        str(out),
        "--device",
        "cpu",
        "--limit-s",
        "5",
        "--files",
        *files,
    ]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=200, check=False)
    found = {test["test"].partition("::")[2]: test for test in recorded(out / "tests.jsonl")}
    assert {name.removeprefix("test_"): test["outcome"] for name, test in found.items()} == {
        "fine": "passed", "crash": "crashed", "wrong": "failed", "hang": "hung", "lost_device": "failed",
        "last": "passed", "": "error",
    }  # fmt: skip
    assert "in test_hang" in found["test_hang"]["message"] and "1 == 2" in found["test_wrong"]["message"]
    assert "a_package_that_is_not_there" in found[""]["message"]
    assert done.returncode == 1 and json.loads((out / "figures.json").read_text())["passed"] == 2


def test_counts_and_what_never_ran(tmp_path: Path) -> None:
    file = tmp_path / "tests.jsonl"
    rows = [
        {"collected": ["a", "b", "c"]},
        {"start": "a"},
        {"end": "a", "outcome": "passed", "seconds": 1, "message": ""},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"start": "b"}]) + '{"end": "c", "ou')
    assert counts(recorded(file)) == {"passed": 1, "lost": 1, "not run": 1}


# ------------------------------------------------------------------------------- the command
def test_without_a_cuda_device_nothing_is_run(tmp_path: Path) -> None:
    command = ["make", "-s", "gpu", f"PYTHON={sys.executable}", f"VENV={tmp_path / 'venv'}"]
    command.append(f"GPU_ARGS=--out {tmp_path / 'report.json'}")
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode != 0 and "there is no CUDA device" in done.stderr and "nothing was run" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch": None, "error": "ImportError: no"}, "PyTorch cannot be imported by py .*ImportError: no"),
        ({"transformers": None, "transformers_error": "OSError: x"}, "transformers cannot be imported .*OSError: x"),
        ({"cuda": None}, "no CUDA device: torch 2.11 is a build for CPUs"),
        ({}, "no CUDA device: PyTorch sees none"),
        ({"error": "RuntimeError: old driver"}, "no CUDA device: RuntimeError: old driver"),
    ],
)
def test_why_nothing_can_be_run(changes: dict[str, Any], words: str) -> None:
    machine = {"executable": "py", "python": "3.12", "torch": "2.11", "cuda": "13.0", "transformers": "5.16",
               "driver": None, "devices": []} | changes  # fmt: skip
    with pytest.raises(ValueError, match=words):
        raise ValueError(refusal(machine, "cuda"))
    assert refusal({**machine, "torch": "2.11", "transformers": "5.16", "devices": [1]}, "cuda") is None


def test_a_python_without_packages_says_which_it_lacks() -> None:
    code = "import json; from tools.gpu.facts import facts; print(json.dumps(facts()))"
    command = [sys.executable, "-S", "-c", code]
    told = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    found = json.loads(told.stdout)
    assert {"omegaconf>=2.4,<3", "pytest"} <= set(found["packages"]["missing_required"])
    assert "vllm" in found["packages"]["missing_optional"]
    assert "PyTorch cannot be imported" in str(refusal(found, "cuda"))


def test_the_deadlines_fit_into_nine_minutes() -> None:
    for is_tiny in (False, True):
        parts = parts_of("cuda", is_tiny=is_tiny)
        assert sum(part.least_s for part in parts) + FACTS_S <= TOTAL_S <= 535
        assert all(part.least_s <= part.most_s for part in parts)
        assert all(Path(ROOT / word).exists() for part in parts for word in part.command if word.startswith("tests/"))


@pytest.mark.nightly
def test_the_command_with_a_tiny_part_on_the_cpu(tmp_path: Path) -> None:
    """The quickstart's part, twice a few steps; the benchmark's and the tests' parts have tests of their own."""
    file = tmp_path / "report.json"
    arguments = ["--device", "cpu", "--tiny", "--only", "quickstart", "--out", str(file)]
    command = [sys.executable, "-m", "tools.gpu", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
    values = json.loads(file.read_text())
    logs = "".join(log.read_text()[-3000:] for log in (tmp_path / "report").rglob("output.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert values["machine"]["torch"] and values["machine"]["packages"]["required"]["omegaconf"]
    figures = values["parts"][0]["figures"]
    assert figures["problems"] == [] and figures["first_difference"] is None
    assert figures["compared_lines"] > 4 and figures["compared_models"] == figures["equal_models"] == 2
    assert summary(values) in done.stdout


# ------------------------------------------------------------------------------ what parts judge
FIGURES = {
    "first_difference": None,
    "compared_lines": 9,
    "compared_models": 2,
    "equal_models": 2,
    "accuracies": [0.2, 0.95],
}


@pytest.mark.parametrize(
    ("changes", "statuses", "words"),
    [
        ({}, [0, 0], ""),
        ({}, [0, -9], "a run ended with -9"),
        ({"equal_models": 1}, [0, 0], "the saved weights differ"),
        ({"first_difference": {"line": 1}}, [0, 0], "the runs differ"),
        ({"accuracies": [0.5]}, [0, 0], "accuracy stays below 0.9"),
        ({"compared_lines": 0}, [0, 0], "nothing was there to compare"),
    ],
)
def test_a_quickstart_must_learn_and_repeat(changes: dict[str, Any], statuses: list[int], words: str) -> None:
    found = quickstart.problems(FIGURES | changes, statuses, is_tiny=False)
    assert len(found) == bool(words) and all(words in line for line in found)


def test_two_runs_are_compared_line_by_line_without_the_clock(tmp_path: Path) -> None:
    row = {"actor": "explorer", "seq": 1, "step": 1, "time": 3, "rollout/time/run": 1, "eval/held/accuracy/mean@1": 0.5}
    for name, changes in (("a", {}), ("b", {"time": 4, "rollout/time/run": 2}), ("c", {"step": 2})):
        folder = tmp_path / name / "checkpoints" / "p" / "rft"
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(json.dumps(row | changes) + "\n")
    same = quickstart.compared(tmp_path / "a", tmp_path / "b")
    assert same["first_difference"] is None and same["compared_lines"] == 1 and same["accuracies"] == [0.5]
    other = quickstart.compared(tmp_path / "a", tmp_path / "c")["first_difference"]
    assert other == {"line": ["rft", "explorer", 1], "values": {"step": [1, 2]}}


def test_the_run_with_vllm_is_valid_and_judged(tmp_path: Path) -> None:
    run = vllm_step.make_run(tmp_path / "run", "bfloat16")
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    (run.folder / "plugins").mkdir()
    (run.folder / "plugins" / "own.py").write_text(run.plugin)
    plan = plan_run(run.folder / "run.yaml", RunOptions(plugin_dirs=(run.folder / "plugins",)))
    assert plan.stages[0].config.explorer.rollout_model.engine_type == "vllm"
    assert vllm_step.problems(vllm_step.figures_of(run, Ended(5, "", 1.0)), "float32") == ["the run ended with 5"]
    good = {
        "status": 0,
        "steps": [1, 2],
        "versions": [0, 1],
        "grad_norms": [1.0, 2.0],
        "logprob_difference_mean": [1e-6, 1e-5],
    }
    assert vllm_step.problems(good, "float32") == []
    assert "are not the trainer's" in vllm_step.problems(good | {"logprob_difference_mean": [1e-6, 0.1]}, "bfloat16")[0]
    assert "of versions [0, 0]" in vllm_step.problems(good | {"versions": [0, 0]}, "float32")[0]


def test_an_interrupted_command_ends_its_part_and_tells_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    command = [
        sys.executable,
        "-m",
        "tools.gpu",
        "--device",
        "cpu",
        "--tiny",
        "--only",
        "small benchmark",
        "--out",
        str(file),
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline().startswith("small benchmark: ")
    process.send_signal(signal.SIGTERM)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "interrupted after" in shown
    assert entries(tmp_path)["small benchmark"]["status"] == "running"
