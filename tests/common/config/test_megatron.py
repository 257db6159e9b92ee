"""Strategy megatron: sizes under their two names, what is not done, and by how many ranks a model can be divided."""

from __future__ import annotations

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from trinity.trainer.verl.settings import tensor_size

MEGATRON = ("trainer.trainer_strategy=megatron", "trainer.num_workers=4")
SECTION = "trainer.megatron"
TREE = "trainer.trainer_config"
ACTOR = f"{TREE}.actor_rollout_ref.actor"
TENSOR = f"{SECTION}.tensor_model_parallel_size"
TRANSFORMER = f"{ACTOR}.megatron.override_transformer_config"
RECOMPUTES = f"{TREE}.actor_rollout_ref.model.enable_gradient_checkpointing"
PPO = ("algorithm.algorithm_type=ppo", "algorithm.advantage_fn=ppo")
TWO = (*MEGATRON, f"{TENSOR}=2")
ROWS = {
    "workers": ((*MEGATRON, f"{TENSOR}=3"), "E1848", TENSOR, "write `trainer.num_workers: 3`"),
    "one worker": (("trainer.trainer_strategy=megatron", f"{TENSOR}=2"), "E1848", TENSOR, "trainer.num_workers: 2"),
    "by the other name": (
        (*MEGATRON, f"{ACTOR}.megatron.tensor_model_parallel_size=8"),
        "E1848", f"{ACTOR}.megatron.tensor_model_parallel_size", "num_workers",
    ),
    "without the strategy": (("trainer.num_workers=2", f"{TENSOR}=2"), "E1859", TENSOR, "trainer_strategy: megatron"),
    "veRL's section without the strategy": (
        (f"{ACTOR}.megatron.sequence_parallel=false",), "E1859", f"{ACTOR}.megatron.sequence_parallel", "or remove it",
    ),
    "reference": (
        (*TWO, f"{TREE}.actor_rollout_ref.ref.megatron.tensor_model_parallel_size=4"),
        "E1858", f"{TREE}.actor_rollout_ref.ref.megatron.tensor_model_parallel_size", "remove it",
    ),
    "reference's strategy": (
        (*TWO, f"{TREE}.actor_rollout_ref.ref.strategy=fsdp"),
        "E1858", f"{TREE}.actor_rollout_ref.ref.strategy", "remove it",
    ),
    "critic's strategy": ((*TWO, *PPO, f"{TREE}.critic.strategy=fsdp2"), "E1858", f"{TREE}.critic.strategy", "remove"),
    "experts": (
        (*TWO, f"{SECTION}.expert_model_parallel_size=2"), "E1857", f"{SECTION}.expert_model_parallel_size", "write 1",
    ),
    "context": (
        (*TWO, f"{SECTION}.context_parallel_size=2"),
        "E1857", f"{SECTION}.context_parallel_size", "ulysses_sequence_parallel_size",
    ),
    "interleaving": (
        (*TWO, f"{SECTION}.virtual_pipeline_model_parallel_size=2"),
        "E1857", f"{SECTION}.virtual_pipeline_model_parallel_size", "remove it",
    ),
    "stages": (
        (*MEGATRON, f"{SECTION}.pipeline_model_parallel_size=3"),
        "E1848", f"{SECTION}.pipeline_model_parallel_size", "write `trainer.num_workers: 3`",
    ),
    "stages of matrices": ((*TWO, f"{SECTION}.pipeline_model_parallel_size=4"), "E1848", TENSOR, "num_workers: 8"),
    "Ulysses": (
        (*TWO, "trainer.ulysses_sequence_parallel_size=2"),
        "E1857", "trainer.ulysses_sequence_parallel_size", "keep one",
    ),
    "adapter": ((*TWO, "model.lora_configs=[{lora_rank: 4}]"), "E1857", "model.lora_configs", "fsdp2"),
    "Megatron's transformer": (
        (*TWO, f"{TRANSFORMER}={{recompute_granularity: selective}}"),
        "E1857", f"{TRANSFORMER}.recompute_granularity", "enable_gradient_checkpointing",
    ),
    "recomputation": (
        (*TWO, f"{TRANSFORMER}={{recompute_granularity: full}}", f"{RECOMPUTES}=false"),
        "E1815", f"{TRANSFORMER}.recompute_granularity", f"keep `{RECOMPUTES}`",
    ),
    "Megatron's checkpoints": (
        (*TWO, f"{ACTOR}.megatron.use_dist_checkpointing=true"),
        "E1857", f"{ACTOR}.megatron.use_dist_checkpointing", "model.model_path",
    ),
    "two switches": (
        (*TWO, f"{ACTOR}.megatron.param_offload=true", "trainer.param_offload=false"),
        "E1815", f"{ACTOR}.megatron.param_offload", "keep `trainer.param_offload`",
    ),
    "the critic's switch": (
        (*TWO, *PPO, f"{TREE}.critic.megatron.param_offload=false", "trainer.param_offload=true"),
        "E1815", f"{TREE}.critic.megatron.param_offload", "critic.model.fsdp_config.param_offload",
    ),
    "data type": ((*TWO, f"{ACTOR}.megatron.dtype=float16"), "E1857", f"{ACTOR}.megatron.dtype", "fsdp_config.dtype"),
    "shard groups": (
        (*TWO, f"{ACTOR}.fsdp_config.fsdp_size=1", "trainer.num_workers=12", f"{ACTOR}.fsdp_config.fsdp_size=4"),
        "E1838", f"{ACTOR}.fsdp_config.fsdp_size", "use one of 1, 2, 3, 6",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("overrides", "code", "key", "way_out"), ROWS.values(), ids=ROWS)
def test_what_is_not_done_is_refused_by_name_with_a_way_out(
    examined: Examine, overrides: tuple[str, ...], code: str, key: str, way_out: str
) -> None:
    problems = examined(MINIMAL, *overrides)[1]
    found = [p for p in problems if p.code == code and p.key == key]
    assert [p.severity for p in found] == ["error"] and way_out in (found[0].suggestion or ""), problems
    assert not [p for p in problems if p.code == "E1900"]


def test_sizes_have_one_value_under_both_names_and_offload_goes_to_its_own_key(examined: Examine) -> None:
    written = {"tensor_model_parallel_size": 2, "sequence_parallel": False, "param_offload": True, "use_mbridge": True}
    plan, problems = examined(
        MINIMAL, *MEGATRON, *(f"{ACTOR}.megatron.{name}={str(value).lower()}" for name, value in written.items())
    )
    assert [p.render() for p in problems if p.is_error] == []
    trainer = plan.stages[0].config.trainer
    assert (trainer.megatron.tensor_model_parallel_size, trainer.megatron.sequence_parallel) == (2, False)
    assert trainer.param_offload and trainer.trainer_config.actor_rollout_ref.actor.fsdp_config.param_offload
    assert tensor_size(plan.stages[0].config) == 2
    plan, problems = examined(MINIMAL, *TWO, *PPO, f"{TREE}.critic.megatron.optimizer_offload=true")
    assert [p.render() for p in problems if p.is_error] == []
    trainer = plan.stages[0].config.trainer
    assert trainer.trainer_config.critic.model.fsdp_config.optimizer_offload and not trainer.optimizer_offload
    plan, problems = examined(MINIMAL, *MEGATRON, f"{SECTION}.context_parallel_size=1")
    assert [p.render() for p in problems if p.is_error] == [] and tensor_size(plan.stages[0].config) == 1


def test_sections_as_published_for_policy_reference_and_critic_are_taken(examined: Examine) -> None:
    layers = "{recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}"
    section = (
        "{tensor_model_parallel_size: 2, pipeline_model_parallel_size: 1, expert_model_parallel_size: 1, "
        "param_offload: false, grad_offload: false, optimizer_offload: false, use_mbridge: false, "
        f"use_dist_checkpointing: false, dist_checkpointing_path: null, override_transformer_config: {layers}}}"
    )
    places = (ACTOR, f"{TREE}.actor_rollout_ref.ref", f"{TREE}.critic")
    strategies = [f"{place}.strategy=megatron" for place in places if "ref.ref" not in place]
    plan, problems = examined(
        MINIMAL, *PPO, "trainer.num_workers=4", *strategies, *(f"{place}.megatron={section}" for place in places)
    )
    assert [p.render() for p in problems] == []
    config = plan.stages[0].config
    assert config.trainer.trainer_strategy == "megatron" and tensor_size(config) == 2
    tree = config.trainer.trainer_config
    assert (
        tree.actor_rollout_ref.model.enable_gradient_checkpointing and tree.critic.model.enable_gradient_checkpointing
    )


def test_the_workers_are_the_gpus_that_the_engines_leave(examined: Examine) -> None:
    keys = ("trainer.trainer_strategy=megatron", f"{TENSOR}=2", "cluster.gpu_per_node=8",
            "explorer.rollout_model.engine_type=vllm")  # fmt: skip
    sizes = {2: [], 3: ["E1848"], 8: ["E1808"]}
    for engines, codes in sizes.items():
        problems = examined(MINIMAL, *keys, f"explorer.rollout_model.engine_num={engines}")[1]
        assert [p.code for p in problems if p.is_error] == codes, [p.render() for p in problems]


@pytest.mark.parametrize("mode", ["explore", "bench"])
def test_a_part_that_trains_nothing_divides_nothing(examined: Examine, mode: str) -> None:
    tests = "buffer.explorer_input.eval_tasksets=[{name: e, path: e.jsonl, default_workflow_type: math_workflow}]"
    sizes = ("trainer.trainer_strategy=megatron", f"{TENSOR}=4")
    assert not [p.render() for p in examined(MINIMAL, *sizes, f"mode={mode}", tests)[1] if p.is_error]
    plain = f"mode={mode}", tests, "trainer.ulysses_sequence_parallel_size=4"
    assert not [p.render() for p in examined(MINIMAL, *plain)[1] if p.is_error]


@pytest.mark.parametrize("name", ["tensor_model_parallel_size", "pipeline_model_parallel_size"])
def test_a_size_that_is_none_is_refused_under_its_other_name_too(examined: Examine, name: str) -> None:
    problems = examined(MINIMAL, "trainer.trainer_strategy=megatron", f"{ACTOR}.megatron.{name}=0")[1]
    assert [(p.code, p.key) for p in problems] == [("E1302", f"{ACTOR}.megatron.{name}")]
