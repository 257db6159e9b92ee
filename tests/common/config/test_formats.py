"""Datasets for training: what DPO derives, which keys of a format are read, and which losses fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trinity.catalogue import BUILT_IN
from trinity.common.config import Config, Finding, examine

Look = Callable[..., tuple[Config, list[Finding]]]

FILE = """\
project: p
name: n
mode: train
model: {model_path: /models/tiny, max_model_len: 128}
algorithm: {algorithm_type: %s}
buffer:
  train_batch_size: 5
  trainer_input:
    experience_buffer:
      path: data.jsonl
"""
FORMAT = "buffer.trainer_input.experience_buffer.format"
DPO = {"prompt_key": "q", "chosen_key": "good", "rejected_key": "bad"}


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Return a function that examines a file of an algorithm type with columns and overrides."""

    def run(algorithm: str, *overrides: str, **columns: str) -> tuple[Config, list[Finding]]:
        path = tmp_path / "run.yaml"
        path.write_text(FILE % algorithm)
        overrides = (*overrides, *(f"{FORMAT}.{name}={value}" for name, value in columns.items()))
        plan, problems = examine(path, overrides, catalogue=BUILT_IN, schema_only=True, cwd=tmp_path)
        return plan.stages[0].config, problems

    return run


def test_what_dpo_derives(look: Look) -> None:
    config, problems = look("dpo", **DPO)
    assert problems == []
    algorithm, output = config.algorithm, config.buffer.trainer_input.experience_buffer
    assert (algorithm.repeat_times, algorithm.policy_loss_fn, algorithm.kl_loss_fn) == (2, "dpo", "none")
    assert algorithm.policy_loss_fn_args == {"beta": 0.1, "label_smoothing": 0.0, "sft_coef": 0.0}
    assert (output.storage_type, output.schema_type, output.format.prompt_type) == ("file", "dpo", "plaintext")
    assert config.buffer.train_batch_size == 5, "pairs, odd or even"
    assert look("dpo", "trainer.max_token_len_per_gpu=130", **DPO)[0].trainer.max_token_len_per_gpu == 256
    assert look("cpt", "trainer.max_token_len_per_gpu=130")[0].trainer.max_token_len_per_gpu == 130


@pytest.mark.parametrize(
    ("algorithm", "columns", "kind"),
    [
        ("sft", {"prompt_key": "q", "response_key": "a", "system_prompt": "s", "tools_key": "t"}, "plaintext"),
        ("sft", {"messages_key": "m", "tools_key": "t", "enable_thinking": "true"}, "messages"),
        ("sft", {"enable_concatenated_multi_turn": "true", "chat_template": "x"}, "messages"),
        ("sft", {"enable_concatenated_multi_turn": "false", "prompt_key": "q"}, "plaintext"),
        ("dpo", {"messages_key": "m", "chosen_key": "c", "rejected_key": "r", "tools_key": "t"}, "messages"),
        ("cpt", {"prompt_key": "text", "prompt_type": "plaintext"}, "plaintext"),
    ],
)
def test_keys_that_are_read_are_fine(look: Look, algorithm: str, columns: dict[str, str], kind: str) -> None:
    config, problems = look(algorithm, **columns)
    assert problems == []
    assert config.buffer.trainer_input.experience_buffer.format.prompt_type == kind


@pytest.mark.difference("A key of `format` that the form of the rows does not read")
@pytest.mark.parametrize(
    ("algorithm", "columns", "key", "why"),
    [
        ("sft", {"prompt_type": "messages", "prompt_key": "q"}, "prompt_key", "is read with prompt_type plaintext"),
        ("sft", {"prompt_type": "messages", "response_key": "a"}, "response_key", "prompt_type is messages"),
        ("sft", {"prompt_type": "messages", "system_prompt": "s"}, "system_prompt", "prompt_type plaintext"),
        ("sft", {"prompt_type": "messages", "system_prompt_key": "s"}, "system_prompt_key", "prompt_type plaintext"),
        ("sft", {"prompt_type": "plaintext", "messages_key": "m"}, "messages_key", "prompt_type messages"),
        ("sft", {"prompt_key": "q", "messages_key": "m"}, "messages_key", "for rows of messages, and prompt_key for"),
        (
            "sft",
            {"prompt_type": "plaintext", "enable_concatenated_multi_turn": "true"},
            "enable_concatenated_multi_turn",
            "is read with prompt_type messages, and prompt_type is plaintext",
        ),
        ("sft", {"chosen_key": "c"}, "chosen_key", "is read for algorithm_type dpo, not for sft"),
        ("sft", {"reward_fn_key": "r"}, "reward_fn_key", "belongs to tasks"),
        ("dpo", {"prompt_type": "messages", "prompt_key": "q"}, "prompt_key", "prompt_type plaintext"),
        ("dpo", {"response_key": "a"}, "response_key", "is read for algorithm_type sft, not for dpo"),
        (
            "dpo",
            {"messages_key": "m", "enable_concatenated_multi_turn": "true"},
            "enable_concatenated_multi_turn",
            "is read for algorithm_type sft, not for dpo",
        ),
        ("cpt", {"prompt_type": "messages"}, "prompt_type", "does not fit algorithm_type cpt"),
        ("cpt", {"tools_key": "t"}, "tools_key", "is read for algorithm_type sft and dpo, not for cpt"),
    ],
)
def test_a_key_without_effect_is_refused(
    look: Look, algorithm: str, columns: dict[str, str], key: str, why: str
) -> None:
    found = look(algorithm, **columns)[1]
    assert [(p.code, p.key) for p in found] == [("E1834", f"{FORMAT}.{key}")]
    assert why in found[0].message and found[0].suggestion


def test_concatenated_turns_are_refused_where_rollouts_are_learnt_from(look: Look) -> None:
    task = "buffer.explorer_input.taskset"
    overrides = ["mode=both", f"{task}.path=d.jsonl", f"{task}.default_workflow_type=math_workflow",
                 "buffer.batch_size=5", "buffer.trainer_input.experience_buffer.path=null", "algorithm.repeat_times=2",
                 "buffer.train_batch_size=10"]  # fmt: skip
    assert look("grpo", *overrides)[1] == []
    for place in (FORMAT, f"{task}.format"):
        found = look("grpo", *overrides, f"{place}.enable_concatenated_multi_turn=true")[1]
        assert [(p.code, p.key) for p in found] == [("E1834", f"{place}.enable_concatenated_multi_turn")]


def test_the_demonstrations_of_a_mixed_run_have_the_keys_of_sft(look: Look) -> None:
    task, experts = "buffer.explorer_input.taskset", "buffer.trainer_input.auxiliary_buffers.sft_dataset"
    overrides = ["mode=both", f"{task}.path=d.jsonl", f"{task}.default_workflow_type=math_workflow",
                 "buffer.batch_size=2", "buffer.trainer_input.experience_buffer.path=null", "algorithm.repeat_times=2",
                 "buffer.train_batch_size=8", f"{experts}.path=e.jsonl", f"{experts}.format.prompt_key=q"]  # fmt: skip
    assert look("mix", *overrides)[1] == []
    found = look("mix", *overrides, f"{experts}.format.chosen_key=c")[1]
    assert [(p.code, p.key) for p in found] == [("E1834", f"{experts}.format.chosen_key")]


def test_a_key_of_the_global_part_is_no_mistake_of_a_stage(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    stages = "stages:\n- {stage_name: a}\n- {stage_name: b, algorithm: {algorithm_type: cpt}}\n"
    path.write_text(FILE % "sft" + f"      format: {{prompt_key: q, response_key: a}}\n{stages}")
    _, problems = examine(path, (), catalogue=BUILT_IN, schema_only=True, cwd=tmp_path)
    assert problems == []


@pytest.mark.difference("DPO and KL")
@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("algorithm.policy_loss_fn=sft", "E1833", "sft` does not fit algorithm_type dpo: it needs a loss over pairs"),
        ("algorithm.kl_loss_fn=k2", "W1835", "a second pull to the reference on top of DPO's own"),
        ("algorithm.repeat_times=1", "E1807", "must be 2 for dpo, got 1"),
        ("algorithm.advantage_fn=grpo", "E1807", "does not fit algorithm_type dpo, which trains on a dataset without"),
        ("algorithm.policy_loss_fn_args.betta=1", "E1703", "`dpo` has no argument `betta`; known: beta, label_smoo"),
    ],
)
def test_what_does_not_go_with_pairs(look: Look, override: str, code: str, message: str) -> None:
    found = look("dpo", override, **DPO)[1]
    assert [p.code for p in found] == [code] and message in found[0].message


def test_a_loss_over_pairs_needs_pairs(look: Look) -> None:
    found = look("sft", "algorithm.policy_loss_fn=dpo")[1]
    assert [p.code for p in found] == ["E1833"] and "it needs algorithm_type dpo" in found[0].message


@pytest.mark.parametrize(
    ("algorithm", "columns", "key", "other"),
    [
        ("dpo", DPO | {"rejected_key": "good"}, "rejected_key", "chosen_key"),
        ("dpo", {"rejected_key": "chosen"}, "rejected_key", "chosen_key"),
        ("dpo", {"prompt_key": "chosen"}, "prompt_key", "chosen_key"),
        ("dpo", {"prompt_type": "messages", "messages_key": "rejected"}, "messages_key", "rejected_key"),
        ("sft", {"prompt_key": "text", "response_key": "text"}, "response_key", "prompt_key"),
    ],
)
def test_one_column_for_two_purposes_is_refused(
    look: Look, algorithm: str, columns: dict[str, str], key: str, other: str
) -> None:
    (found,) = look(algorithm, **columns)[1]
    assert (found.code, found.key) == ("E1834", f"{FORMAT}.{key}")
    assert f"is the column {columns[key]}, and so is {other}" in found.message


@pytest.mark.difference("Registries `READER`, `FORMATTER` and `SQL_SCHEMA`")
@pytest.mark.parametrize(
    ("name", "value"),
    [("schema_type", "sft"), ("batch_size", "9"), ("total_epochs", "3"), ("tokenizer_path", "/models/other")],
)
def test_what_the_buffer_takes_from_other_keys_cannot_be_set_otherwise(look: Look, name: str, value: str) -> None:
    key = f"{FORMAT.removesuffix('.format')}.{name}"
    (found,) = look("dpo", f"{key}={value}", **DPO)[1]
    assert (found.code, found.key) == ("E1816", key) and f"got {value}" in found.message
    assert (
        look("dpo", f"{key}={ {'schema_type': 'dpo', 'batch_size': 5, 'total_epochs': 1}.get(name, 'null') }", **DPO)[1]
        == []
    )


def test_a_wrong_mode_is_one_problem(look: Look) -> None:
    assert [(p.code, p.key) for p in look("dpo", "mode=trian", **DPO)[1]] == [("E1301", "mode")]
    (found,) = look("dpo", "mode=both", **DPO)[1]
    assert (found.code, found.key, found.suggestion) == ("E1807", "mode", "write `mode: train`")


def test_a_workflow_without_its_reward_function_is_refused(look: Look) -> None:
    task, model = "buffer.explorer_input.taskset", "trainer.trainer_config.reward_model"
    workflow, reward = f"{task}.default_workflow_type", f"{task}.default_reward_fn_type"
    overrides = ["mode=both", f"{task}.path=d.jsonl", "buffer.batch_size=5", "algorithm.repeat_times=2",
                 "buffer.trainer_input.experience_buffer.path=null", "buffer.train_batch_size=10"]  # fmt: skip
    (found,) = look("grpo", *overrides, f"{workflow}=simple_workflow")[1]
    assert (found.code, found.key) == ("E1864", reward) and "accuracy_reward" in (found.suggestion or "")
    scored = [f"{model}.enable=true", f"{model}.model.path=/rm", f"{workflow}=async_simple_workflow"]
    (found,) = look("grpo", *overrides, *scored)[1]
    assert found.code == "E1864" and "no_reward" in (found.suggestion or "")
    for enough in (f"{reward}=math_reward", f"{task}.format.reward_fn_key=judge", f"{workflow}=math_workflow"):
        assert look("grpo", *overrides, f"{workflow}=simple_workflow", enough)[1] == []
