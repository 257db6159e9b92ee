"""Files of veRL and ModelArts: what their keys become, units, hydra's forms, words of problems, required keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.common.config.conftest import MINIMAL, Examine
from trinity.catalogue import BUILT_IN
from trinity.common.config import Config, Finding, examine
from trinity.common.config.dialects import Opened, open_source
from trinity.common.config.dialects.conversions import CONVERSIONS
from trinity.common.config.dialects.foreign_key import Fate, ForeignKey
from trinity.common.config.dialects.showing import converted
from trinity.common.config.dialects.table import VERL_KEYS, by_name, row_of
from trinity.common.config.overrides import parse_path
from trinity.common.config.schema_index import annotation_at
from trinity.common.config.tree import dotted

SEEDS = Path(__file__).resolve().parents[2] / "seeds"
VERL, MODELARTS = SEEDS / "verl_ppo_trainer.yaml", SEEDS / "modelarts_verl.yaml"
SMALL: dict[str, Any] = {
    "data": {"train_files": "a.parquet", "val_files": ["b.parquet", "c.parquet"], "train_batch_size": 8},
    "actor_rollout_ref": {
        "model": {"path": "/models/tiny"},
        "actor": {"ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 2},
        "rollout": {"name": "torch", "n": 3},
    },
    "algorithm": {"adv_estimator": "grpo"},
    "trainer": {"n_gpus_per_node": 0},
}


def planned(source: Any, *overrides: str) -> tuple[Config, list[Finding]]:
    """Return the complete configuration of a file and all problems."""
    plan, problems = examine(source, overrides, catalogue=BUILT_IN, schema_only=True)
    return plan.stages[0].config, problems


def codes(problems: list[Finding]) -> dict[str, str]:
    """Return the codes of problems by their keys."""
    return {problem.key: problem.code for problem in problems}


def put(opened: Opened, key: str) -> Any:
    """Return what a translation wrote to one of our keys."""
    path = parse_path(key)
    assert path is not None
    return opened.tree.get(path)


# ------------------------------------------------------------------ the table
@pytest.mark.parametrize(("file", "number"), [(VERL, 76), (MODELARTS, 36)])
def test_every_key_of_the_documents_is_in_the_table_and_none_is_an_error(file: Path, number: int) -> None:
    opened = open_source(file)
    assert opened.translation is not None
    names = [path for path in opened.translation.foreign.leaves() if not isinstance(path[-1], int)]
    assert all(row_of(dotted(path)) is not None for path in names)
    told = {each.written for each in opened.translation.became}
    assert len(told) + (file == MODELARTS) == number
    assert [problem for problem in planned(file)[1] if problem.is_error] == []


def test_the_places_of_the_table_are_keys_of_ours() -> None:
    for row in VERL_KEYS:
        for place in row.to:
            path = parse_path(place)
            assert path is not None and annotation_at(path) is not None, (row.name, place)
        assert row.via in ("", *CONVERSIONS), row.name
        assert row.fate is not Fate.OLDER or row.newer in by_name(), row.name
        assert row.fate is not Fate.REFUSED or (row.why and row.instead), row.name


def outcome(values: dict[str, Any], *overrides: str) -> tuple[Any, set[tuple[str, str]]]:
    """Return what a file becomes, and what is reported."""
    opened = open_source(values, overrides)
    return opened.tree.values, {(problem.code, problem.key) for problem in opened.problems}


def with_parts(**parts: Any) -> dict[str, Any]:
    """Return the small file with some keys, dots written as `__`."""
    values: dict[str, Any] = yaml.safe_load(yaml.safe_dump(SMALL))
    for name, value in parts.items():
        *above, last = name.split("__")
        node = values
        for part in above:
            node = node.setdefault(part, {})
        node[last] = value
    return values


BASES = [
    SMALL,
    with_parts(
        algorithm__adv_estimator="gae", algorithm__use_kl_in_reward=True, algorithm__kl_ctrl__type="adaptive",
        actor_rollout_ref__actor__use_kl_loss=True, actor_rollout_ref__rollout__name="vllm", trainer__n_gpus_per_node=8,
        actor_rollout_ref__actor__use_dynamic_bsz=True, actor_rollout_ref__actor__optim__lr_scheduler_type="cosine",
        critic__optim__lr_scheduler_type="cosine", reward_model__enable=True, data__image_key="pictures",
        actor_rollout_ref__model__lora_rank=4, actor_rollout_ref__rollout__val_kwargs__do_sample=True,
        custom_reward_function__path="score.py", reward_model__reward_manager="dapo",
        reward_model__reward_kwargs__overlong_buffer_cfg={"enable": True, "len": 3},
    ),
    with_parts(algorithm__adv_estimator="gdpo", actor_rollout_ref__actor__policy_loss__loss_mode="sapo"),
]  # fmt: skip
OTHERS = {
    "reward_model.reward_kwargs.overlong_buffer_cfg": {"enable": True, "len": 5},
    "actor_rollout_ref.actor.policy_loss": {"loss_mode": "gspo"},
    "algorithm.rollout_correction": {"rollout_is": "token"},
}


def others_of(row: ForeignKey) -> list[Any]:
    """Return other values than a key has in the files above."""
    if row.name in OTHERS:
        return [OTHERS[row.name]]
    return [{"enable": True, "a": 1}] if row.is_section else [7, "zzz", False, True]


@pytest.mark.difference("Keys of a veRL file that have no effect")
def test_no_key_is_ignored() -> None:
    """Another value of any key changes what some file becomes, or is reported."""
    known = [(base, outcome(base)) for base in BASES]
    ignored = []
    for row in (row for row in VERL_KEYS if row.fate is not Fate.OLDER):
        name = row.name.replace("*", "swap_space")
        tried = ((base, before, value) for base, before in known for value in others_of(row))
        texts = ((base, before, f"++{name}={json.dumps(value)}") for base, before, value in tried)
        if not any(outcome(base, text) != before for base, before, text in texts):
            ignored.append(row.name)
    assert ignored == []


def test_older_names_mean_the_newer_key() -> None:
    opened = open_source(SMALL, ["+actor_rollout_ref.actor.optim.warmup_style=cosine"])
    assert put(opened, "algorithm.optimizer.lr_scheduler_type") == "cosine"
    assert [p.code for p in opened.problems] == ["W1942"]
    both = ["+actor_rollout_ref.actor.optim.clip_grad=2.0", "+actor_rollout_ref.actor.grad_clip=1.0"]
    assert "E1943" in [problem.code for problem in open_source(SMALL, both).problems]


# ------------------------------------------------------------------ units
def test_prompts_become_rollouts_and_sizes_of_all_workers_those_of_one() -> None:
    config, problems = planned(SMALL)
    assert not [problem for problem in problems if problem.is_error]
    assert (config.buffer.batch_size, config.algorithm.repeat_times, config.buffer.train_batch_size) == (8, 3, 24)
    assert config.trainer.mini_batch_size == 12
    assert config.trainer.trainer_config.actor_rollout_ref.actor.ppo_mini_batch_size == 12
    old = with_parts(actor_rollout_ref__actor__ppo_micro_batch_size=24, trainer__n_gpus_per_node=8)
    del old["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"]
    old["actor_rollout_ref"]["rollout"].update(name="vllm", tensor_model_parallel_size=2)
    config, _ = planned(old)
    assert (config.explorer.rollout_model.engine_num, config.cluster.trainer_gpu_num) == (2, 4)
    assert config.trainer.trainer_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 6


def test_a_mini_batch_is_at_most_a_batch() -> None:
    wrong = open_source(SMALL, ["actor_rollout_ref.actor.ppo_mini_batch_size=9"]).problems
    assert codes(wrong) == {"actor_rollout_ref.actor.ppo_mini_batch_size": "E1943"}
    assert put(open_source(SMALL, ["trainer.save_freq=5"]), "trainer.save_interval") == 5
    warm = ["algorithm.adv_estimator=gae", "trainer.critic_warmup=3"]
    assert put(open_source(SMALL, warm), "trainer.critic_warmup") == 2, "veRL leaves out one update less"


# ------------------------------------------------------------------ KL terms
@pytest.mark.difference("`kl_ctrl` without `use_kl_in_reward`")
@pytest.mark.parametrize(
    ("changes", "penalty", "loss", "is_told"),
    [
        ([], "kl", "none", True),
        (["+algorithm.use_kl_in_reward=false"], "none", "none", False),
        (["+algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=full"], "full", "none", False),
        (["+actor_rollout_ref.actor.use_kl_loss=true"], "none", "low_var_kl", True),
        (["~algorithm.kl_ctrl"], "none", "none", False),
    ],
)
def test_where_the_kl_term_is(changes: list[str], penalty: str, loss: str, is_told: bool) -> None:
    opened = open_source(VERL, changes)
    assert put(opened, "algorithm.kl_penalty_fn") == penalty and put(opened, "algorithm.kl_loss_fn") == loss
    assert any("use_kl_in_reward" in p.message for p in opened.problems if p.code == "W1941") == is_told
    if penalty != "none":
        assert put(opened, "algorithm.kl_penalty_fn_args.kl_coef") == 0.005


# ------------------------------------------------------------------ hydra
def test_overrides_in_hydras_form_and_of_our_own_keys() -> None:
    words = ["data.train_batch_size=16", "+data.seed=5", "~trainer.n_gpus_per_node", "trainer.logger=[console,wandb]"]
    opened = open_source(SMALL, [*words, "synchronizer.sync_timeout=9", "trainer.grad_clip=0.5"])
    assert put(opened, "buffer.batch_size") == 16
    assert put(opened, "buffer.explorer_input.taskset.data_selector.seed") == 5
    assert put(opened, "cluster.gpu_per_node") == 8, "veRL's default"
    assert put(opened, "monitor.monitor_type") == "wandb"
    assert put(opened, "synchronizer.sync_timeout") == 9 and put(opened, "trainer.grad_clip") == 0.5
    wrong = open_source(SMALL, ["~data.no_key", "data.seed", "+~x=3"]).problems
    assert [problem.code for problem in wrong] == ["E1944", "E1944", "E1944"]


def test_a_defaults_list_reads_files_beside_and_knows_verls_own(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(with_parts(data__seed=3, data__train_batch_size=32)))
    (tmp_path / "small.yaml").write_text("train_batch_size: 16\nmax_prompt_length: 7\n")
    file = tmp_path / "run.yaml"
    text = "defaults: [ppo_trainer, base, {data@data: small}, _self_]\ndata: {max_prompt_length: 9}\n"
    (tmp_path / "data").mkdir()
    (tmp_path / "small.yaml").rename(tmp_path / "data" / "small.yaml")
    file.write_text(text)
    opened = open_source(file)
    assert opened.problems == [] and put(opened, "model.max_prompt_tokens") == 9
    assert put(opened, "buffer.explorer_input.taskset.data_selector.seed") == 3
    file.write_text("defaults: [no_such_file]\n" + yaml.safe_dump(SMALL))
    assert [problem.code for problem in open_source(file).problems] == ["E1944"]


# ------------------------------------------------------------------ words
@pytest.mark.parametrize(
    ("change", "code", "key"),
    [
        ("data.max_response_length=0", "E1302", "data.max_response_length"),
        ("trainer.total_epochs=none", "E1101", "trainer.total_epochs"),
        ("+critic.cliprange_value=-1", "E1302", "critic.cliprange_value"),
        ("+trainer.default_hdfs_dir=ftp://a/b", "E1896", "trainer.default_hdfs_dir"),
        ("actor_rollout_ref.rollout.name=sglang", "E1940", "actor_rollout_ref.rollout.name"),
        ("trainer.logger=[console,clearml]", "E1940", "trainer.logger"),
        ("+data.prompt_id_key=id", "E1940", "data.prompt_id_key"),
        ("data.train_files=ftp://host/a.parquet", "E1896", "data.train_files"),
        ("actor_rollout_ref.rollout.n=1", "E1801", "actor_rollout_ref.rollout.n"),
        ("algorithm.adv_estimator=gea", "E1301", "algorithm.adv_estimator"),
    ],
)
def test_problems_name_the_key_that_was_written(change: str, code: str, key: str) -> None:
    problems = [problem for problem in planned(SMALL, change)[1] if problem.is_error]
    assert codes(problems) == {key: code}, problems
    assert f"`{key}" in problems[0].message and (problems[0].file or "").startswith("override")


def test_an_engine_that_is_not_there_is_named_with_the_override_of_the_file() -> None:
    plan, _ = examine(SMALL, ["actor_rollout_ref.rollout.name=vllm"], catalogue=BUILT_IN, schema_only=True)
    found = Finding(
        "E3301", "explorer.rollout_model.engine_type", "the package vllm is not installed",
        suggestion="use --set explorer.rollout_model.engine_type=torch",
    )  # fmt: skip
    placed = plan.stages[0].placed(found)
    assert placed.key == "actor_rollout_ref.rollout.name"
    assert placed.suggestion == "use --set actor_rollout_ref.rollout.name=torch"


# ------------------------------------------------------------------ ModelArts
@pytest.mark.difference("ModelArts: estimator and outputs")
def test_modelarts_form_defaults_and_required_keys() -> None:
    nested = {
        "af_output_dir": "/out",
        "backend_config": {
            "data": SMALL["data"],
            "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
            "actor_rollout_ref.model.path": "/models/tiny",
        },
        "backend_config.actor_rollout_ref.rollout.n": 4,
        "trainer.n_gpus_per_node": 0,
        "actor_rollout_ref": {"rollout": {"name": "torch"}},
        "engine_kwargs.vllm.disable_mm_preprocessor_cache": True,
    }
    config, problems = planned(nested, "backend_config.data.max_prompt_length=99")
    assert not [problem for problem in problems if problem.is_error]
    assert config.algorithm.kl_loss_fn == "low_var_kl" and config.algorithm.kl_loss_fn_args is not None
    assert config.algorithm.kl_loss_fn_args["kl_coef"] == 0.001 and config.algorithm.kl_penalty_fn == "none"
    assert config.checkpoint_root_dir == "/out" and config.model.max_prompt_tokens == 99
    assert codes(problems)["engine_kwargs.vllm.disable_mm_preprocessor_cache"] == "W1940", "the rows have no images"
    missing = open_source({"backend_config": {"trainer": {"total_epochs": 1}}}).problems
    assert [problem.key for problem in missing if problem.code == "E1942"] == [
        "af_output_dir", "backend_config.data.train_files", "backend_config.data.val_files",
        "backend_config.actor_rollout_ref.model.path",
    ]  # fmt: skip
    twice = nested | {"data.train_batch_size": 9}
    assert "E1943" in codes(open_source(twice).problems).values()
    assert "did you mean `af_output_dir`?" in str(open_source({"af_outptu_dir": "/o", **nested}).problems[0].suggestion)
    outside = ["backend_config.trainer.default_local_dir=/elsewhere"]
    assert "E1943" in codes(open_source(nested, outside).problems).values()


def test_a_converted_file_means_the_same(tmp_path: Path) -> None:
    for file in (VERL, MODELARTS):
        opened = open_source(file)
        text = converted(opened)
        (tmp_path / "ours.yaml").write_text(text)
        again = open_source(tmp_path / "ours.yaml")
        assert again.dialect is None and again.tree.values == opened.tree.values
    assert "# backend_config.data.train_batch_size, line 5" in text and "# Keys that have no place here:" in text


def test_files_of_ours_are_ours() -> None:
    assert open_source({"trainer": {"trainer_config": SMALL}, "buffer": {}}).dialect is None
    assert open_source({"algorithm": {"algorithm_type": "grpo"}}).dialect is None
    assert open_source({"actor_rollout_ref": {}, "buffer": {}}).dialect is None, "a mixture is answered key by key"


def test_a_verl_file_below_trainer_config_gets_the_right_place_for_each_key(examined: Examine) -> None:
    written = {
        "actor_rollout_ref": {
            "rollout": {"name": "vllm", "n": 4, "max_num_seqs": 8, "load_format": "dummy", "quantization": "fp8"},
            "actor": {"use_torch_compile": False},
            "model": {"fused_kernel_options": {"impl_backend": "triton"}},
        },
        "data": {"train_files": "a.parquet"},
        "custom_reward_function": {"path": "a.py"},
    }
    _, problems = examined(MINIMAL + yaml.safe_dump({"trainer": {"trainer_config": written}}))
    said = {p.key.removeprefix("trainer.trainer_config."): (p.code, p.suggestion) for p in problems}
    rollout = "actor_rollout_ref.rollout"
    assert said[f"{rollout}.name"] == ("E1205", "write `explorer.rollout_model.engine_type`")
    assert said[f"{rollout}.max_num_seqs"][1] == "write `explorer.rollout_model.extra_engine_args.max_num_seqs`"
    assert said[f"{rollout}.load_format"][0] == "W1940" and said[f"{rollout}.quantization"][0] == "E1940"
    assert said["data.train_files"][1] == "write `buffer.explorer_input.taskset`"
    assert said["custom_reward_function"][1] == "write `buffer.explorer_input.taskset.workflow_args.path`"
    assert said["actor_rollout_ref.actor.use_torch_compile"][0] == "W1902"
    assert said["actor_rollout_ref.model.fused_kernel_options.impl_backend"][0] == "W1902"


def test_all_of_a_pasted_file_is_answered(examined: Examine) -> None:
    def answered(written: Any) -> dict[str, tuple[str, str | None]]:
        problems = examined(MINIMAL + yaml.safe_dump({"trainer": {"trainer_config": written}}))[1]
        return {p.key.removeprefix("trainer.trainer_config."): (p.code, p.suggestion) for p in problems}

    said = answered({"trainer": {"logger": ["console", "wandb"]}, "reward_model": {"reward_manager": "dapo"}})
    assert said["trainer.logger"] == ("E1816", "write `monitor.monitor_type`")
    assert said["reward_model.reward_manager"][0] == "E1900"
    said = answered(yaml.safe_load(VERL.read_text()))
    assert "E1402" not in {code for code, _ in said.values()}
    assert said["trainer.default_local_dir"] == ("E1816", "write `checkpoint_root_dir`")
    said = answered(yaml.safe_load(MODELARTS.read_text()))
    assert "E1203" not in {code for code, _ in said.values()}
    assert said["af_output_dir"] == ("E1205", "write `checkpoint_root_dir`")
    assert said["backend_config.data.train_files"] == ("E1205", "write `buffer.explorer_input.taskset`")
    nested = answered({"backend_config": {"data": {"train_files": "a"}}})
    assert nested["backend_config"][0] == "E1205" and "one level up" in str(nested["backend_config"][1])


def test_long_sequences_get_the_values_that_fit_them() -> None:
    changes = ["data.max_prompt_length=2048", "data.max_response_length=16384", "trainer.n_gpus_per_node=16"]
    changes += ["actor_rollout_ref.rollout.name=vllm", "+actor_rollout_ref.rollout.max_num_batched_tokens=8192"]
    problems = planned(SMALL, *changes)[1]
    hints = {problem.key: problem.suggestion for problem in problems if problem.code == "W1946"}
    budget = "actor_rollout_ref.rollout.max_num_batched_tokens"
    sequences = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"
    assert hints == {
        budget: f"write `{budget}: 18432`",
        sequences: f"write `{sequences}: 8` if the memory is too small",
    }


@pytest.mark.parametrize(("engine", "response", "is_told"), [("vllm", 6452, True), ("vllm", 6000, False),
                                                             ("torch", 6452, False)])  # fmt: skip
def test_a_budget_that_is_not_written_is_suggested_where_vllm_reads_it(
    engine: str, response: int, is_told: bool
) -> None:
    changes = ["data.max_prompt_length=2048", f"data.max_response_length={response}", "trainer.n_gpus_per_node=8"]
    problems = planned(SMALL, *changes, f"actor_rollout_ref.rollout.name={engine}")[1]
    hints = [problem.suggestion for problem in problems if problem.code == "W1946"]
    assert hints == ["write `actor_rollout_ref.rollout.max_num_batched_tokens: 8500`"] * is_told


def test_addresses_of_a_verl_file_are_ours() -> None:
    changes = [
        "data.train_files=[hdfs://nn/a.parquet,s3://bucket/b.parquet]",
        "actor_rollout_ref.model.path=gs://models/tiny",
        "+trainer.default_hdfs_dir=s3://results/verl/${trainer.project_name}/${trainer.experiment_name}",
    ]
    config, problems = planned(SMALL, *changes)
    assert not [problem for problem in problems if problem.is_error]
    assert config.model.model_path == "gs://models/tiny" and config.buffer.explorer_input.taskset is not None
    assert config.buffer.explorer_input.taskset.path == ("hdfs://nn/a.parquet", "s3://bucket/b.parquet")
    assert config.trainer.checkpoint_upload_dir == "s3://results/verl"
    told = planned(SMALL, "+trainer.default_hdfs_dir=s3://results/verl")[1]
    assert [problem.code for problem in told if problem.key == "trainer.default_hdfs_dir"] == ["W1941"]
