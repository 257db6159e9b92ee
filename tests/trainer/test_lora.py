"""Adapters: the same gradients as PEFT's own, merged for the rollouts, frozen weights, files that PEFT reads."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tests.families import tiny_config
from tests.families import tiny_model as any_tiny_model
from tests.tiny import tiny_model
from tests.trainer.conftest import make_experiences
from tests.trainer.test_decoder import FAMILIES, padded_scores
from tests.trainer.test_update import TERMS, assert_same, gradients, worker
from trinity.common.config import Config
from trinity.common.config.model import LoraConfig
from trinity.common.errors import CheckpointError, ConfigError, EnvironmentProblem
from trinity.preflight.adapter import check_targets, linear_maps
from trinity.trainer.batch import collate
from trinity.trainer.verl.decoder import make_decoder
from trinity.trainer.verl.hf_attention import computing
from trinity.trainer.verl.loading import initial_weights
from trinity.trainer.verl.logprob import logprob_and_entropy
from trinity.trainer.verl.lora import Adapter, attach
from trinity.trainer.verl.packing import pack
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
LORA = {"lora_configs": [{"lora_rank": 4, "lora_alpha": 8}]}


def adapted(path: Path, **settings: Any) -> Adapter:
    """Return an adapter in the model of `path`, with a B that is not zero."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    adapter = attach(model, LoraConfig(**{"lora_rank": 4, "lora_alpha": 8} | settings), seed=3, base_hash="")
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return adapter


def adapter_gradients(model: PreTrainedModel, scores: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of a fixed mixture of `scores` with regard to what is trained."""
    weights = torch.randn(2, len(scores[0]), generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    (scores[0] * weights[0] + 0.3 * scores[1] * weights[1]).sum().backward()
    assert all(p.grad is None for n, p in model.named_parameters() if ".lora_" not in n), "the model is frozen"
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_the_adapter_equal_those_of_peft(
    tmp_path: Path, family: str, targets: str | list[str], recompute: bool
) -> None:
    if family == "gpt2" and targets != "all-linear":
        targets = ["c_attn"]
    tiny_model(tmp_path, family, scale=1.5, **FAMILIES[family])
    reference, adapter = adapted(tmp_path, target_modules=targets), adapted(tmp_path, target_modules=targets)
    batch = collate(make_experiences(1, tasks=3))
    expected = padded_scores(reference.model, batch)
    wanted = adapter_gradients(reference.model, expected)
    decoder = make_decoder(adapter.model, dtype=torch.float32, recompute=recompute)
    packed = pack(batch, share_prompts=decoder.can_share_prompts)
    with computing(packed):
        hidden = decoder.hidden(packed)
        got = logprob_and_entropy(hidden, decoder.head(), packed.labels, with_entropy=True)
        found = adapter_gradients(adapter.model, got)
    assert max((a - b).abs().max().item() for a, b in zip(got, expected, strict=True)) < 3e-6
    scale = max(1.0, *(float(g.abs().max()) for g in wanted.values()))
    assert found.keys() == wanted.keys() and max(float(g.abs().max()) for g in wanted.values()) > 0.1
    assert all(float((found[n] - wanted[n]).abs().max()) < 1e-6 * scale for n in wanted)


def test_layers_are_recomputed_also_where_the_reference_is_the_same_model(tmp_path: Path) -> None:
    tiny_model(tmp_path, "gpt2")
    adapter = adapted(tmp_path)
    policy = make_decoder(adapter.model, dtype=torch.float32, recompute=True)
    make_decoder(adapter.model, dtype=torch.float32, recompute=False, without=adapter.disabled)
    calls: list[str] = []
    for layer in adapter.model.transformer.h:
        layer.ln_1.register_forward_hook(lambda module, inputs, output: calls.append(type(module).__name__))
    packed = pack(collate(make_experiences(1, tasks=3)), share_prompts=False)
    with computing(packed):
        hidden = policy.hidden(packed)
        num_forward = len(calls)
        hidden.sum().backward()
    assert num_forward == len(adapter.model.transformer.h) and len(calls) == 2 * num_forward


def test_bf16_products_give_the_adapter_gradients_in_float32(tmp_path: Path) -> None:
    tiny_model(tmp_path, "qwen2", scale=1.0)
    packed = pack(collate(make_experiences(1, tasks=3)), share_prompts=True)
    found: list[dict[str, Tensor]] = []
    for dtype in (torch.float32, torch.bfloat16):
        adapter = adapted(tmp_path)
        decoder = make_decoder(adapter.model, dtype=dtype, recompute=False)
        scores = logprob_and_entropy(decoder.hidden(packed), decoder.head(), packed.labels)
        found.append(adapter_gradients(adapter.model, scores))
    scale = max(float(g.abs().max()) for g in found[0].values())
    for name, gradient in found[0].items():
        assert found[1][name].dtype == torch.float32
        assert 0.0 < float((gradient - found[1][name]).abs().max()) < 0.05 * scale, name


def plain_copy(path: Path, adapter: Adapter) -> PreTrainedModel:
    """Return a plain model with the merged weights of `adapter`."""
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    own = dict(plain.named_parameters())
    assert list(adapter.weights()) == list(own), "Hugging Face's names, each once"
    with torch.no_grad():
        for name, tensor in adapter.weights().items():
            own[name].copy_(tensor)
    return plain


@pytest.mark.difference("LoRA rollouts")
@pytest.mark.parametrize("family", FAMILIES)
def test_merged_weights_give_the_logits_of_the_adapter(tmp_path: Path, family: str) -> None:
    base = tiny_model(tmp_path, family, scale=1.5, **FAMILIES[family])
    adapter = adapted(tmp_path)
    tokens = torch.randint(3, 20, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        merged, separate, without = (m(tokens).logits for m in (plain_copy(tmp_path, adapter), adapter.model, base))
    assert (merged - separate).abs().max().item() < 1e-6 * separate.abs().max().item()
    assert (separate - without).abs().max().item() > 0.01
    with torch.no_grad(), adapter.disabled():
        assert torch.equal(adapter.model(tokens).logits, without)


@pytest.mark.difference("LoRA without `path`")
def test_initial_adapter_is_a_function_of_the_seed(tmp_path: Path) -> None:
    tiny_model(tmp_path)

    def made(seed: int) -> dict[str, Tensor]:
        torch.rand(seed + 1)  # the generator of the process decides nothing
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        state = torch.get_rng_state()
        tensors = attach(model, LoraConfig(), seed=seed, base_hash="").tensors()
        assert torch.equal(torch.get_rng_state(), state)
        return tensors

    first, again, other = made(1), made(1), made(2)
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not any(torch.equal(first[n], other[n]) for n in first if "lora_A" in n)
    assert all(not tensor.any() for name, tensor in first.items() if "lora_B" in name)


def adapted_worker(config: Config, **settings: Any) -> ActorWorker:
    """Return a worker whose adapter has been trained for a step, so that B is not zero."""
    made = worker(config, **settings)
    made.train_step(make_experiences(9), 1)
    return made


def trained(made: ActorWorker, gradient: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: gradient[name] for name, p in made.model.named_parameters() if p.requires_grad}


def test_split_and_recomputation_do_not_change_the_gradient_of_the_adapter(make_config: Maker) -> None:
    def found(recompute: bool, **split: Any) -> dict[str, Tensor]:
        tree = {"actor_rollout_ref": {"model": {"enable_gradient_checkpointing": recompute}}}
        made = adapted_worker(make_config(model=LORA, algorithm=TERMS, trainer={"trainer_config": tree}))
        made.actor.settings = made.actor.scorer.settings = dataclasses.replace(made.actor.settings, **split)
        return trained(made, gradients(made, make_experiences(1, tasks=3), step=2))

    whole = found(False, max_tokens=None, max_rows=None)
    assert len(whole) == 28
    for split in ({"max_rows": 1, "max_tokens": None}, {"max_rows": 5, "max_tokens": None}, {"max_tokens": 40}):
        assert_same(whole, found(False, **split))
    assert_same(whole, found(True, max_tokens=None, max_rows=None), tolerance=0.0)


def test_training_changes_the_adapter_and_no_bit_of_the_model(make_config: Maker) -> None:
    made = worker(make_config(model=LORA))
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    served = {name: tensor.clone() for name, tensor in made.weights().items()}
    for step in range(1, 4):
        made.train_step(make_experiences(step), step)
    for name, parameter in made.model.named_parameters():
        assert torch.equal(parameter, before[name]) == (".lora_" not in name), name
    state = [t for values in made.optimizer.state.values() for t in values.values() if t.dim()]
    assert sum(t.numel() for t in state) == 2 * sum(t.numel() for n, t in before.items() if ".lora_" in n)
    changed = [name for name, tensor in made.weights().items() if not torch.equal(tensor, served[name])]
    assert len(changed) == 14 and all(name.endswith("_proj.weight") for name in changed)


@pytest.mark.difference("Reference model with an adapter")
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_reference_of_a_new_adapter_is_the_model_without_it(make_config: Maker, tmp_path: Path, family: str) -> None:
    batch = collate(make_experiences(4))
    model = {"model_path": str(tmp_path / family)}
    tiny_model(tmp_path / family, family, scale=2.0)
    plain = worker(make_config(model=model, algorithm=TERMS))
    made = adapted_worker(make_config(model=model | LORA, algorithm=TERMS))
    expected = plain.reference.compute_log_prob(batch)
    assert torch.equal(made.reference.compute_log_prob(batch), expected)
    assert (made.actor.compute_log_prob(batch) - expected).abs().max().item() > 1e-3
    assert "reference model" in plain.memory_table() and "reference model" not in made.memory_table()


@pytest.mark.difference("Reference model with an adapter")
def test_reference_of_an_existing_adapter_keeps_it(make_config: Maker, model_path: Path, tmp_path: Path) -> None:
    adapter = adapted(model_path)
    adapter.save(tmp_path)
    made = adapted_worker(
        make_config(model={"lora_configs": [{"path": str(tmp_path / "lora_adapter")}]}, algorithm=TERMS)
    )
    batch = collate(make_experiences(4))
    saved = plain_copy(model_path, adapter)
    scores, _ = padded_scores(saved, batch)
    got = made.reference.compute_log_prob(batch)[batch.action_mask]
    assert (got - scores).abs().max().item() < 1e-5
    assert (made.actor.compute_log_prob(batch)[batch.action_mask] - scores).abs().max().item() > 1e-3
    first = initial_weights(made.config)
    assert all(torch.equal(tensor, first[name]) for name, tensor in adapter.weights().items())


@pytest.mark.difference("LoRA checkpoints")
def test_peft_reads_what_a_checkpoint_holds(make_config: Maker, model_path: Path, tmp_path: Path) -> None:
    made = adapted_worker(make_config(model=LORA))
    made.save(tmp_path, hf=True)
    actor = tmp_path / "actor"
    assert not list(actor.glob("model_*")), "the model is in its own folder"
    config = json.loads((actor / "lora_adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (4, 8, "LORA")
    assert config["base_model_name_or_path"] == str(model_path)
    assert json.loads((actor / "lora_train_meta.json").read_text())["name"] == "lora_adapter"
    loaded = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32), actor / "lora_adapter"
    )
    tokens = torch.randint(3, 20, (2, 12), generator=torch.Generator().manual_seed(0))
    exported = AutoModelForCausalLM.from_pretrained(actor / "huggingface", dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, made.model(tokens).logits)
        difference = exported(tokens).logits - made.model(tokens).logits
    assert difference.abs().max().item() < 1e-5
    names = load_file(actor / "huggingface" / "model.safetensors").keys()
    assert names == AutoModelForCausalLM.from_pretrained(model_path).state_dict().keys() - {"lm_head.weight"}


WRONG = {
    "no such map": (["q_prj", "v_proj"], "'q_prj' matches no linear layer of the model; there are down_proj, "
                    "gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj; did you mean q_proj?"),
    "a regular expression": ("q_proj", "a string is a regular expression of whole names such as model.layers.0."),
    "a broken expression": ("(q", "'(q' is not a regular expression"),
    "no linear layer": (["q_proj", "norm"], "'norm' matches no linear layer"),
    "the output layer": (".*(lm_head|q_proj)", "matches lm_head, which is no linear layer inside the model"),
}  # fmt: skip


@pytest.mark.parametrize(("targets", "message"), WRONG.values(), ids=WRONG)
def test_modules_that_cannot_be_adapted_are_refused(make_config: Maker, targets: str | list[str], message: str) -> None:
    config = make_config(model={"lora_configs": [{"target_modules": targets}]})
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        worker(config)
    assert caught.value.code == "E1871" and "model.lora_configs[0].target_modules" in str(caught.value)


@pytest.mark.parametrize("targets", [targets for targets, _ in WRONG.values()], ids=WRONG)
def test_validate_refuses_them_too_from_the_headers_of_the_weights(model_path: Path, targets: str | list[str]) -> None:
    found = list(check_targets(model_path, target_modules=targets, exclude_modules=None))
    assert [(each.key, each.code) for each in found] == [("model.lora_configs[0].target_modules", "E1871")]
    found = list(check_targets(model_path, target_modules="all-linear", exclude_modules=["o_prj"]))
    (finding,) = found
    assert finding.key == "model.lora_configs[0].exclude_modules" and "did you mean o_proj?" in finding.message


@pytest.mark.parametrize("family", ["gemma3", "gpt2", "gpt_neox", "hrm_text", "mixtral", "opt", "phi3", "zamba"])
def test_validate_knows_every_linear_map_by_its_names(tmp_path: Path, family: str) -> None:
    model = any_tiny_model(tiny_config(family))
    model.save_pretrained(tmp_path)
    maps = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not model.get_output_embeddings()
    ]
    parts = sorted({name.rpartition(".")[2] for name in maps})
    for targets in (parts, *(re.escape(name) for name in maps), "|".join(f".*{part}" for part in parts)):
        assert not list(check_targets(tmp_path, target_modules=targets, exclude_modules=None)), targets
    assert len(maps) > 3 and len(linear_maps(tmp_path)) in (0, len(maps)), (
        "of models with experts validate says nothing"
    )


def test_excluded_modules_get_no_adapter(make_config: Maker) -> None:
    made = worker(make_config(model={"lora_configs": [{"exclude_modules": ["down_proj", "o_proj"]}]}))
    names = {name.split(".")[-4] for name, p in made.model.named_parameters() if p.requires_grad}
    assert names == {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}
    with pytest.raises(ConfigError, match=r"exclude_modules: 'o_prj' matches no linear layer.*did you mean o_proj\?"):
        worker(make_config(model={"lora_configs": [{"exclude_modules": ["o_prj"]}]}))
    everything = {"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]}
    with pytest.raises(ConfigError, match="PEFT cannot make this adapter") as caught:
        worker(make_config(model={"lora_configs": [everything]}))
    assert caught.value.code == "E1871"


@pytest.mark.difference("LoRA checkpoints")
def test_checkpoint_of_the_other_kind_is_refused(make_config: Maker, tmp_path: Path) -> None:
    whole, adapter = worker(make_config()), worker(make_config(model=LORA))
    whole.save(tmp_path / "whole", hf=False)
    adapter.save(tmp_path / "adapter", hf=False)
    other = worker(make_config(model={"lora_configs": [{"lora_rank": 2, "target_modules": ["q_proj"]}]}))
    for made, folder, message in (
        (adapter, "whole", "holds whole weights and this run trains an adapter; remove model.lora_configs"),
        (whole, "adapter", "holds an adapter and this run trains whole weights; write model.lora_configs as it was"),
        (other, "adapter", r"adapter of rank 4 in 14 linear layers; model.lora_configs\[0\] makes one of rank 2 in 2"),
    ):
        with pytest.raises(CheckpointError, match=message) as caught:
            made.load(tmp_path / folder)
        assert caught.value.code == "E7020"
    adapter.load(tmp_path / "adapter")
    object.__setattr__(adapter.adapter, "base_hash", "of other files")
    with pytest.raises(CheckpointError, match="trained on other weights than those of model.model_path") as caught:
        adapter.load(tmp_path / "adapter")
    assert caught.value.code == "E7020"


def test_existing_adapters_that_do_not_fit_are_refused(make_config: Maker, model_path: Path, tmp_path: Path) -> None:
    def refused(folder: Path, code: str, message: str) -> None:
        with pytest.raises(EnvironmentProblem, match=message) as caught:
            worker(make_config(model={"lora_configs": [{"path": str(folder)}]}))
        assert caught.value.code == code

    refused(tmp_path / "none", "E3118", "has no adapter_config.json and no adapter_model.safetensors")
    adapted(model_path).save(tmp_path)
    folder = tmp_path / "lora_adapter"
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"r": 5}))
    refused(folder, "E3119", r"28 tensors differ, first base_model.*: the model takes \(5, 128\), the adapter has \(4,")
    file.write_text(json.dumps(config | {"use_dora": True, "bias": "all"}))
    refused(folder, "E3119", "sets bias, use_dora; only plain LoRA in linear layers")
    file.write_text(json.dumps(config | {"init_lora_weights": "pissa"}))
    refused(folder, "E3119", "sets init_lora_weights pissa; only plain LoRA in linear layers")
    file.write_text("{")
    refused(folder, "E3118", "cannot read the adapter")


def test_dropout_of_an_existing_adapter_is_left_out_with_a_warning(
    model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = adapted(model_path)
    adapter.config.lora_dropout = 0.5
    adapter.save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    again = attach(model, LoraConfig(path=str(tmp_path / "lora_adapter")), seed=0, base_hash="")
    assert "model.lora_configs[0].path: lora_dropout 0.5 is not used" in caplog.text
    assert not [m for m in model.modules() if isinstance(m, torch.nn.Dropout) and m.p]
    assert all(torch.equal(tensor, adapter.tensors()[name]) for name, tensor in again.tensors().items())
