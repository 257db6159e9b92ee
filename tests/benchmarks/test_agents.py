"""The agents of the benchmark, shortly: both ways of asking give the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import trinity
from tests.e2e.test_exact_tokens import Call, Watch
from tests.loaded_plugins import forget_plugins
from trinity.summary.facts import latest_hf_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["calculator", "guesser"])
@pytest.mark.parametrize(("imitated", "steps"), [(15, 1), pytest.param(60, 2, marks=pytest.mark.nightly)])
def test_the_plain_client_gives_the_tokens_of_the_workflow_api(
    name: str,
    imitated: int,
    steps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[[str], ModuleType],
) -> None:
    """A few steps of imitation are enough for calls of the tool, and for guesses that are answered."""
    tasks = script("agent_tasks")
    monkeypatch.setattr(tasks, "NUM_DEMONSTRATIONS", 128 * imitated)
    tasks.prepare(tmp_path, name, seed=42)
    imitation = tasks.imitation(tmp_path, name, seed=42)
    imitation["trainer"]["total_steps"] = imitated
    imitation["algorithm"]["optimizer"]["lr_warmup_steps"] = 2
    trinity.run(imitation)
    start = latest_hf_model(tmp_path / "checkpoints" / "agents" / f"{name}_sft")
    found: list[tuple[list[Call], list[Call]]] = []
    for way in ("workflow", "client"):
        forget_plugins()
        tree = tasks.reinforcement(tmp_path, name, way, start=start, seed=42, steps=steps)
        tree["buffer"]["batch_size"] = tree["algorithm"]["repeat_times"] = 4
        del tree["buffer"]["explorer_input"]["eval_tasksets"]
        with pytest.MonkeyPatch.context() as patch:
            watch = Watch(patch)
            report = trinity.run(tree)
        assert report.stages[0].training_step == steps
        found.append((sorted(watch.sampled), watch.trained_calls()))
    assert found[0][0] == found[1][0], "sampled"
    assert found[0][1] == found[1][1], "trained"
    assert len(found[0][1]) > steps * 4 * 4, "more calls than attempts"
    tool = tasks.VOCABULARY.index(tasks.END), tasks.VOCABULARY.index(">")
    assert any(set(tool) <= set(prompt) for prompt, *_ in found[0][1]) == (name == "calculator"), "a tool's answer"


def test_the_table_says_whether_both_ways_are_the_same(script: Callable[[str], ModuleType]) -> None:
    ways = {"before": 0.2, "after": 0.9, "seconds": 3.0}
    results = {"calculator": {"workflow": ways | {"weights": "a"}, "client": ways | {"weights": "b"}}}
    lines = script("agents").table(results).splitlines()
    assert lines[2] == "| calculator | workflow | 0.200 | 0.900 | **no** | 3 |"
