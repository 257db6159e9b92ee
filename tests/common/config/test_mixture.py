"""Batches with rows of an expert, auxiliary buffers, and the sample strategies: derived values and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trinity.catalogue import BUILT_IN
from trinity.common.config import Config, Finding, examine

# The block of the configuration guide, as it is written there.
GUIDE = """
project: p
name: n
model: {model_path: /models/tiny, max_model_len: 128}
algorithm:
  algorithm_type: mix
  repeat_times: 4
buffer:
  batch_size: 4
  explorer_input:
    taskset: {name: train, path: data.jsonl, default_workflow_type: math_workflow}
  trainer_input:
    experience_buffer:
      name: countdown_buffer
      storage_type: queue
      path: sqlite:///countdown_buffer.db
      max_read_timeout: 1800
    auxiliary_buffers:
      sft_dataset:
        name: sft_dataset
        storage_type: file
        path: ${oc.env:TRINITY_SFT_DATASET_PATH}
        format:
          prompt_key: 'question'
          response_key: 'answer'
"""
ARGS = "algorithm.policy_loss_fn_args"
RATIO = "algorithm.sample_strategy_args.expert_data_ratio"
AUXILIARY = "buffer.trainer_input.auxiliary_buffers"
NAME = "algorithm.sample_strategy_args.sft_dataset_name"
SYNC = "synchronizer.trainer_sync_interval"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_SFT_DATASET_PATH", "/data/sft.jsonl")


def _examine(folder: Path, *overrides: str, text: str = GUIDE) -> tuple[Config, list[Finding]]:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    plan, problems = examine(path, overrides, catalogue=BUILT_IN, cwd=folder)
    return plan.stages[0].config, problems


def _problems(folder: Path, *overrides: str, text: str = GUIDE) -> list[tuple[str, str]]:
    return [(p.code, p.key) for p in _examine(folder, *overrides, text=text)[1]]


def test_the_block_of_the_guide_works_as_it_is_written(tmp_path: Path) -> None:
    config, problems = _examine(tmp_path)
    assert problems == []
    buffer = config.buffer.trainer_input.auxiliary_buffers["sft_dataset"]
    assert buffer.path == "/data/sft.jsonl" and buffer.storage_type == "file" and buffer.schema_type == "sft"
    assert buffer.format.prompt_type == "plaintext" and buffer.batch_size == 16
    assert config.buffer.train_batch_size == 32
    assert config.algorithm.sample_strategy == "mix" and config.algorithm.kl_loss_fn == "k2"
    assert config.algorithm.policy_loss_fn_args == {
        "mu": 0.1, "clip_range": 0.2, "clip_range_low": None, "clip_range_high": None, "use_dynamic_bsz": True,
        "ppo_mini_batch_size": 32, "ppo_micro_batch_size_per_gpu": 4, "ngpus_trainer": 1,
        "train_batch_size_usual": 16, "train_batch_size_expert": 16, "loss_agg_mode": "token-mean",
        "sft_loss_agg_mode": None, "grpo_loss_agg_mode": None,
    }  # fmt: skip


@pytest.mark.difference("`mix`: the auxiliary buffer")
def test_a_short_block_is_filled_in(tmp_path: Path) -> None:
    tree = yaml.safe_load(GUIDE)
    tree["buffer"]["trainer_input"] = {"auxiliary_buffers": {"experts": {"path": "x.jsonl"}}}
    tree["algorithm"]["sample_strategy_args"] = {"sft_dataset_name": "experts", "expert_data_ratio": 0.2}
    config, problems = _examine(tmp_path, text=yaml.safe_dump(tree))
    assert problems == []
    buffer = config.buffer.trainer_input.auxiliary_buffers["experts"]
    assert (buffer.name, buffer.storage_type, config.buffer.train_batch_size) == ("experts", "file", 20)


PUBLISHED = (
    "buffer.train_batch_size=20", f"{RATIO}=0.2", "trainer.use_dynamic_bsz=true", f"{ARGS}.use_dynamic_bsz=true",
    f"{ARGS}.ppo_mini_batch_size=20", f"{ARGS}.ppo_micro_batch_size_per_gpu=4", f"{ARGS}.ngpus_trainer=1",
    f"{ARGS}.train_batch_size_usual=16", f"{ARGS}.train_batch_size_expert=4",
    f"{AUXILIARY}.sft_dataset.schema_type=sft",
)  # fmt: skip


def test_published_numbers_that_agree_are_accepted(tmp_path: Path) -> None:
    assert _problems(tmp_path, *PUBLISHED) == []
    assert _problems(tmp_path, *PUBLISHED, "algorithm.algorithm_type=mix_chord", f"{ARGS}.mu_peak=0.5") == []


@pytest.mark.difference("`mix`, `mix_chord`: the two sides")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("use_dynamic_bsz", "false", "False, but it follows from trainer.use_dynamic_bsz: True"),
        ("ppo_mini_batch_size", "16", "16, but it follows from buffer.train_batch_size: 20"),
        ("ppo_micro_batch_size_per_gpu", "2", "actor.ppo_micro_batch_size_per_gpu: 4"),
        ("ngpus_trainer", "4", "4, but it follows from the number of trainer workers: 1"),
        ("train_batch_size_usual", "20", "buffer.train_batch_size (20) less the 4 expert rows: 16"),
        ("train_batch_size_expert", "5", "5, but it follows from expert_data_ratio of buffer.train_batch_size (20)"),
        ("ngpus_trainer", "true", "True, but it follows"),
    ],
)
def test_published_numbers_that_disagree_are_shown_with_the_true_ones(
    tmp_path: Path, name: str, value: str, message: str
) -> None:
    (problem,) = _examine(tmp_path, *PUBLISHED, f"{ARGS}.{name}={value}")[1]
    code = "E1841" if name.startswith("train_batch_size") else "W1841"
    assert (problem.code, problem.key) == (code, f"{ARGS}.{name}") and message in problem.message


@pytest.mark.parametrize(
    ("machine", "workers"),
    [
        (("trainer.num_workers=4",), 4),
        (("cluster.gpu_per_node=8", "explorer.rollout_model.engine_num=2"), 6),
        (("cluster.gpu_per_node=1",), 1),
        (("cluster.gpu_per_node=2", "cluster.node_num=4", "explorer.rollout_model.engine_num=4"), 4),
    ],
)
def test_the_number_of_gpus_that_the_loss_is_told_is_the_trainers(
    tmp_path: Path, machine: tuple[str, ...], workers: int
) -> None:
    others = tuple(each for each in PUBLISHED if "ngpus_trainer" not in each)
    config, problems = _examine(tmp_path, *others, *machine)
    assert not [p.render() for p in problems if p.is_error]
    assert config.algorithm.policy_loss_fn_args["ngpus_trainer"] == workers
    assert _problems(tmp_path, *others, *machine, f"{ARGS}.ngpus_trainer={workers}") == []
    config, wrong = _examine(tmp_path, *others, *machine, f"{ARGS}.ngpus_trainer={workers + 1}")
    assert config.algorithm.policy_loss_fn_args["ngpus_trainer"] == workers
    (problem,) = [p for p in wrong if p.key == f"{ARGS}.ngpus_trainer"]
    assert problem.code == "W1841" and f"the number of trainer workers: {workers}" in problem.message


@pytest.mark.difference("`mix`: `expert_data_ratio` of 1")
@pytest.mark.parametrize(
    ("overrides", "code", "key"),
    [
        ((f"{RATIO}=1.0",), "E1844", RATIO),
        ((f"{RATIO}=half",), "E1844", RATIO),
        ((f"{RATIO}=0.95", "buffer.train_batch_size=16"), "E1844", RATIO),
        ((f"{NAME}=sft_datset",), "E1843", NAME),
        (("algorithm.sample_strategy=default",), "E1842", "algorithm.policy_loss_fn"),
        (("algorithm.sample_strategy=default",), "E1842", "algorithm.entropy_loss_fn"),
        (("algorithm.policy_loss_fn=ppo",), "E1842", "algorithm.sample_strategy"),
        (("algorithm.advantage_fn=ppo",), "E1842", "algorithm.advantage_fn"),
        ((f"{AUXILIARY}.sft_dataset.path=null",), "E1826", f"{AUXILIARY}.sft_dataset.path"),
        ((f"{AUXILIARY}.sft_dataset.schema_type=dpo",), "E1816", f"{AUXILIARY}.sft_dataset.schema_type"),
        ((f"{AUXILIARY}.sft_dataset.capacity=5",), "W1902", f"{AUXILIARY}.sft_dataset.capacity"),
        ((f"{AUXILIARY}.sft_dataset.name=train",), "E1305", f"{AUXILIARY}.sft_dataset.name"),
        ((f"{AUXILIARY}.sft_dataset.data_selector.selector_type=shufle",), "E1701",
         f"{AUXILIARY}.sft_dataset.data_selector.selector_type"),
        ((f"{AUXILIARY}.other.path=other.jsonl",), "W1902", f"{AUXILIARY}.other"),
        ((f"{RATIO}=0",), "W1902", f"{AUXILIARY}.sft_dataset"),
        (("buffer.train_batch_size=16",), "E1824", "buffer.train_batch_size"),
        (("algorithm.advantage_fn=rloo", "buffer.train_batch_size=12", f"{SYNC}=2"), "E1830",
         "buffer.train_batch_size"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(tmp_path: Path, overrides: tuple[str, ...], code: str, key: str) -> None:
    assert (code, key) in _problems(tmp_path, *overrides)


EXPERT = f"{AUXILIARY}.sft_dataset"
SQL = (f"{EXPERT}.storage_type=sql", f"{EXPERT}.path=experts.db")
QUEUE = (f"{EXPERT}.storage_type=queue", f"{EXPERT}.path=sqlite:///experts.db", f"{EXPERT}.format=null")
PLAIN_SQL = (*SQL, f"{EXPERT}.format=null")


def test_a_database_holds_experiences_unless_columns_are_named(tmp_path: Path) -> None:
    def read(*overrides: str) -> tuple[Any, ...]:
        config, problems = _examine(tmp_path, *overrides)
        assert problems == []
        found = config.buffer.trainer_input.auxiliary_buffers["sft_dataset"]
        assert found.path == f"sqlite:///{tmp_path}/experts.db" and found.batch_size == 16
        return found.schema_type, found.format.prompt_type, found.format.messages_key

    assert read(*SQL) == ("sft", "plaintext", "message"), "the file names prompt_key and response_key"
    assert read(*PLAIN_SQL) == ("experience", None, "message")
    assert read(*PLAIN_SQL, f"{EXPERT}.schema_type=sft") == ("sft", "messages", "message_list")
    assert read(*PLAIN_SQL, f"{EXPERT}.schema_type=experience")[0] == "experience"
    assert read(*QUEUE) == read(*QUEUE, f"{EXPERT}.max_read_timeout=60") == ("experience", None, "message")
    assert read(*PLAIN_SQL, f"{EXPERT}.name=countdown_buffer")[0] == "experience", "as the other run named it"


@pytest.mark.parametrize(
    ("overrides", "code", "key", "message"),
    [
        ((*SQL, f"{EXPERT}.path=null"), "E1826", "path", "path` is missing: an auxiliary buffer is a database (sql)"),
        ((*SQL, f"{EXPERT}.path='sqlite:///:memory:'"), "E1829", "path", "path` is no database"),
        ((*QUEUE, f"{EXPERT}.path=experts.jsonl"), "E1829", "path", "path` is no database"),
        (
            (*QUEUE, f"{EXPERT}.schema_type=sft"),
            "E1816",
            "schema_type",
            "is experience with storage_type queue, got sft",
        ),
        (
            (*PLAIN_SQL, f"{EXPERT}.schema_type=dpo"),
            "E1816",
            "schema_type",
            "is experience or sft with storage_type sql",
        ),
        ((*SQL, f"{EXPERT}.schema_type=experience"), "E1834", "format.prompt_key", "prompt_key` has no effect"),
        ((*SQL, f"{EXPERT}.split=test"), "W1902", "split", "has no effect with storage_type sql"),
        ((*QUEUE, f"{EXPERT}.data_selector.selector_type=random"), "W1902", "data_selector", "with storage_type queue"),
        ((f"{EXPERT}.max_read_timeout=5",), "W1902", "max_read_timeout", "has no effect with storage_type file"),
        (
            (*PLAIN_SQL, f"{EXPERT}.path=countdown_buffer.db", f"{EXPERT}.name=countdown_buffer"),
            "E1305",
            "name",
            "and so",
        ),
    ],
)
def test_what_does_not_fit_a_database_is_said(
    tmp_path: Path, overrides: tuple[str, ...], code: str, key: str, message: str
) -> None:
    found = [p for p in _examine(tmp_path, *overrides)[1] if (p.code, p.key) == (code, f"{EXPERT}.{key}")]
    assert found and message in found[0].message


def test_the_arithmetic_counts_rollouts_and_the_hint_counts_the_expert_rows_in(tmp_path: Path) -> None:
    def problem(*overrides: str) -> Finding:
        return next(p for p in _examine(tmp_path, *overrides)[1] if p.code in ("E1824", "E1830"))

    found = problem("buffer.train_batch_size=16")
    assert "explorer makes 16 rollouts" in found.message and "the trainer takes 8" in found.message
    assert "train_batch_size (16 - 8 expert rows)" in found.message
    assert found.suggestion == "write `train_batch_size: 32`"
    assert _problems(tmp_path, "buffer.train_batch_size=16", f"{SYNC}=2") == []
    found = problem("algorithm.advantage_fn=rloo", "buffer.train_batch_size=12", f"{SYNC}=2")
    assert "less 6 expert rows (6)" in found.message and found.suggestion == "use 8 or 16"


def test_a_name_that_is_no_key_is_refused(tmp_path: Path) -> None:
    tree = yaml.safe_load(GUIDE)
    tree["buffer"]["trainer_input"]["auxiliary_buffers"]["a.b"] = {"path": "x.jsonl"}
    assert ("E1304", AUXILIARY) in _problems(tmp_path, text=yaml.safe_dump(tree))


def test_a_buffer_that_nothing_reads_is_silent_where_a_stage_inherits_it(tmp_path: Path) -> None:
    tree = yaml.safe_load(GUIDE)
    del tree["algorithm"]
    stages: list[dict[str, Any]] = [{"stage_name": "rft", "algorithm": {"algorithm_type": "grpo", "repeat_times": 4}}]
    assert _problems(tmp_path, text=yaml.safe_dump(tree)) == [("W1902", f"{AUXILIARY}.sft_dataset")]
    assert _problems(tmp_path, text=yaml.safe_dump(tree | {"stages": stages})) == []


PLAIN = yaml.safe_dump({k: v for k, v in yaml.safe_load(GUIDE).items() if k != "algorithm"} | {
    "buffer": {k: v for k, v in yaml.safe_load(GUIDE)["buffer"].items() if k != "trainer_input"}})  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (("algorithm.sample_strategy=warmup",), [("W1301", "algorithm.sample_strategy")]),
        (("algorithm.sample_strategy=staleness_control",), []),
        (("algorithm.sample_strategy=staleness_control", "algorithm.sample_strategy_args.max_staleness=.inf"), []),
        (
            ("algorithm.sample_strategy=staleness_control", "algorithm.sample_strategy_args.max_staleness=-1"),
            [("E1302", "algorithm.sample_strategy_args.max_staleness")],
        ),
        (
            ("algorithm.sample_strategy=staleness_control", "algorithm.sample_strategy_args.max_staleness=true"),
            [("E1302", "algorithm.sample_strategy_args.max_staleness")],
        ),
        (
            ("algorithm.algorithm_type=sft", "mode=train", "buffer.train_batch_size=4", "trainer.total_steps=1",
             "buffer.trainer_input.experience_buffer.path=d.jsonl", "algorithm.sample_strategy=staleness_control"),
            [("E1842", "algorithm.sample_strategy")],
        ),
    ],
)  # fmt: skip
def test_other_strategies(tmp_path: Path, overrides: tuple[str, ...], found: list[tuple[str, str]]) -> None:
    assert _problems(tmp_path, *overrides, text=PLAIN) == found


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((f"{RATIO}=1.0",), [("E1844", RATIO)]),
        ((f"{NAME}=sft_datset",), [("E1843", NAME)]),
        ((f"{AUXILIARY}.sft_dataset.batch_size=3",), [("E1816", f"{AUXILIARY}.sft_dataset.batch_size")]),
    ],
)
def test_a_mistake_is_one_problem(tmp_path: Path, overrides: tuple[str, ...], expected: list[tuple[str, str]]) -> None:
    assert _problems(tmp_path, *overrides) == expected


def test_a_dataset_that_is_not_read_is_told_why(tmp_path: Path) -> None:
    (problem,) = _examine(tmp_path, f"{RATIO}=0")[1]
    assert problem.code == "W1902" and "expert_data_ratio` is 0" in problem.message
    (problem,) = _examine(tmp_path, f"{AUXILIARY}.other.path=other.jsonl")[1]
    assert "reads `sft_dataset`" in problem.message and problem.suggestion is not None
    assert "sft_dataset_name: other" in problem.suggestion


def test_demonstrations_are_in_a_list_of_files_or_in_one_database(tmp_path: Path) -> None:
    key = f"{AUXILIARY}.sft_dataset"
    config, problems = _examine(tmp_path, f"{key}.path=[a.jsonl, b.jsonl]")
    assert problems == []
    assert config.buffer.trainer_input.auxiliary_buffers["sft_dataset"].path == ("a.jsonl", "b.jsonl")
    found = _problems(tmp_path, f"{key}.path=[a.db, b.db]", f"{key}.storage_type=sql")
    assert ("E1889", f"{key}.path") in found
    assert ("E1896", f"{key}.path[1]") in _problems(tmp_path, f"{key}.path=[a.jsonl, 'ftp://host/b.jsonl']")
    assert _problems(tmp_path, f"{key}.path=[a.jsonl, 's3://bucket/b.jsonl']") == []
