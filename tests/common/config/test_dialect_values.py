"""Values of veRL's keys that are of another type, somewhere else, or without effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.common.config.conftest import MINIMAL
from tests.common.config.test_dialects import BASES, MODELARTS, SMALL, codes, outcome, planned, with_parts
from trinity.common.config.dialects import open_source
from trinity.common.config.dialects.foreign_key import KINDS, ForeignKey
from trinity.common.config.dialects.table import VERL_KEYS

# ------------------------------------------------------------------ types
WRONG: list[Any] = ["zzz", ["a", {"b": 1}], {"a": 1}, True, -7, 2.5]
READ = [(row, row.name.replace("*", "swap_space")) for row in VERL_KEYS if row.via or row.kind]
_AS_MINUS_1 = ("trainer.test_freq", "actor_rollout_ref.actor.optim.lr_warmup_steps", "critic.optim.lr_warmup_steps")


def is_right(row: ForeignKey, value: Any) -> bool:
    """Return whether a conversion can read a value of a key."""
    return not row.kind_read or KINDS[row.kind_read][1](value)


@pytest.mark.difference("Values of another type in a veRL file")
@pytest.mark.parametrize("value", WRONG, ids=str)
def test_every_value_of_another_type_is_told(value: Any) -> None:
    wrong = [name for row, name in READ if not is_right(row, value)]
    code = "E1941" if isinstance(value, dict) else "E1101"  # a mapping is keys below it
    told = {key for found, key in outcome(BASES[1], *(f"++{name}={json.dumps(value)}" for name in wrong))[1]
            if found == code}  # fmt: skip
    assert wrong and set(wrong) <= told


def test_no_value_that_a_conversion_reads_is_silent() -> None:
    """It is reported, or what the file becomes is another, in some file; the schema examines it there."""
    known = [(base, outcome(base)) for base in BASES]
    silent = []
    for row, name in READ:
        for value in (each for each in WRONG if is_right(row, each) and each != row.default and not row.is_section):
            texts = ((base, before, f"++{name}={json.dumps(value)}") for base, before in known)
            is_minus_1 = value == -7 and name in _AS_MINUS_1  # every negative number is, as in veRL
            if not is_minus_1 and all(outcome(base, text) == before for base, before, text in texts):
                silent.append((name, value))
    assert silent == []


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("++actor_rollout_ref.actor.policy_loss.loss_mode=[1]", "actor_rollout_ref.actor.policy_loss"),
        (
            "++reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=abc",
            "reward_model.reward_kwargs.overlong_buffer_cfg",
        ),
        (
            "++reward_model.reward_kwargs.overlong_buffer_cfg.enable=7",
            "reward_model.reward_kwargs.overlong_buffer_cfg",
        ),
        ("++trainer.save_freq=abc", "trainer.save_freq"),
        ("++trainer.total_training_steps=0", "trainer.total_training_steps"),
    ],
)
def test_a_wrong_value_inside_a_section_is_told(change: str, key: str) -> None:
    assert {code for code, place in outcome(BASES[1], change)[1] if place.startswith(key)} & {"E1101", "E1301"}


def test_null_is_told_where_a_default_counts() -> None:
    assert (
        codes(open_source(SMALL, ["actor_rollout_ref.rollout.n=null"]).problems)["actor_rollout_ref.rollout.n"]
        == "W1941"
    )


# ------------------------------------------------------------------ folders
@pytest.mark.parametrize(
    ("source", "change", "key"),
    [
        (SMALL, "trainer.default_local_dir=s3://bucket/runs", "trainer.default_local_dir"),
        (MODELARTS, "af_output_dir=s3://bucket/runs", "af_output_dir"),
        (MODELARTS, "af_output_dir=[a]", "af_output_dir"),
    ],
)
def test_an_address_is_never_made_a_folder_of_this_machine(source: Any, change: str, key: str) -> None:
    config, problems = planned(source, change)
    code = "E1101" if "[" in change else "E1896"
    found = [problem for problem in problems if problem.key == key and problem.code == code]
    assert found, [(problem.code, problem.key) for problem in problems]
    assert "s3:/b" not in str(config.checkpoint_root_dir).replace("s3://b", "")


# ------------------------------------------------------------------ without effect
@pytest.mark.parametrize(
    ("changes", "code", "key"),
    [
        (["trainer.critic_warmup=5"], "W1940", "trainer.critic_warmup"),
        (["data.val_files=null", "trainer.test_freq=5"], "W1940", "trainer.test_freq"),
        (["af_output_dir=/runs"], "E1941", "af_output_dir"),
        (["custom_reward_function.name=mine"], "W1940", "custom_reward_function.name"),
        (["custom_reward_function.reward_kwargs.a=1"], "W1940", "custom_reward_function.reward_kwargs"),
        (
            ["reward_model.reward_kwargs.overlong_buffer_cfg={enable: true, len: 4}"],
            "W1940",
            "reward_model.reward_kwargs.overlong_buffer_cfg",
        ),
        (
            ["actor_rollout_ref.rollout.val_kwargs.temperature=0.5"],
            "W1940",
            "actor_rollout_ref.rollout.val_kwargs.temperature",
        ),
        (["actor_rollout_ref.rollout.val_kwargs.top_p=0.5"], "W1940", "actor_rollout_ref.rollout.val_kwargs.top_p"),
        (
            ["actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=99"],
            "W1940",
            "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
        ),
    ],
)
def test_what_another_key_would_switch_on_is_told(changes: list[str], code: str, key: str) -> None:
    found = outcome(SMALL, *(f"++{change}" for change in changes))[1]
    assert any(told == code and place.startswith(key) for told, place in found), found


def test_what_is_switched_on_is_not_told_as_without_effect() -> None:
    values = with_parts(
        algorithm__adv_estimator="gae", trainer__critic_warmup=5, trainer__test_freq=5,
        custom_reward_function__path="score.py", custom_reward_function__name="mine",
        reward_model__reward_manager="dapo",
        reward_model__reward_kwargs__overlong_buffer_cfg={"enable": True, "len": 4},
        actor_rollout_ref__rollout__val_kwargs={"do_sample": True, "temperature": 0.5, "top_p": 0.5},
        actor_rollout_ref__ref={"log_prob_use_dynamic_bsz": True, "log_prob_max_token_len_per_gpu": 99},
    )  # fmt: skip
    assert "W1940" not in {code for code, _ in outcome(values)[1]}


# ------------------------------------------------------------------ words
@pytest.mark.parametrize(
    ("source", "changes", "code", "words"),
    [
        (SMALL, ["actor_rollout_ref.rollout.n=1"], "E1801", "write `actor_rollout_ref.rollout.n: 8`"),
        (SMALL, ["++trainer.resume_from_path=/a"], "E1847", "write `trainer.resume_mode: resume_path`"),
        (MINIMAL, ["actor_rollout_ref.model.path=/m"], "E1900", "`model.model_path`"),
        (MINIMAL, ["actor_rollout_ref.rollout.temperature=0.5"], "E1900", "`model.temperature`"),
        (MINIMAL, ["actor_rollout_ref.rollout.n=4"], "E1900", "`algorithm.repeat_times`"),
        (MINIMAL, ["algorithm.kl_ctrl.type=adaptive"], "E1900", "`algorithm.kl_penalty_fn_args.adaptive`"),
        (MINIMAL, ["actor_rollout_ref.rollout.engine_kwargs={vllm: {a: 1}}"], "E1203",
         "`explorer.rollout_model.extra_engine_args`"),
    ],
)  # fmt: skip
def test_a_way_out_names_keys_of_the_file_that_it_is_for(
    source: Any, changes: list[str], code: str, words: str
) -> None:
    values = source
    if source is MINIMAL:
        values, changes = yaml.safe_load(MINIMAL), [f"trainer.trainer_config.{change}" for change in changes]
    hints = [problem.suggestion or "" for problem in planned(values, *changes)[1] if problem.code == code]
    assert any(words in hint for hint in hints), hints
