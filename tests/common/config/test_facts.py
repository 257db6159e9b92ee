"""What the schema says at its fields is read where it is meant: of a key, of a section, of a section at one place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from trinity.common.config import Catalogue
from trinity.common.config.base import LATER, Facts, Support, facts_of
from trinity.common.config.config import Config
from trinity.common.config.keys import key_at, key_named, path_of
from trinity.common.config.resolution import Resolution
from trinity.common.config.schema_index import annotation_at, facts_at, field_at, fields_of
from trinity.common.config.tree import Tree, dotted

VERL = "trainer.trainer_config"
POLICY, REFERENCE = f"{VERL}.actor_rollout_ref.actor", f"{VERL}.actor_rollout_ref.ref"


def test_what_holds_at_one_place_is_said_of_keys_that_exist() -> None:
    paths = {dotted(path) for path, _ in fields_of(Config)}
    said = {
        dotted((*path, *([name] if not name.startswith("*.") else ["*", name[2:]])))
        for path, field in fields_of(Config)
        for name in facts_of(field).at
    }
    assert len(said) > 20
    assert said <= paths


def test_one_section_has_other_facts_at_other_places() -> None:
    def support(*path: str) -> Support | None:
        return facts_at((*VERL.split("."), *path))[1].support

    policy = support("actor_rollout_ref", "actor", "fsdp_config", "dtype")
    assert policy is not None and "float32" in policy.only and policy.why
    assert support("critic", "model", "fsdp_config", "dtype") == policy
    assert support("actor_rollout_ref", "ref", "fsdp_config", "dtype") == LATER
    assert support("actor_rollout_ref", "ref", "fsdp_config", "param_offload") is None
    assert support("reward_model", "model", "fsdp_config", "param_offload") == LATER


def test_what_is_said_of_a_section_counts_for_its_keys() -> None:
    place, facts = facts_at(("model", "rope_scaling", "factor"))
    assert place == ("model", "rope_scaling") and facts.support is not None


@pytest.mark.parametrize("key", ["name", "path", "lora_rank"])
def test_no_key_of_an_adapter_of_an_auxiliary_model_is_ignored(examined: Examine, key: str) -> None:
    value = 8 if key == "lora_rank" else "a"
    model = f"{{model_path: m, lora_configs: [{{{key}: {value}}}]}}"
    problems = examined(MINIMAL, f"explorer.auxiliary_models=[{model}]")[1]
    assert [p.key for p in problems if p.code == "E1900"] == ["explorer.auxiliary_models[0].lora_configs"]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("trainer.use_remove_padding=false",), "trainer.use_remove_padding"),
        (
            ("trainer.use_remove_padding=true", f"{VERL}.actor_rollout_ref.model.use_remove_padding=false"),
            f"{VERL}.actor_rollout_ref.model.use_remove_padding",
        ),
        ((f"{POLICY}.fsdp_config.grad_offload=true",), f"{POLICY}.fsdp_config.grad_offload"),
    ],
)
def test_the_key_that_was_written_with_an_idle_value_is_named(
    examined: Examine, overrides: tuple[str, ...], key: str
) -> None:
    assert [p.key for p in examined(MINIMAL, *overrides)[1] if p.code == "W1902"] == [key]


PPO = "algorithm: {algorithm_type: ppo}\n"


def _resolved(examined: Examine, *overrides: str) -> Resolution:
    plan, problems = examined(MINIMAL + PPO, *overrides)
    assert not [p.render() for p in problems if p.is_error]
    stage = plan.stages[0]
    return Resolution(stage.config, stage.tree, Catalogue(), Path())


def _said() -> list[tuple[str, Facts]]:
    found = (facts_at(path) for path, _ in fields_of(Config) if path[0] != "stages" and "*" not in path)
    return [(dotted(path), facts) for path, facts in found]


def test_what_a_key_follows_is_a_key() -> None:
    sources = {(key, source) for key, f in _said() for source in (f.mirrors, f.default_from, f.set_from) if source}
    assert len(sources) > 80
    assert [(key, source) for key, source in sources if annotation_at(path_of(key_named(source))) is None] == []


def test_a_key_that_is_renamed_or_idle_names_a_key() -> None:
    found = [(key, facts.renamed.new) for key, facts in _said() if facts.renamed]
    found += [(key, idle.key) for key, facts in _said() for idle in facts.idle_with]
    assert len(found) > 25
    places = [name.removeprefix(".") if "." in name else f"{key.rpartition('.')[0]}.{name}" for key, name in found]
    assert [name for name in places if annotation_at(path_of(key_named(name))) is None] == []


def test_every_value_that_makes_a_key_idle_or_not_is_met_as_it_is_loaded() -> None:
    """A value is compared with what the rules see: a list where the schema says tuple, a word as it is read."""
    found = [(key, idle) for key, facts in _said() for idle in facts.idle_with]
    assert len(found) > 25
    for key, idle in found:
        other = path_of(
            key_named(idle.key.removeprefix(".") if "." in idle.key else f"{key.rpartition('.')[0]}.{idle.key}")
        )
        assert idle.values or idle.but, key
        for value in (*idle.values, *idle.but):
            tree: object = value
            for name in reversed(other):
                tree = {name: tree}
            typed = Config.model_validate(tree)
            resolution = Resolution(typed, Tree(tree), Catalogue(), Path())
            assert idle.holds(resolution.get(key_at(other))) is (value in idle.values), (key, value)


def test_tasks_in_place_of_dropped_ones_are_idle_where_nothing_drops(examined: Examine) -> None:
    pipeline = "data_processor.experience_pipeline"
    refill = f"{pipeline}.max_refill_batches"
    for operators, warned in (("[]", [refill]), ("[{name: reward_filter}]", [])):
        problems = examined(MINIMAL, f"{refill}=3", f"{pipeline}.operators={operators}")[1]
        assert [p.key for p in problems if p.code == "W1902"] == warned, operators


def test_a_fallback_is_told_and_holds_where_nothing_else_is_written(examined: Examine) -> None:
    resolution = _resolved(examined)
    fallbacks = {key: facts.fallback for key, facts in _said() if facts.fallback is not None}
    assert fallbacks["algorithm.rollout_correction.rollout_is_threshold"] == "2.0"
    off = ("algorithm.rollout_correction.", f"{VERL}.reward_model.", "checkpoint_root_dir")  # this one is made absolute
    read = {key: value for key, value in fallbacks.items() if not key.startswith(off)}
    assert len(read) == 4 and {key: resolution.get(key_named(key)) for key in read} == read
    field = field_at(path_of(key_named(f"{VERL}.critic.ppo_micro_batch_size_per_gpu")))
    assert field is not None and str(field.description).endswith("; null: 8.")


def test_the_key_that_verl_calls_otherwise_is_named(examined: Examine) -> None:
    names = [(name, facts.set_from or key) for key, facts in _said() for name in facts.verl_names]
    assert len(names) > 8
    for name, key in names:
        (found,) = [p for p in examined(MINIMAL + f"{name}: 1\n")[1] if p.code == "E1205"]
        assert found.suggestion == f"write `{key}`"


def test_of_two_written_names_the_newer_counts(examined: Examine) -> None:
    older, newer = f"{POLICY}.ppo_micro_batch_size", f"{POLICY}.ppo_micro_batch_size_per_gpu"
    assert _resolved(examined, f"{older}=2").get(key_named(newer)) == 2
    assert _resolved(examined, f"{older}=2", f"{newer}=4").get(key_named(newer)) == 4


def test_a_key_that_was_left_out_has_the_value_of_the_one_that_it_follows(examined: Examine) -> None:
    resolution = _resolved(examined)
    follows = [(key, facts.default_from, facts) for key, facts in _said() if facts.default_from]
    assert len(follows) > 40
    unused = (f"{VERL}.critic.fsdp.", "buffer.explorer_input.taskset.task_selector.")
    others = [(key, facts, source) for key, source, facts in follows if not key.startswith(unused)]
    values = {key: resolution.get(key_named(key)) for key, _, _ in others}
    assert values == {key: facts.value_from(resolution.get(key_named(source))) for key, facts, source in others}


def test_what_a_key_has_of_another_may_be_what_that_means_for_it(examined: Examine) -> None:
    for function, has_term in (("k2", True), ("none", False)):
        values = _resolved(examined, f"algorithm.kl_loss_fn={function}").config.trainer.trainer_config
        assert values.actor_rollout_ref.actor.use_kl_loss is has_term


NEW_VALUES = {
    "trainer_strategy": "fsdp2", "lr_scheduler_type": "cosine", "betas": [0.5, 0.5], "max_token_len_per_gpu": 512,
    "lr_warmup_steps": 3, "critic_warmup": 3, "ulysses_sequence_parallel_size": 2,
}  # fmt: skip


def test_both_names_of_a_value_hold_it_whichever_was_written(examined: Examine) -> None:
    pairs = [(key, facts.mirrors) for key, facts in _said() if facts.mirrors and facts.support is None]
    assert len(pairs) > 15
    before = _resolved(examined)
    for detailed, plain in pairs:
        old = before.get(key_named(plain))
        value = NEW_VALUES.get(plain.rpartition(".")[2], not old if isinstance(old, bool) else 0.25)
        for written in (detailed, plain):
            after = _resolved(examined, "trainer.num_workers=2", f"{written}={json.dumps(value)}")
            assert after.get(key_named(detailed)) == after.get(key_named(plain)) == value != old, written
