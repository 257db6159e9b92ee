"""The facts of a process are what is in force in it, and a deterministic run has those of the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from trinity.common.errors import CheckpointError, EnvironmentProblem
from trinity.launch.facts import check_same_facts, compute_as_the_command, process_facts

# Products of its own, by other sizes than those that the facts are made of.
SHOW = """
import hashlib, json, os, sys
import torch

if sys.argv[1] == "too late":
    torch.mm(torch.ones(2, 3), torch.ones(3, 2))
    os.environ["MKL_CBWR"] = "AUTO"
bits = hashlib.sha256()
for dtype in (torch.float32, torch.float64):
    for rows, inputs, outputs in ((1, 16, 48), (1, 128, 17), (2, 33, 8), (7, 64, 48), (33, 128, 8), (64, 512, 128)):
        x = torch.linspace(-1, 1, rows * inputs, dtype=dtype).sin().view(rows, inputs)
        weight = torch.linspace(-2, 1, outputs * inputs, dtype=dtype).cos().view(outputs, inputs)
        for result in (x @ weight.t(), x @ weight.t().contiguous(), torch.addmm(weight.sum(1), x, weight.t())):
            bits.update(result.numpy().tobytes())
from trinity.launch.facts import process_facts
print(json.dumps([bits.hexdigest(), process_facts()]))
"""


def test_processes_whose_bits_differ_have_other_facts_and_what_came_too_late_is_none() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MKL_")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    cases = {"unset": {}, "too late": {}, "auto": {"MKL_CBWR": "AUTO"}, "compatible": {"MKL_CBWR": "COMPATIBLE"}}
    started = {
        name: subprocess.Popen([sys.executable, "-c", SHOW, name], env=environment | mode, stdout=subprocess.PIPE)
        for name, mode in cases.items()
    }
    said = {name: json.loads(process.communicate(timeout=240)[0]) for name, process in started.items()}
    assert said["too late"] == said["unset"]
    for one, (bits, facts) in said.items():
        for other, (other_bits, other_facts) in said.items():
            assert bits == other_bits or facts["known_results"] != other_facts["known_results"], (one, other)
    if torch.backends.mkl.is_available():
        modes = [facts["mkl_cbwr"] for _, facts in said.values()]
        assert modes == ["OFF", "OFF", "AUTO", "COMPATIBLE"]
        assert said["compatible"][0] != said["auto"][0], "the products tell these apart on every processor"


def test_what_was_changed_in_torch_is_refused_and_threads_are_taken_over() -> None:
    torch.set_num_threads(3)
    compute_as_the_command()
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])
    for change, restore in (
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        (lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)),
    ):
        change()
        try:
            with pytest.raises(
                EnvironmentProblem, match="E3303.*known_results '.*leave torch's own settings as"
            ) as error:
                compute_as_the_command()
        finally:
            restore()
        assert "mkl_cbwr" not in str(error.value)
    compute_as_the_command()


def test_without_a_python_to_compare_with_a_deterministic_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_STACKSIZE", "8M")  # an environment that was not asked about before
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EnvironmentProblem, match="E3304.*'/nowhere/python' did not run: .*No such file.*`trinity run`"):
        compute_as_the_command()
    monkeypatch.undo()
    monkeypatch.setenv("OMP_STACKSIZE", "8M")
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(EnvironmentProblem, match="(?s)E3304.*exit code 1, "):
        compute_as_the_command()


def test_known_results_are_the_same_again() -> None:
    assert process_facts() == process_facts()


def test_other_facts_are_refused_when_deterministic_and_only_logged_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CheckpointError, match="E7030.*threads 1 -> 2"):
        check_same_facts({"threads": 1}, {"threads": 2, "new": 3}, deterministic=True)
    check_same_facts({"threads": 1}, {"threads": 2, "new": 3}, deterministic=False)
    assert "threads 1 -> 2" in caplog.text and "new" not in caplog.text
