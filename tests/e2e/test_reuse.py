"""What a finished run is used for again: replayed steps, other rewards, datasets.

`tests/docs/test_reading.py` has the commands and queries of the page as they are written.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from typer.testing import CliRunner

from tests.e2e.short_run import ShortRun
from tests.e2e.tiny_run import TinyRun
from trinity.cli.app import app
from trinity.launch.reuse.past_run import PastRun
from trinity.launch.reuse.rescoring import rescored
from trinity.launch.run import RunOptions, plan_run, run_plan
from trinity.launch.samples import fates_of

pytestmark = pytest.mark.slow

STEPS = 5
ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
CHANGED = (f"{ACTOR}.ppo_epochs=2", "algorithm.policy_loss_fn_args.clip_range=0.02")


def absolute(folder: Path, plugins: Path) -> TinyRun:
    """Return a run whose paths do not depend on the working directory."""
    run = TinyRun(folder)
    return run.change(
        deterministic=True,
        plugin_dirs=[str(plugins)],
        checkpoint_root_dir=str(folder / "out"),
        model__model_path=str(folder / "model"),
        buffer__explorer_input__taskset__path=str(folder / "train.jsonl"),
    )


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory, plugins: Path) -> TinyRun:
    """A finished run with rewards of all sizes, answers that end, and a checkpoint after every second step."""
    run = absolute(tmp_path_factory.mktemp("past"), plugins).change(
        buffer__total_steps=STEPS,
        buffer__explorer_input__default_reward_fn_type="share_of_digits",
        model__max_model_len=96,
        model__max_response_tokens=72,
        algorithm__repeat_times=4,
        algorithm__optimizer={"lr": 0.01},
        algorithm__kl_loss_fn="k2",
        algorithm__policy_loss_fn_args={"loss_agg_mode": "seq-mean-token-mean"},
        trainer__save_interval=2,
    )
    finish(run)
    return run


def finish(run: TinyRun) -> None:
    """Run in this process to the end."""
    (run.folder / "run.yaml").write_text(yaml.safe_dump(run.tree))
    options = RunOptions()
    assert run_plan(plan_run(run.folder / "run.yaml", options), options).error is None


def called(*words: object, status: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, words)))
    assert done.exit_code == status, done.output
    return done.output


def replayed(run: TinyRun, step: int, *words: object) -> dict[str, Any]:
    output = called("replay", run.job, "--step", step, "--json", *words)
    found: dict[str, Any] = json.loads(output[output.index("{\n") :])
    return found


def rows_of(run: TinyRun, query: str) -> list[Any]:
    with closing(sqlite3.connect(run.job / "buffer" / "experience.db")) as database:
        return database.execute(query).fetchall()


def contents(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.endswith(("-shm", "-wal"))
    }


def test_every_step_of_a_run_is_computed_again_bit_for_bit_and_nothing_of_it_changes(past: TinyRun) -> None:
    before = contents(past.job)
    expected = {2: ("the model that the run began with", [1]), 3: ("global_step_2", []), 4: ("global_step_2", [3])}
    for step, (weights, again) in expected.items():
        found = replayed(past, step)
        assert (found["weights"], found["trained_again"], found["differing"]) == (weights, again, {})
        compared = found["logged"].keys() & found["run"].keys()
        assert {"actor/final_loss", "actor/grad_norm", "actor/kl_loss", "actor/entropy_loss"} <= compared
        assert found["run"]["actor/grad_norm"] > 1e-3 and found["changed"] is None
    assert contents(past.job) == before


def test_other_settings_say_what_they_had_changed_and_the_tokens_add_up_to_it(past: TinyRun, tmp_path: Path) -> None:
    file = tmp_path / "step.parquet"
    found = replayed(past, 4, *(word for each in CHANGED for word in ("--set", each)), "-o", file)
    run, changed = found["run"], found["changed"]
    assert not found["differing"] and run["actor/pg_clipfrac"] == 0.0 < changed["actor/pg_clipfrac"]
    for name, metrics in (("run", run), ("changed", changed)):
        parts = [sample[name]["loss"] for sample in found["samples"]]
        assert sum(parts) == pytest.approx(metrics["actor/pg_loss"], abs=1e-6)
        assert len(parts) == 8 and any(parts)
    query = f"select avg((clip_reason is not null)::int) from '{file}' where is_counted and settings = 'changed'"
    assert duckdb.sql(query).fetchall()[0][0] == pytest.approx(changed["actor/pg_clipfrac"])
    wrong = f"""select count(*) from '{file}' where clip_reason is not null and not
        (clip_reason = 'above' and advantage > 0 and ratio > 1.02 or
         clip_reason = 'below' and advantage < 0 and ratio < 0.98)"""
    assert duckdb.sql(wrong).fetchall() == [(0,)]
    # Of an unclipped token of a mean over responses: ratio / (tokens of its response * responses).
    weights = f"""select max(abs(loss_weight - ratio / (number * 8))) from
        (select *, count(*) over (partition by settings, optimizer_step, uid) as number from '{file}')
        where clip_reason is null and advantage != 0"""
    assert duckdb.sql(weights).fetchall()[0][0] < 1e-6
    text = called("replay", past.job, "--step", 4, "--set", CHANGED[1])
    assert "bitwise identical" in text and "these settings have no effect in this step" in text


def test_advantages_of_groups_are_computed_again_for_other_arguments(past: TinyRun) -> None:
    same = replayed(past, 3, "--set", "algorithm.advantage_fn_args.epsilon=1e-6")
    assert same["changed"] == same["run"]
    other = replayed(past, 3, "--set", "algorithm.advantage_fn_args.epsilon=1.0")
    shrunk = abs(other["changed"]["critic/advantages/max"] / other["run"]["critic/advantages/max"])
    assert 0.0 < shrunk < 0.5 and other["changed"]["actor/grad_norm"] < other["run"]["actor/grad_norm"]
    gspo = replayed(past, 3, "--set", "algorithm.policy_loss_fn=gspo")
    assert "actor/ppo_kl_seq" in gspo["changed"].keys() - gspo["run"].keys()


def test_advantages_of_tasks_that_began_one_by_one_are_those_of_their_explore_step(
    tmp_path: Path, plugins: Path
) -> None:
    """Such tasks end in any step, whatever reading their ids begin with."""
    (plugins / "slow_for_some.py").write_text(
        "import time\n\nfrom trinity.common.rewards import REWARD_FUNCTIONS\n\n\n"
        "@REWARD_FUNCTIONS.register_module('slow_for_some')\n"
        "def slow_for_some(response, truth):\n"
        "    time.sleep(0.5 * (int(truth) % 3 == 0))\n"
        "    return {'digits': sum(map(str.isdigit, response)) / (1 + len(response))}\n"
    )
    run = absolute(tmp_path, plugins).change(
        deterministic=False,
        buffer__total_steps=4,
        buffer__explorer_input__default_reward_fn_type="slow_for_some",
        explorer__runner_per_model=4,
        synchronizer__sync_style="fully_async",
        synchronizer__max_staleness=4,
        synchronizer__update_in_flight=True,
    )
    finish(run)
    names = "select uid, explore_step from experience"
    assert any(int(uid.split("/")[0]) != step for uid, step in rows_of(run, names)), "else nothing is tested"
    for step in (2, 3):
        same = replayed(run, step, "--set", "algorithm.advantage_fn_args.epsilon=1e-6")
        assert same["changed"]["critic/advantages/max"] == pytest.approx(same["run"]["critic/advantages/max"])
        assert same["changed"]["actor/grad_norm"] == pytest.approx(same["run"]["actor/grad_norm"], rel=1e-4)


def test_what_cannot_be_replayed_is_refused_by_name(past: TinyRun, tmp_path: Path) -> None:
    assert "E1923" in called("replay", past.job, "--step", 2, "--set", "explorer.max_timeout=3", status=2)
    assert "E1923" in called("replay", past.job, "--step", 2, "--set", "algorithm.repeat_times=3", status=2)
    assert "it has the steps 1 to 5" in called("replay", past.job, "--step", 9, status=4)
    pruned = tmp_path / "pruned.db"
    with closing(sqlite3.connect(past.job / "buffer" / "experience.db")) as database:
        database.execute("vacuum into ?", [str(pruned)])
    with closing(sqlite3.connect(pruned)) as database, database:
        database.execute("delete from experience_blob where id in (select id from experience where trained_step = 3)")
    for step, status in ((3, 4), (4, 4), (5, 0)):  # step 4 is reached over step 3
        output = called("replay", past.job, "--step", step, "--url", f"sqlite:///{pruned}", status=status)
        assert ("E4071" in output and "keep_payloads" in output) == bool(status), output


def test_a_step_of_the_quickstart_is_computed_again_bit_for_bit(finished: ShortRun) -> None:
    for stage in ("rft", "sft_warmup"):
        output = called("replay", finished.job(stage), "--step", 2)
        assert "bitwise identical" in output, output


def test_the_saved_configuration_is_the_run(past: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, before = past.job / "config.yaml", contents(past.job)
    called("run", "--config", file)
    assert contents(past.job) == before and not [each for each in caplog.records if each.levelname == "WARNING"]
    called("run", "--config", file, "--set", f"checkpoint_root_dir={tmp_path}")
    again = tmp_path / "tiny" / "run"
    assert weights(again) == weights(past.job) and trained(again) == trained(past.job)


def weights(job: Path) -> dict[str, str]:
    return {name: value for name, value in contents(job).items() if name.endswith(".safetensors")}


def retrained(past: TinyRun, folder: Path, name: str) -> TinyRun:
    """Return the finished run that trains from a store, from the same model with the same settings."""
    run = TinyRun(folder)
    run.tree = json.loads(json.dumps(past.tree)) | {"mode": "train", "name": name}
    run.tree["buffer"] = {"train_batch_size": 8}
    buffer = {"name": "experience_buffer", "storage_type": "sql", "path": f"sqlite:///{folder}/store.db"}
    run.change(checkpoint_root_dir=str(folder / "out"), buffer__trainer_input__experience_buffer=buffer)
    for section in ("explorer", "synchronizer"):
        del run.tree[section]
    finish(run)
    return run


def trained(job: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    names = ("actor/", "critic/", "response_length/")
    return [{k: v for k, v in line.items() if k.startswith(names)} for line in lines if line["actor"] == "trainer"]


def test_a_run_straight_from_the_stored_rollouts_learns_what_the_first_one_did(past: TinyRun, tmp_path: Path) -> None:
    before = contents(past.job)
    words = ("rescore", past.job, "-o", tmp_path / "store.db", "--for", "tiny/again")
    output = called(*words)
    assert "the reward of 0 changed" in output and "name: again" in output and contents(past.job) == before
    assert "E3606" in called(*words, status=3)
    again = retrained(past, tmp_path, "again")
    assert trained(again.folder / "out" / "tiny" / "again") == trained(past.job)
    (first,), (second,) = (fates_of(job).values() for job in (past.job, again.folder / "out" / "tiny" / "again"))
    assert second.waiting == 0 and second.ended == {"trained": second.issued} == {"trained": first.ended["trained"]}


def test_another_reward_gives_other_advantages_in_a_database_of_its_own(
    past: TinyRun, plugins: Path, tmp_path: Path
) -> None:
    (plugins / "brevity.py").write_text(
        "from trinity.common.rewards import REWARD_FUNCTIONS\n\n\n"
        "@REWARD_FUNCTIONS.register_module('brevity')\n"
        "def brevity(response, truth, cost=1.0):\n"
        "    assert truth.isdigit()\n"
        "    return {'short': -cost * len(response)}\n"
    )
    place = tmp_path / "brevity.db"
    output = called("rescore", past.job, "-o", place, "--reward", "brevity", "--set",
                    "buffer.explorer_input.taskset.reward_fn_args.cost=0.5")  # fmt: skip
    number = rows_of(past, "select count(*) from experience")[0][0]
    assert f"{number} rollouts, for the run tiny/run-rescored" in output
    file = tmp_path / "brevity.jsonl"
    called("export", "experience", "--url", f"sqlite:///{place}", "--to", "jsonl", "-o", file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    old = dict(rows_of(past, "select uid, reward from experience"))
    assert len(lines) == number and {line["state"] for line in lines} == {"ready"}
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(line["task_id"], []).append(line)
        assert line["reward"] == -0.5 * len(line["response_text"]) and line["metrics"] == {"short": line["reward"]}
        assert line["info"]["rescored"]["reward"] == old[line["uid"]] and line["model_version"] is None
    for group in groups.values():
        mean = sum(line["reward"] for line in group) / len(group)
        signs = [(line["advantages"][0] > 0, line["reward"] > mean) for line in group if line["reward"] != mean]
        assert all(is_up == is_better for is_up, is_better in signs)


def test_operators_that_need_the_experiences_alone_are_applied_again(
    past: TinyRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    tree = yaml.safe_load((past.job / "config.yaml").read_text())
    terms = [{"stats_key": "variety", "op_type": "ADD", "weight": 100.0}]
    tree["data_processor"]["experience_pipeline"]["operators"] = [
        {"name": "reward_shaping_mapper", "args": {"reward_shaping_configs": terms}},
        {"name": "pass_rate_calculator", "args": {}},
        {"name": "reward_filter", "args": {"threshold": 12.0}},
    ]
    (job / "config.yaml").write_text(yaml.safe_dump(tree))
    url = f"sqlite:///{past.job}/buffer/experience.db"
    with caplog.at_level("WARNING", logger="trinity.launch"):
        done = rescored(PastRun.of(job, url=url), f"sqlite:///{tmp_path}/operated.db")
    told = "the operators pass_rate_calculator are not applied again"
    assert told in caplog.text and "then reward_shaping_mapper, then reward_filter" in caplog.text
    with closing(sqlite3.connect(tmp_path / "operated.db")) as database:
        found = dict(database.execute("select uid, reward from experience"))
    kept = {}
    for uid, reward, text in rows_of(past, "select uid, reward, response_text from experience"):
        shaped = reward + 100.0 * 0.01 * len(set(text))
        if shaped >= 12.0:
            kept[uid] = shaped
    assert found == pytest.approx(kept) and 0 < len(kept) < len(rows_of(past, "select uid from experience"))
    left = len(rows_of(past, "select uid from experience")) - len(kept)
    assert dict(+done.filtered) == {"reward_filter": left}


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_a_dataset_of_the_stored_rollouts_holds_the_best_of_each_task_and_trains(
    past: TinyRun, plugins: Path, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / f"{kind}.jsonl"
    output = called("export", kind, past.job, "-o", file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert f"{len(lines)} rows" in output and len(lines) >= 2
    texts = [json.dumps({name: value for name, value in line.items() if name != "provenance"}) for line in lines]
    assert len(set(texts)) == len(texts)
    known = {row[0]: row[1:] for row in rows_of(past, "select uid, task_id, reward, response_text from experience")}
    ended = [row[0] for row in rows_of(past, "select uid from experience")]
    for line in lines:
        best = line["provenance"] if kind == "sft" else line["provenance"]["chosen"]
        answer = line["messages"][-1] if kind == "sft" else line["chosen"][0]
        task, reward, text = known[best["uid"]]
        assert answer == {"role": "assistant", "content": text} and best["reward"] == reward
        others = [known[uid][1] for uid in ended if known[uid][0] == task]
        assert best["reward"] <= max(others)
        if kind == "dpo":
            assert line["provenance"]["rejected"]["reward"] < reward and line["messages"][-1]["role"] == "user"
    run = absolute(tmp_path, plugins)
    run.tree["algorithm"], run.tree["buffer"] = {"algorithm_type": kind, "optimizer": {"lr": 1.0e-3}}, {}
    for section in ("explorer", "synchronizer"):
        del run.tree[section]
    buffer = {"path": str(file), "format": {"prompt_type": "messages", "messages_key": "messages"}}
    run.change(mode="train", buffer__train_batch_size=2, buffer__trainer_input__experience_buffer=buffer)
    run.change(trainer__total_steps=2)
    finish(run)
    assert [line["actor/grad_norm"] > 0 for line in run.lines("trainer")] == [True, True]
