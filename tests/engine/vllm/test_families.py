"""vLLM and new weights: of families whose files name and join them otherwise than the model's modules do, and of a
model that does not take every one, which is refused before anything is sampled.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (  # fmt: skip
    AutoModelForCausalLM,
    GPTNeoXConfig,
    GptOssConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.engine.engines import recomputed
from tests.engine.vllm.conftest import settings
from tests.tiny import tiny_model, tiny_tokenizer
from trinity.common.errors import EngineError, EnvironmentProblem
from trinity.common.models.families import families
from trinity.engine.vllm.engine import VLLMEngine
from trinity.engine.vllm.settings import TORCH_INSTEAD
from trinity.engine.vllm.start import check_installed

pytestmark = pytest.mark.slow

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "bos_token_id": None,
    "eos_token_id": 1, "pad_token_id": 0, "max_position_embeddings": 128,
}  # fmt: skip
EXPERTS = {"num_key_value_heads": 1, "head_dim": 32, "num_local_experts": 4, "sliding_window": 8}
# What each stands for: experts joined and modules renamed, packed for a CPU; experts that vLLM copies past its order
# of loading, with biases and sinks; a renamed head, served by transformers' own model inside vLLM.
FAMILIES: dict[str, PreTrainedConfig] = {
    "mixtral": MixtralConfig(**SIZES, **EXPERTS, num_experts_per_tok=2),
    "gpt_oss": GptOssConfig(**SIZES, **EXPERTS, num_experts_per_tok=2),
    "gpt_neox": GPTNeoXConfig(**SIZES),
}
PROMPT = "12+34=" * 3
PLUGIN = "tests.engine.vllm.forgetful"


def folder_of(config: PreTrainedConfig, path: Path, *, seed: int) -> PreTrainedModel:
    """Write a model of `config` with random weights and a tokenizer; return it as the trainer would read it."""
    config.vocab_size = len(tiny_tokenizer(path))
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.15 * torch.randn_like(parameter) + (parameter.dim() == 1))
    made.save_pretrained(path)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_new_weights_count_at_once_and_every_time(family: str, forked: None, tmp_path: Path) -> None:
    models = [folder_of(FAMILIES[family], tmp_path / str(seed), seed=seed) for seed in range(2)]

    async def differences() -> list[float]:
        made = VLLMEngine(settings(tmp_path / "0"))
        await made.prepare()
        found = []
        try:
            for version in range(4):
                model = models[version % 2]
                if version:
                    await made.update_weights(dict(model.named_parameters()), version=version)
                (sample,) = await made.generate(PROMPT, max_tokens=12, ignore_eos=True)
                scores = await made.logprobs(sample.tokens.tolist())
                expected = recomputed(model, sample)
                start = sample.prompt_length - 1
                found += [float((each - expected).abs().max()) for each in (sample.logprobs, scores[start:])]
        finally:
            await made.shutdown()
        return found

    found = asyncio.run(differences())
    assert len(found) == 8 and max(found) < 2e-5, found


def test_an_engine_of_a_model_that_loses_a_weight_at_a_reload_does_not_start(
    tmp_path: Path, forked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm

    model = tmp_path / "model"
    tiny_model(model, "llama", head_dim=32)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["ForgetfulLlama"]}))
    installed = tmp_path / "plugins/forgetful-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: forgetful\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[vllm.general_plugins]\nforgetful = {PLUGIN}:register\n")
    monkeypatch.syspath_prepend(str(installed.parent))

    made = VLLMEngine(settings(model, external_lib=PLUGIN))
    with pytest.raises(EnvironmentProblem) as caught:
        asyncio.run(made.prepare())
    reason = r"of which a reload changes 1 of \d+ tensors \(first model\.norm\.weight\)"
    begin = rf"\[E3226\] vLLM {re.escape(vllm.__version__)} cannot take new weights of this llama model, "
    assert re.fullmatch(f"{begin}{reason}; use {re.escape(TORCH_INSTEAD)}", str(caught.value)), str(caught.value)
    with pytest.raises(EngineError, match="not prepared"):
        asyncio.run(made.generate("1+1="))


def test_families_that_are_not_served_are_those_of_which_vllm_has_no_model() -> None:
    pytest.importorskip("vllm")
    check_installed()
    from vllm import ModelRegistry

    served = ModelRegistry.get_supported_archs()
    missing = {family for family, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name not in served}
    not_served = {name for name, family in families().items() if family.vllm == "not served"}
    tried = {name for name, family in families().items() if family.vllm} - not_served
    assert not_served == missing - tried
