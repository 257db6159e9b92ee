"""Stored rollouts of other kinds used again: of several workers, of own workflows, filtered, on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.e2e.test_reuse import absolute, called, finish, replayed, rows_of, trained
from tests.e2e.tiny_run import TinyRun
from trinity.buffer.store import ExperienceStore
from trinity.launch import explorer_liveness
from trinity.launch.run import RunOptions, plan_run
from trinity.launch.samples import fates_of
from trinity.utils.device import has_bf16_units

pytestmark = pytest.mark.slow

OWN_RUNS = '''
from trinity.common.workflows import WORKFLOWS, SimpleWorkflow, Workflow


@WORKFLOWS.register_module("two_turns")
class TwoTurns(Workflow):
    """A conversation of two turns as one experience, rewarded by its length."""

    def run(self):
        messages = [{"role": "user", "content": self.task.raw_task["question"]}]
        for turn in range(2):
            (answer,) = self.model.chat(messages, n=1)
            messages.append({"role": "assistant", "content": answer.response_text})
            if not turn:
                messages.append({"role": "user", "content": "?"})
        made = self.model.convert_messages_to_experience(messages)
        made.reward = float(len(made.response_text))
        return [made]


@WORKFLOWS.register_module("doubled")
class Doubled(SimpleWorkflow):
    """One chat, whose reward is twice that of the reward function."""

    def run(self):
        scored = super().run()
        for each in scored:
            each.reward *= 2
        return scored
'''
REWARDED = {"buffer__explorer_input__default_reward_fn_type": "share_of_digits", "algorithm__optimizer": {"lr": 0.01}}


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory, plugins: Path) -> TinyRun:
    """A finished run of two trainer workers."""
    run = absolute(tmp_path_factory.mktemp("workers"), plugins)
    run.change(**REWARDED, trainer__num_workers=2, deterministic=False)
    finish(run)
    return run


def waiting(past: TinyRun, folder: Path, name: str, url: str) -> TinyRun:
    """Return a run that is to train from a database."""
    run = TinyRun(folder)
    run.tree = json.loads(json.dumps(past.tree)) | {"mode": "train", "name": name}
    run.tree["buffer"] = {"train_batch_size": 2}
    buffer = {"name": "experience_buffer", "storage_type": "sql", "path": url}
    run.change(checkpoint_root_dir=str(folder / "out"), buffer__trainer_input__experience_buffer=buffer)
    for section in ("explorer", "synchronizer"):
        del run.tree[section]
    return run.change(trainer__num_workers=1, trainer__save_interval=0)


def test_a_step_of_two_workers_is_computed_again_by_one_up_to_the_order_of_sums(past: TinyRun) -> None:
    found = replayed(past, 2)
    assert found["weights"] == "global_step_1" and found["run"]["actor/grad_norm"] > 1e-4
    assert {"actor/pg_loss", "actor/grad_norm"} <= found["logged"].keys() & found["run"].keys()
    rounding = 2e-3 if has_bf16_units(torch.device("cpu")) else 1e-5
    for logged, computed in found["differing"].values():
        assert computed == pytest.approx(logged, rel=rounding, abs=rounding / 10)
    assert "the run had 2 trainer workers" in called("replay", past.job, "--step", 2)


def test_a_filter_of_a_rescore_is_that_of_what_is_trained(past: TinyRun, tmp_path: Path) -> None:
    rewards = sorted(row[0] for row in rows_of(past, "select reward from experience"))
    least = rewards[len(rewards) // 2]
    operators = f"[{{name: reward_filter, args: {{threshold: {least}}}}}]"
    place = tmp_path / "store.db"
    output = called("rescore", past.job, "-o", place, "--for", "tiny/kept", "--set",
                    f"data_processor.experience_pipeline.operators={operators}")  # fmt: skip
    assert "are left out by the operator reward_filter" in output
    run = waiting(past, tmp_path, "kept", f"sqlite:///{place}")
    finish(run)
    (fate,) = fates_of(run.job.parent / "kept").values()
    assert fate.ended == {"trained": sum(each >= least for each in rewards) // 2 * 2}


def test_the_database_of_another_run_is_named_with_the_way_to_train_on_it(
    past: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{past.job}/buffer/experience.db"
    run = waiting(past, tmp_path, "direct", url)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run.tree))
    (stage,) = plan_run(tmp_path / "run.yaml", RunOptions()).stages
    monkeypatch.setattr(explorer_liveness, "ALONE_S", -1.0)

    async def watched(store: ExperienceStore) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(explorer_liveness.watch_explorers(stage.config, store), 0.5)

    with ExperienceStore(url) as store, caplog.at_level("WARNING", logger="trinity.launch"):
        asyncio.run(watched(store))
    assert "has rollouts of tiny/run, and a run trains on its own" in caplog.text
    assert "trinity rescore JOB --for tiny/direct -o DATABASE" in caplog.text


def test_a_run_trains_on_rollouts_that_were_written_to_postgresql(past: TinyRun, tmp_path: Path) -> None:
    from tests.postgresql import shared

    found: list[Any] = []
    for name, url in (("server", shared().database()), ("file", f"sqlite:///{tmp_path}/store.db")):
        called("rescore", past.job, "-o", url, "--for", f"tiny/{name}")
        (tmp_path / name).mkdir()
        run = waiting(past, tmp_path / name, name, url)
        finish(run)
        found.append(trained(run.job.parent / name))
    assert found[0] == found[1] and len(found[0]) == 4


@pytest.mark.parametrize("workflow", ["two_turns", "doubled"])
def test_rewards_that_no_response_says_need_a_reward_function(plugins: Path, tmp_path: Path, workflow: str) -> None:
    (plugins / "own_runs.py").write_text(OWN_RUNS)
    run = absolute(tmp_path, plugins).change(**REWARDED, buffer__explorer_input__default_workflow_type=workflow)
    if workflow == "two_turns":
        del run.tree["buffer"]["explorer_input"]["default_reward_fn_type"]
    finish(run)
    refused = called("rescore", run.job, "-o", tmp_path / "refused.db", status=2)
    assert "E1925" in refused and "with --reward" in refused
    place = tmp_path / "scored.db"
    output = called("rescore", run.job, "-o", place, "--reward", "share_of_digits", "--for", "tiny/again")
    assert "8 rollouts" in output
    file = tmp_path / "scored.jsonl"
    called("export", "experience", "--url", f"sqlite:///{place}", "--to", "jsonl", "-o", file)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        old = row["info"]["rescored"]["reward"]
        expected = len(row["response_text"]) if workflow == "two_turns" else 2 * row["reward"]
        assert old == pytest.approx(expected)
