"""`trinity explain METRIC`: every metric has unit, step axis and meaning in both languages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.metric_names import is_told, untold
from trinity.cli.app import app
from trinity.explain.metrics import WORDS, explained_metric, find, groups, metric_lines
from trinity.monitor.verl_names import SAME

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = "rollout|eval|bench|experience_pipeline|fate|sample|actor|critic|training|rollout_corr|time|perf|timing_s"
METRICS = [metric for group in groups() for metric in group.metrics]


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, ["explain", *words])


def test_every_entry_is_whole_and_of_one_name() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names)) > 150
    assert all(metric.steps in WORDS and metric.meaning.en and metric.meaning.zh for metric in METRICS)
    assert all(re.search(r"[\u4e00-\u9fff]", metric.meaning.zh) for metric in METRICS)
    assert all(metric.meaning.en.endswith((".", ")")) for metric in METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_an_entry_is_found_by_its_own_name(metric) -> None:
    assert find(metric.name) is metric
    if metric.spread:
        assert find(f"{metric.name}/mean") is metric or "<" in metric.name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rollout/reward/mean", "rollout/reward"),
        ("rollout/accuracy/max", "rollout/<metric>"),
        ("rollout/easy/accuracy/max", "rollout/<metric>"),
        ("rollout/easy/finished_task_count", "rollout/finished_task_count"),
        ("eval/test/failed_run_count", "rollout/failed_run_count"),
        ("eval/test/time/run_execution/mean", "rollout/time/run_execution"),
        ("bench/test/right/best@4", "eval/<taskset>/<metric>/best@<k>"),
        ("rollout/reward/p90", "rollout/reward"),
        ("eval/test/right/mean@2/p50", "eval/<taskset>/<metric>/mean@<n>"),
        ("bench/model_version", "eval/model_version"),
        ("actor/usual/pg_clipfrac", "actor/<part>/<metric>"),
        ("actor/opmd_loss", "actor/<function>_loss"),
        ("actor/my_number", "actor/<metric>"),
        ("perf/engine/3/load", "perf/engine/<number>/<figure>"),
        ("experience_pipeline/group_advantages/reward_std/min", "experience_pipeline/group_advantages/reward_std"),
        ("sample/expert_overlong_count", "sample/expert_<count>"),
        ("timing_s/gen", "time/explore_step"),
        ("rollout/reward/p10", "rollout/reward"),
        ("rollout/easy/accuracy/std", "rollout/<metric>"),
        ("response_length/p90", "response_length"),
        ("bench/test/right/mean@4/p50", "eval/<taskset>/<metric>/mean@<n>"),
        ("actor/loss", "actor/final_loss"),
    ],
)
def test_a_written_name_is_found(name: str, expected: str) -> None:
    found = find(name)
    assert found is not None and found.name == expected


def test_the_command_says_unit_axis_formula_and_other_names() -> None:
    done = asked("actor/kl_loss")
    assert done.exit_code == 0
    assert done.stdout.startswith("actor/kl_loss: Divergence from the reference model")
    assert "unit: nats/token" in done.stdout and "step axis: training steps" in done.stdout
    assert "in TRL: kl" in done.stdout and "formula: " in done.stdout
    chinese = json.loads(asked("actor/ppo_kl", "--json", "--language", "zh").stdout)
    assert chinese["description"].startswith("策略") and chinese["healthy"] and chinese["steps"] == "训练步"
    assert json.loads(asked("bench/test/right/mean@2", "--json").stdout)["steps"] == "training steps"


def test_a_name_that_nobody_writes_is_refused_or_told_with_those_near_to_it() -> None:
    done = asked("actr/kl_loss")
    assert done.exit_code == 2 and "[E1015]" in done.output and "actor/kl_loss" in done.output
    lines = "\n".join(metric_lines(explained_metric("actor/kl_los")))
    assert "near to it: actor/kl_loss" in lines


def test_names_in_verl_are_those_that_a_run_writes() -> None:
    for ours, theirs in SAME.items():
        assert explained_metric(ours)["name_in_verl"] == theirs


def test_every_metric_that_the_source_names_has_an_entry() -> None:
    """Those that are written as a whole; runs of the tests show the rest."""
    found: set[str] = set()
    for file in sorted((ROOT / "trinity").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        found |= set(re.findall(rf'"((?:{FAMILIES})/[\w/]*\w)"', text))
    assert len(found) > 60
    known = {name for name in found if is_told(name) or any(m.name.startswith(f"{name}/") for m in METRICS)}
    beginnings = {name for name in found if name.endswith("_")}
    assert found - known - beginnings - {"time/step", "time/advantage"} == set()  # of other tools; a part of a name


def test_a_metric_without_an_entry_is_seen(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"actor": "trainer", "actor/new_number": 1, "actor/lr": 1}\n{"torn')
    assert untold([tmp_path / "metrics.jsonl"]) == ["actor/new_number"]
    assert untold([tmp_path / "metrics.jsonl"], of_plugins=True) == []
