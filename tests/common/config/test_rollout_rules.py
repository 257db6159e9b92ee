"""What an advantage function asks of the rollouts is checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.common.config.conftest import MINIMAL
from trinity.catalogue import BUILT_IN
from trinity.common.config import Config, Finding, examine
from trinity.common.config.rules.registered import range_faults

TEACHER = {"auxiliary_models": [{"model_path": "/models/teacher"}]}


def _examined(folder: Path, algorithm: dict[str, Any], **sections: Any) -> tuple[Config, list[Finding]]:
    tree = yaml.safe_load(MINIMAL) | {"algorithm": algorithm} | sections
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    plan, problems = examine(path, (), catalogue=BUILT_IN, cwd=folder)
    return plan.stages[0].config, [p for p in problems if p.is_error]


def _codes(folder: Path, algorithm: dict[str, Any], **sections: Any) -> list[str]:
    return [problem.code for problem in _examined(folder, algorithm, **sections)[1]]


@pytest.mark.parametrize("name", ["on_policy_distill", "jsd"])
def test_distillation_without_a_teacher_says_what_to_write(tmp_path: Path, name: str) -> None:
    (problem,) = _examined(tmp_path, {"algorithm_type": name})[1]
    assert (problem.code, problem.key) == ("E1880", "explorer.auxiliary_models")
    assert problem.message == (
        f"`explorer.auxiliary_models` is empty: advantage_fn {name} needs a teacher, which is the first of them"
    )
    assert problem.suggestion == "write `auxiliary_models: [{model_path: <folder of the teacher>}]` under `explorer`"
    config, problems = _examined(tmp_path, {"algorithm_type": name}, explorer=TEACHER)
    assert not problems and config.explorer.auxiliary_models[0].max_model_len == 128, "inherited from the model"
    assert config.algorithm.repeat_times == 1


def test_a_teacher_reads_at_least_what_the_student_writes(tmp_path: Path) -> None:
    explorer = {"auxiliary_models": [{"model_path": "t", "max_model_len": 127}]}
    (problem,) = _examined(tmp_path, {"algorithm_type": "jsd"}, explorer=explorer)[1]
    assert problem.code == "E1881" and problem.key == "explorer.auxiliary_models[0].max_model_len"
    assert "(127) must be at least model.max_model_len (128)" in problem.message
    assert not _codes(tmp_path, {"algorithm_type": "grpo"}, explorer=explorer), "no teacher: any length will do"


def test_an_auxiliary_model_names_its_folder(tmp_path: Path) -> None:
    explorer = {"auxiliary_models": [{"model_path": "t"}, {"dtype": "float32"}]}
    (problem,) = _examined(tmp_path, {"algorithm_type": "grpo"}, explorer=explorer)[1]
    assert (problem.code, problem.key) == ("E1821", "explorer.auxiliary_models[1].model_path")


def test_auxiliary_models_share_the_one_gpu_of_the_rollout_model_and_the_trainer(tmp_path: Path) -> None:
    cluster = {"node_num": 1, "gpu_per_node": 1}
    config, problems = _examined(tmp_path, {"algorithm_type": "jsd"}, explorer=TEACHER, cluster=cluster)
    assert not problems and config.cluster.auxiliary_model_gpu_num == 1 and config.cluster.trainer_gpu_num == 1


@pytest.mark.parametrize("name", ["gdpo", "verl_gdpo"])
@pytest.mark.parametrize(
    ("args", "key"),
    [
        ({}, "gdpo_reward_keys"),
        ({"gdpo_reward_keys": []}, "gdpo_reward_keys"),
        ({"gdpo_reward_keys": [1]}, "gdpo_reward_keys"),
        ({"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1.0]}, "gdpo_reward_weights"),
    ],
)
def test_components_of_the_reward_are_named(tmp_path: Path, name: str, args: dict[str, Any], key: str) -> None:
    algorithm = {"algorithm_type": "grpo_verl", "advantage_fn": name, "advantage_fn_args": args}
    (problem,) = _examined(tmp_path, algorithm)[1]
    assert (problem.code, problem.key) == ("E1883", f"algorithm.advantage_fn_args.{key}")
    assert "got" in problem.message
    fine = algorithm | {"advantage_fn_args": {"gdpo_reward_keys": ["a"], "gdpo_reward_weights": [2.0]}}
    assert not _codes(tmp_path, fine)


@pytest.mark.parametrize(
    ("algorithm", "taken"),
    [
        ({"algorithm_type": "remax"}, "the rewards of greedy rollouts"),
        ({"algorithm_type": "gigpo"}, "the rewards of the steps"),
        (
            {"algorithm_type": "grpo_verl", "advantage_fn": "gdpo", "advantage_fn_args": {"gdpo_reward_keys": ["a"]}},
            "the components of the reward",
        ),
    ],
)
def test_a_reward_that_is_changed_after_a_part_of_it_was_taken_is_refused(
    tmp_path: Path, algorithm: dict[str, Any], taken: str
) -> None:
    shaping = {"experience_pipeline": {"operators": [{"name": "reward_shaping_mapper"}]}}
    (problem,) = _examined(tmp_path, algorithm, data_processor=shaping)[1]
    assert problem.code == "E1884" and problem.key == "data_processor.experience_pipeline.operators[0].name"
    assert f"reads {taken}, which would stay as they were" in problem.message
    assert problem.suggestion == "give the reward its final form in the reward function"
    model = {"trainer_config": {"reward_model": {"enable": True, "model": {"path": "m"}}}}
    (problem,) = _examined(tmp_path, algorithm, trainer=model)[1]
    assert problem.code == "E1884" and problem.key == "trainer.trainer_config.reward_model.enable"
    assert not _codes(tmp_path, {"algorithm_type": "rloo"}, data_processor=shaping, trainer=model)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ([{"op_type": "POW", "stats_key": "x"}], "op_type must be one of ADD, SUB, MUL, DIV, got 'POW'"),
        ([{"stats_key": "x", "weight": "1"}], "weight must be a finite number"),
        ([{"stats_key": "x"}, {"op_type": "ADD"}], "reward_shaping_configs[1] must have the key stats_key"),
        ({"stats_key": "x"}, "reward_shaping_configs must be a list of mappings"),
    ],
)
def test_the_terms_of_a_shaped_reward_are_checked_before_anything_starts(tmp_path: Path, terms: Any, said: str) -> None:
    def codes(configs: Any) -> list[Finding]:
        operators = [{"name": "reward_shaping_mapper", "args": {"reward_shaping_configs": configs}}]
        return _examined(tmp_path, {}, data_processor={"experience_pipeline": {"operators": operators}})[1]

    (problem,) = codes(terms)
    assert problem.code == "E1707" and said in problem.message
    assert problem.key == "data_processor.experience_pipeline.operators[0].args.reward_shaping_configs"
    assert codes([{"stats_key": "x", "op_type": "mul"}]) == []


@pytest.mark.parametrize("name", ["on_policy_distill", "jsd"])
def test_a_penalty_in_a_reward_that_distillation_does_not_read_is_refused(tmp_path: Path, name: str) -> None:
    algorithm = {"algorithm_type": name, "kl_penalty_fn": "k1"}
    (problem,) = _examined(tmp_path, algorithm, explorer=TEACHER)[1]
    assert problem.code == "E1831" and "which reads no rewards of tokens" in problem.message
    assert not _codes(tmp_path, {"algorithm_type": "remax", "kl_penalty_fn": "k1"})


def test_no_way_out_is_to_remove_what_a_switch_needs() -> None:
    needed = [
        (entry, name, switch)
        for contents in BUILT_IN.tables.values()
        for entry in contents.values()
        for name, switch in entry.needed_if.items()
        if switch and name in entry.ranges and entry.args.get(name) is None
    ]
    assert len(needed) > 2
    for entry, name, switch in needed:
        arguments = {**entry.args, switch: True, name: -1}
        ways = {way for fault, _, way in range_faults(entry, entry.args, arguments) if fault == name}
        assert ways and all(f"`{name}`" in way and f"`{switch}: false`" in way for way in ways)
        off = {way for fault, _, way in range_faults(entry, entry.args, arguments | {switch: False}) if fault == name}
        assert off <= {"remove it"}
