"""Differences of training that no test of a part shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.common.config.conftest import MINIMAL
from tests.tiny import tiny_model
from tests.trainer import rank_calls
from tests.trainer.conftest import make_config, make_experiences, model_path, pool
from tests.trainer.rank_pool import RankPool
from tests.trainer.test_lora import LORA, adapted, plain_copy
from tests.trainer.test_ranks import tree, with_actor
from tests.trainer.test_update import TERMS, worker
from trinity.catalogue import BUILT_IN
from trinity.common.config import Config, examine
from trinity.trainer.batch import collate
from trinity.trainer.verl import logprob
from trinity.trainer.verl.decoder import HFPackedDecoder, make_decoder
from trinity.trainer.verl.hf_attention import computing
from trinity.trainer.verl.output_layer import LogitRule, OutputLayer
from trinity.trainer.verl.packing import pack
from trinity.trainer.verl.parallel.ranks import Ranks

__all__ = ["make_config", "model_path", "pool"]  # fixtures of the trainer's tests

Maker = Callable[..., Config]


@pytest.mark.difference("`algorithm.algorithm_type`, if it is not written")
def test_the_algorithm_is_grpo_where_none_is_written(tmp_path: Path) -> None:
    assert "algorithm" not in MINIMAL
    (tmp_path / "run.yaml").write_text(MINIMAL, encoding="utf-8")
    plan, problems = examine(tmp_path / "run.yaml", (), catalogue=BUILT_IN, cwd=tmp_path, schema_only=True)
    config = plan.stages[0].config
    assert not [p.render() for p in problems if p.is_error]
    assert (config.algorithm.algorithm_type, config.algorithm.advantage_fn) == ("grpo", "grpo")
    assert not config.trainer.trainer_config.critic.enable


def gathered_in_a_pass(ranks: Ranks, config: dict[str, Any]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and type of the parameters of a layer while it computes."""
    from torch.distributed.fsdp import FSDPModule

    made = rank_calls.worker(ranks, config)
    decoder = made.actor.decoder
    assert isinstance(decoder, nn.Module)
    blocks = [module for module in decoder.modules() if isinstance(module, FSDPModule) and module is not decoder]
    seen: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}

    def look(module: Any, _: Any) -> None:
        seen.update({name: (tuple(p.shape), p.dtype) for name, p in module.named_parameters()})

    assert isinstance(blocks[0], nn.Module)
    blocks[0].register_forward_pre_hook(look)
    made.actor.compute_log_prob(collate(make_experiences(1)))
    return seen


@pytest.mark.difference("`use_orig_params`, `fsdp` and `fsdp2`")
def test_every_kind_of_sharding_gathers_whole_shapes_in_float32(
    make_config: Maker, model_path: Path, pool: RankPool
) -> None:
    own = AutoModelForCausalLM.from_pretrained(model_path).model.layers[0].named_parameters()
    shapes = sorted((tuple(parameter.shape), torch.float32) for _, parameter in own)
    section = with_actor(dtype="bfloat16")["trainer_config"]["actor_rollout_ref"]["actor"]
    for strategy in ("fsdp", "fsdp2"):
        for flag in (False, True):
            actor = {"strategy": strategy, "fsdp_config": section["fsdp_config"] | {"use_orig_params": flag}}
            trainer = {"trainer_config": {"actor_rollout_ref": {"actor": actor}}}
            found = pool.run(2, gathered_in_a_pass, tree(make_config(trainer=trainer)))[0]
            assert sorted(found.values()) == shapes


@pytest.mark.difference("`entropy_from_logits_with_chunking`, `entropy_checkpointing`")
def test_logits_of_several_pieces_are_not_kept_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, vocabulary = 12, 50
    monkeypatch.setitem(logprob.CHUNK_BYTES, "cpu", 4 * vocabulary * 5)
    hidden = torch.randn(rows, 8, requires_grad=True)
    weight = torch.randn(vocabulary, 8, requires_grad=True)
    layer = OutputLayer(weight.detach(), None, weight, LogitRule())
    computed: list[int] = []
    kept: list[int] = []
    of_layer = layer.logits

    def counted(part: Tensor) -> Tensor:
        computed.append(len(part))
        return of_layer(part)

    def pack_one(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    object.__setattr__(layer, "logits", counted)
    with torch.autograd.graph.saved_tensors_hooks(pack_one, lambda tensor: tensor):
        scores = logprob.logprob_and_entropy(hidden, layer, torch.arange(rows), with_entropy=True)
    assert kept and max(kept) < rows * vocabulary
    (scores[0].sum() + scores[1].sum()).backward()
    assert computed[-3:] == [5, 5, 2]


@pytest.mark.difference("All weights outside of a `'low_high'` band")
def test_a_step_whose_weights_are_all_outside_learns_nothing_and_says_so(make_config: Maker) -> None:
    correction = {"rollout_is": "token", "rollout_is_threshold": "0.5_2"}
    algorithm = {"policy_loss_fn": "gpg", "bypass_old_logprobs": False, "rollout_correction": correction}
    algorithm["optimizer"] = {"weight_decay": 0.0}
    made, experiences = worker(make_config(algorithm=algorithm)), make_experiences(1)
    old = made.actor.compute_log_prob(collate(experiences))
    for row, exp in enumerate(experiences):
        exp.logprobs = (old[row] - 3.0)[: exp.response_length]
    before = {name: tensor.clone() for name, tensor in made.weights().items()}
    metrics = made.train_step(experiences, 1)
    assert metrics["actor/grad_norm"] == 0.0 and metrics["rollout_corr/rollout_is_oob_ratio"] == 1.0
    assert metrics["actor/skipped_steps"] == 0.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.weights().items())


@pytest.mark.difference("`clipb`, `clipv`")
@pytest.mark.parametrize(("name", "args"), [("clipb", {"mu": 0.01}), ("clipv", {"mu": 0.01, "max_frac": 0.9})])
def test_a_clipped_token_counts_in_the_mean(make_config: Maker, name: str, args: dict[str, float]) -> None:
    algorithm = {"advantage_fn": name, "advantage_fn_args": args, "repeat_times": 4, "bypass_old_logprobs": False}
    made, experiences = worker(make_config(algorithm=algorithm)), make_experiences(1)
    mask = collate(experiences).action_mask
    batch, metrics = made._with_advantages(made._with_logprobs(collate(experiences)), experiences)
    found = [value for key, value in metrics.items() if key.endswith("clipped_frac")]
    assert found and found[0] > 0.0
    zero = (batch.columns["advantages"] == 0) & mask
    assert float(zero.sum() / mask.sum()) == pytest.approx(found[0])
    assert torch.equal(batch.action_mask, mask)


@pytest.mark.difference("Reference model with `param_offload: false`")
@pytest.mark.parametrize("is_on", [False, True])
def test_the_reference_leaves_the_device_only_where_it_is_written(make_config: Maker, is_on: bool) -> None:
    ref = {"fsdp_config": {"param_offload": is_on}}
    made = worker(make_config(algorithm=TERMS, trainer={"trainer_config": {"actor_rollout_ref": {"ref": ref}}}))
    assert made.reference is not None and made.reference.model is not None
    assert list(made.reference.offload._models) == ([made.reference.model] if is_on else [])


@pytest.mark.difference("LoRA without `path`")
def test_a_new_adapter_leaves_no_folder_before_a_checkpoint(make_config: Maker, tmp_path: Path) -> None:
    made = worker(make_config(model=LORA))
    made.train_step(make_experiences(1), 1)
    assert not (tmp_path / "job").exists()
    made.save(tmp_path / "step", hf=False)
    adapters = [path.relative_to(tmp_path) for path in tmp_path.rglob("adapter_config.json")]
    assert adapters == [Path("step/actor/lora_adapter/adapter_config.json")]
    assert not list(tmp_path.rglob("dummy_lora"))


@pytest.mark.difference("LoRA rollouts")
def test_the_trainer_computes_with_merged_weights_that_are_rounded_once(tmp_path: Path) -> None:
    base = tiny_model(tmp_path, "llama", scale=1.5)
    adapter = adapted(tmp_path)
    packed = pack(collate(make_experiences(1)), share_prompts=False)

    def hidden(model: PreTrainedModel) -> Tensor:
        decoder = make_decoder(model, dtype=torch.bfloat16, recompute=False)
        with torch.no_grad(), computing(packed):
            return decoder.hidden(packed)

    merged = hidden(plain_copy(tmp_path, adapter))
    assert torch.equal(hidden(adapter.model), merged)
    assert not torch.equal(hidden(base), merged)


@pytest.mark.difference("LoRA rollouts")
def test_the_trainer_adds_the_product_of_an_adapter_where_transformers_computes_the_layers(tmp_path: Path) -> None:
    tiny_model(tmp_path, "gpt2", scale=1.5)
    adapter = adapted(tmp_path)
    packed = pack(collate(make_experiences(1)), share_prompts=False)

    def hidden(model: PreTrainedModel, dtype: torch.dtype) -> Tensor:
        decoder = make_decoder(model, dtype=dtype, recompute=False)
        assert isinstance(decoder, HFPackedDecoder)
        with torch.no_grad(), computing(packed):
            return decoder.hidden(packed).float()

    plain = plain_copy(tmp_path, adapter)
    near = (hidden(adapter.model, torch.float32) - hidden(plain, torch.float32)).abs().max().item()
    rounded = (hidden(adapter.model, torch.bfloat16) - hidden(plain, torch.bfloat16)).abs().max().item()
    assert near < 1e-5 and 1e-4 < rounded < 0.1
