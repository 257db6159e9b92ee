"""Every key of the guide's veRL section: another value changes what the trainer computes with, or is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from tests.common.config.test_published import DATA
from trinity.common.config import Config
from trinity.common.config.config import Config as Root
from trinity.common.config.reading import read_file
from trinity.common.config.schema_index import fields_of
from trinity.common.config.tree import dotted
from trinity.trainer.rank_worker import is_balanced
from trinity.trainer.verl import critic, settings, shard_settings
from trinity.trainer.verl.settings import actor_of

TREE = "trainer.trainer_config"
BASE = MINIMAL + "algorithm: {algorithm_type: ppo, optimizer: {lr: 0.001}}\ntrainer: {num_workers: 2, total_steps: 9}\n"
ACTOR, REF, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.model"
CONTENTS = ["model", "optimizer", "extra", "hf_model"]

# key: another value than the guide's, and what answers it; "" where it changes what the trainer computes with.
OTHER: dict[str, tuple[Any, str]] = {
    "actor_rollout_ref.hybrid_engine": (False, "E1886"),
    f"{MODEL}.external_lib": ("json", ""),
    f"{MODEL}.override_config": ({"rope_parameters": {"rope_theta": 5.0}}, ""),
    f"{MODEL}.enable_gradient_checkpointing": (False, ""),
    f"{MODEL}.use_remove_padding": (False, "W1902"),
    f"{MODEL}.use_fused_kernels": (True, "accepted"),
    f"{MODEL}.fused_kernel_options.impl_backend": ("triton", "W1902"),
    f"{ACTOR}.strategy": ("fsdp2", "the same"),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": (3, ""),
    f"{ACTOR}.use_dynamic_bsz": (False, ""),
    f"{ACTOR}.ppo_max_token_len_per_gpu": (999, ""),
    f"{ACTOR}.grad_clip": (0.5, ""),
    f"{ACTOR}.ppo_epochs": (2, ""),
    f"{ACTOR}.shuffle": (True, ""),
    f"{ACTOR}.ulysses_sequence_parallel_size": (2, ""),
    f"{ACTOR}.entropy_from_logits_with_chunking": (True, "accepted"),
    f"{ACTOR}.entropy_checkpointing": (True, "accepted"),
    f"{ACTOR}.checkpoint.load_contents": (["model"], ""),
    f"{ACTOR}.checkpoint.save_contents": (CONTENTS, ""),
    f"{ACTOR}.optim.lr": (1e-3, "E1815"),
    f"{ACTOR}.optim.lr_warmup_steps_ratio": (0.5, ""),
    f"{ACTOR}.optim.warmup_style": ("cosine", ""),
    f"{ACTOR}.optim.total_training_steps": (7, "E1816"),
    f"{ACTOR}.fsdp_config.wrap_policy.min_num_params": (10, ""),
    f"{ACTOR}.fsdp_config.param_offload": (True, ""),
    f"{ACTOR}.fsdp_config.optimizer_offload": (True, ""),
    f"{ACTOR}.fsdp_config.fsdp_size": (1, ""),
    f"{ACTOR}.fsdp_config.forward_prefetch": (True, ""),
    f"{REF}.fsdp_config.param_offload": (True, ""),
    f"{REF}.fsdp_config.wrap_policy.min_num_params": (10, ""),
    f"{REF}.fsdp_config.fsdp_size": (1, ""),
    f"{REF}.fsdp_config.forward_prefetch": (True, ""),
    f"{REF}.log_prob_micro_batch_size_per_gpu": (3, ""),
    f"{REF}.log_prob_use_dynamic_bsz": (False, ""),
    f"{REF}.log_prob_max_token_len_per_gpu": (999, ""),
    f"{REF}.ulysses_sequence_parallel_size": (2, "E1837"),
    f"{REF}.entropy_from_logits_with_chunking": (True, "accepted"),
    f"{REF}.entropy_checkpointing": (True, "accepted"),
    "critic.strategy": ("fsdp2", "the same"),
    "critic.optim.lr": (1e-3, ""),
    "critic.optim.lr_warmup_steps_ratio": (0.5, ""),
    "critic.optim.warmup_style": ("cosine", ""),
    "critic.optim.total_training_steps": (7, "E1816"),
    "critic.model.override_config": ({"rope_parameters": {"rope_theta": 5.0}}, ""),
    "critic.model.external_lib": ("json", ""),
    "critic.model.enable_gradient_checkpointing": (False, ""),
    "critic.model.use_remove_padding": (True, "accepted"),
    "critic.model.fsdp_config.param_offload": (True, ""),
    "critic.model.fsdp_config.optimizer_offload": (True, ""),
    "critic.model.fsdp_config.wrap_policy.min_num_params": (10, ""),
    "critic.model.fsdp_config.fsdp_size": (1, ""),
    "critic.model.fsdp_config.forward_prefetch": (True, ""),
    "critic.ppo_micro_batch_size_per_gpu": (3, ""),
    "critic.forward_micro_batch_size_per_gpu": (3, ""),
    "critic.use_dynamic_bsz": (False, ""),
    "critic.ppo_max_token_len_per_gpu": (999, ""),
    "critic.forward_max_token_len_per_gpu": (999, ""),
    "critic.ulysses_sequence_parallel_size": (2, "E1837"),
    "critic.ppo_epochs": (2, ""),
    "critic.shuffle": (True, ""),
    "critic.grad_clip": (0.5, ""),
    "critic.cliprange_value": (0.2, ""),
    "trainer.balance_batch": (False, ""),
    "trainer.resume_mode": ("disable", ""),
    "trainer.resume_from_path": ("old/global_step_3", "E1847"),
    "trainer.critic_warmup": (2, ""),
    "trainer.default_hdfs_dir": ("hdfs://a", "E1816"),
    "trainer.remove_previous_ckpt_in_save": (True, "W1301"),
    "trainer.del_local_ckpt_after_load": (True, "W1902"),
    "trainer.max_actor_ckpt_to_keep": (3, ""),
    "trainer.max_critic_ckpt_to_keep": (3, "W1816"),
}
# These sizes count only with the other way to make micro-batches.
BY_ROWS = {
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": f"{ACTOR}.use_dynamic_bsz",
    f"{REF}.log_prob_micro_batch_size_per_gpu": f"{REF}.log_prob_use_dynamic_bsz",
    "critic.ppo_micro_batch_size_per_gpu": "critic.use_dynamic_bsz",
    "critic.forward_micro_batch_size_per_gpu": "critic.use_dynamic_bsz",
}


def keys_of_the_guide() -> list[str]:
    """Return the keys of the published file; a list is one value."""
    tree = read_file(DATA / "train_guide.yaml")
    return list(dict.fromkeys(dotted(p if not isinstance(p[-1], int) else p[:-1]) for p in tree.leaves()))


def effects(config: Config) -> str:
    """Return all that policy, reference and critic are made from and trained with."""
    value, tree = critic.critic_of(config), config.trainer.trainer_config
    policy = tree.actor_rollout_ref.model
    return repr(
        [
            settings.actor_settings(config), settings.reference_settings(config), critic.critic_settings(config),
            shard_settings.actor_options(config), shard_settings.reference_options(config),
            shard_settings.critic_options(config), shard_settings.actor_switches(config),
            shard_settings.critic_switches(config), tree.actor_rollout_ref.ref.fsdp_config.param_offload,
            settings.policy_lr_schedule(config, 9), critic.critic_lr_schedule(config, 9), critic.critic_warmup(config),
            is_balanced(config), config.trainer.ulysses_sequence_parallel_size, actor_of(config).checkpoint,
            config.continue_from_checkpoint, config.trainer.max_checkpoints_to_keep,
            [(each.enable_gradient_checkpointing, each.external_lib, each.override_config)
             for each in (policy, value.model)],
        ]
    )  # fmt: skip


def test_the_table_has_every_key_of_the_guide() -> None:
    assert sorted(OTHER) == sorted(keys_of_the_guide())


@pytest.mark.difference(
    "`entropy_from_logits_with_chunking`, `entropy_checkpointing`",
    "Critic without padding",
    "Keys of a veRL section that were dropped in newer versions",
)
@pytest.mark.parametrize("key", OTHER)
def test_another_value_changes_the_training_or_is_answered(examined: Examine, tmp_path: Path, key: str) -> None:
    value, answer = OTHER[key]
    others = (f"{TREE}.{BY_ROWS[key]}=false",) if key in BY_ROWS else ()
    text = BASE.replace("optimizer: {lr: 0.001}", "optimizer: {lr: 0.002}") if answer == "E1815" else BASE
    plain, none = examined(text, *others)
    plan, found = examined(text, f"{TREE}.{key}={json.dumps(value)}", *others)
    assert none == []
    if answer[:1] in ("E", "W"):
        assert [p.code for p in found] == [answer] and found[0].suggestion, found
        assert found[0].key == f"{TREE}.{key}" and "not available yet" not in found[0].message
        return
    assert found == []
    same = effects(plan.stages[0].config) == effects(plain.stages[0].config)
    if answer == "accepted":  # the schema says that it changes nothing, and why
        helps = {dotted(path): field.description or "" for path, field in fields_of(Root)}
        assert same and ("Accepted" in helps[f"{TREE}.{key}"] or "no entropy" in helps[f"{TREE}.{key}"])
    else:
        assert same == (answer == "the same")


def test_the_section_means_the_same_in_a_file_of_its_own(examined: Examine, tmp_path: Path) -> None:
    written = [f"{TREE}.{key}={json.dumps(value)}" for key, (value, answer) in OTHER.items() if not answer]
    tree: dict[str, Any] = {}
    for key, (value, answer) in OTHER.items():
        *above, last = key.split(".")
        section = tree
        for part in above if not answer else ():
            section = section.setdefault(part, {})
        section |= {} if answer else {last: value}
    (tmp_path / "verl.yaml").write_text(json.dumps(tree), encoding="utf-8")
    inline, from_file = examined(BASE, *written), examined(BASE, "trainer.trainer_config_path=verl.yaml")
    assert [p.render() for p in inline[1] + from_file[1] if p.is_error] == []
    assert effects(inline[0].stages[0].config) == effects(from_file[0].stages[0].config)


@pytest.mark.parametrize(
    "written", ["${oc.env:NO_SUCH_VARIABLE,verl.yaml}", "${oc.env:VERL_FILE}.yaml", "${name}.yaml"]
)
def test_the_name_of_that_file_may_be_an_interpolation(
    examined: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """And the file may refer to the rest of the configuration, as it may where it stands inline."""
    text = "actor_rollout_ref: {actor: {ppo_epochs: 2, grad_clip: '${oc.env:CLIP,0.3}'}}"
    (tmp_path / "verl.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("VERL_FILE", "verl")
    plan, problems = examined(BASE, "name=verl", f"trainer.trainer_config_path={written}")
    assert [p.render() for p in problems if p.is_error] == []
    actor = plan.stages[0].config.trainer.trainer_config.actor_rollout_ref.actor
    assert (actor.ppo_epochs, actor.grad_clip) == (2, 0.3)


def test_a_name_of_that_file_that_cannot_be_resolved_is_told_once(examined: Examine) -> None:
    _, problems = examined(BASE, "trainer.trainer_config_path=${oc.env:NO_SUCH_VARIABLE}")
    assert [(p.code, p.key) for p in problems if p.is_error] == [("E1401", "trainer.trainer_config_path")]


REFUSED = [
    ((f"{TREE}.{MODEL}.override_config={{attn_implementation: eager}}",), "E1885", "the trainer's own"),
    ((f"{TREE}.{MODEL}.override_config={{attention_dropout: 0.1}}",), "E1885", "differ from pass to pass"),
    ((f"{TREE}.critic.model.override_config={{dtype: bfloat16}}",), "E1885", "data type of stored files"),
    ((f"{TREE}.critic.model.fused_kernel_options.impl_backend=liger",), "W1902", "no other kernels"),
    ((f"{TREE}.{ACTOR}.checkpoint.load_contents={json.dumps(CONTENTS)}",
      f"{TREE}.{ACTOR}.checkpoint.save_contents={json.dumps(CONTENTS)}"), "W1887", "written for others to read"),
    (("trainer.use_remove_padding=false",), "W1902", "packed without padding"),
    (("trainer.grad_offload=true",), "W1902", "freed at the end of each optimizer step"),
    ((f"{TREE}.{ACTOR}.fsdp_config.grad_offload=true",), "W1902", "freed at the end of each optimizer step"),
    (("trainer.offload_policy=true", "trainer.param_offload=true"), "W1902", "also during a step"),
]  # fmt: skip


def number_types() -> list[str]:
    """Return every key of actor and critic that takes a data type, from the schema."""
    fields = ((".".join(map(str, path)), field) for path, field in fields_of(Root))
    found = [key for key, field in fields if "float16" in str(field.annotation)]
    return [key for key in found if key.startswith((f"{TREE}.{ACTOR}.", f"{TREE}.critic."))]


@pytest.mark.difference("float16 in training (`fsdp_config.dtype`, `mixed_precision`)")
@pytest.mark.parametrize("value", ["float16", "fp16"])
def test_no_gradient_is_computed_or_summed_in_float16(examined: Examine, value: str) -> None:
    keys = number_types()
    assert f"{TREE}.{ACTOR}.fsdp_config.mixed_precision.reduce_dtype" in keys and f"{TREE}.critic.fsdp.dtype" in keys
    for key in keys:
        found = [p for p in examined(BASE, f"{key}={value}")[1] if p.is_error]
        assert found and found[0].suggestion, f"{key} is taken"
        is_honoured = not key.endswith(("model_dtype", "buffer_dtype", "megatron.dtype"))
        assert (found[0].code == "E1886") == is_honoured, f"{key}: {found[0].code}"
        if is_honoured:
            assert "small ones would be lost" in found[0].message and "bfloat16 or float32" in found[0].suggestion
    assert examined(BASE, f"explorer.rollout_model.dtype={value}", "explorer.rollout_model.engine_type=torch")[0]


@pytest.mark.difference("Keys of a veRL section that were dropped in newer versions")
@pytest.mark.parametrize(("overrides", "code", "words"), REFUSED)
def test_refusals_say_why_and_what_to_write(
    examined: Examine, overrides: tuple[str, ...], code: str, words: str
) -> None:
    found = examined(BASE, *overrides)[1]
    assert {p.code for p in found} == {code} and words in found[0].message and found[0].suggestion


def test_one_switch_serves_all_models_and_each_may_differ(examined: Examine) -> None:
    def switches(*overrides: str) -> list[bool]:
        config = examined(BASE, *overrides)[0].stages[0].config
        made = (shard_settings.actor_options, shard_settings.reference_options, shard_settings.critic_options)
        of_critic = shard_settings.critic_switches(config)
        return [options(config).offload_policy for options in made] + [of_critic.params, of_critic.optimizer]

    assert switches() == [False, False, False, False, False]
    assert switches("trainer.offload_policy=true") == [True, True, True, False, False]
    key = f"{TREE}.critic.model.fsdp_config"
    assert switches("trainer.offload_policy=true", f"{key}.offload_policy=false") == [True, True, False, False, False]
    assert switches("trainer.param_offload=true", f"{key}.optimizer_offload=true") == [False, False, False, True, True]
    assert switches("trainer.param_offload=true", f"{key}.param_offload=false") == [False] * 5
    assert switches(f"{TREE}.critic.fsdp={{param_offload: true}}") == [False, False, False, True, False]
