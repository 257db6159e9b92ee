"""A loss that balances the experts of a mixture is refused where it is asked for, whichever family asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, MixtralConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.common.config.conftest import MINIMAL
from tests.families import FAMILIES, NOT_BUILT
from tests.tiny import tiny_tokenizer
from trinity.common.config import Config
from trinity.common.errors import EnvironmentProblem
from trinity.common.models.experts import experts_problem
from trinity.launch.validation import check
from trinity.trainer.verl.loading import load_model, load_value_model

POLICY, VALUES = ("trainer.trainer_config.actor_rollout_ref.model", "trainer.trainer_config.critic.model")


def folder(path: Path, **entries: Any) -> Path:
    """Write a tiny mixture of experts; return its folder."""
    vocabulary = len(tiny_tokenizer(path))
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MixtralConfig(vocab_size=vocabulary, num_key_value_heads=1, num_local_experts=2, **sizes, **entries)
    config.architectures = ["MixtralForCausalLM"]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def test_every_family_that_knows_the_switch_is_refused_with_it_and_trained_without() -> None:
    asked = 0
    for family in (family for family in FAMILIES if family not in NOT_BUILT):
        config = CONFIG_MAPPING[family]()
        inner = [config, *(getattr(config, name, None) for name in ("text_config", "thinker_config"))]
        found = [each for each in inner if hasattr(each, "output_router_logits")]
        assert experts_problem(config.to_dict(), {}, key="k") is None, family
        for each in found:
            asked += 1
            each.output_router_logits = True
            problem = experts_problem(config.to_dict(), {}, key="k")
            assert problem is not None and "output_router_logits: false" in problem, family
            for name in [name for name in each.to_dict() if "aux_loss" in name or "z_loss" in name]:
                setattr(each, name, 0.0)
            has_coefficient = any("aux_loss" in name for name in each.to_dict())
            if has_coefficient:
                assert experts_problem(config.to_dict(), {}, key="k") is None, family
    assert asked >= 25


@pytest.mark.difference("Load-balancing loss of experts")
def test_the_wish_of_a_folder_is_named_by_validate_and_by_the_trainer_and_can_be_taken_back(tmp_path: Path) -> None:
    asking = folder(tmp_path / "asking", output_router_logits=True, router_aux_loss_coef=0.02)
    assert json.loads((asking / "config.json").read_text())["output_router_logits"] is True
    silent = folder(tmp_path / "silent", router_aux_loss_coef=0.02)
    (tmp_path / "data.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    (tmp_path / "run.yaml").write_text(MINIMAL.replace("data.jsonl", str(tmp_path / "data.jsonl")))

    def codes(model: Path, *overrides: str) -> list[str]:
        general = (f"model.model_path={model}", f"checkpoint_root_dir={tmp_path}")
        return [p.code for p in check(tmp_path / "run.yaml", (*general, *overrides))[1] if p.code in ("E3125", "E1885")]

    assert codes(silent) == [] and codes(asking) == ["E3125"]
    assert codes(asking, f"{POLICY}.override_config={{output_router_logits: false}}") == []
    assert codes(silent, f"{POLICY}.override_config={{router_aux_loss_coef: 0.1}}") == ["E1885"]
    assert codes(silent, f"{POLICY}.override_config={{router_aux_loss_coef: 0.0}}") == []
    assert codes(silent, f"{POLICY}.override_config={{text_config: {{output_router_logits: true}}}}") == ["E1885"]

    config = Config.model_validate({"model": {"model_path": str(asking)}})
    for load in (load_model, load_value_model):
        with pytest.raises(EnvironmentProblem, match="output_router_logits: false to train without it") as caught:
            load(str(asking), torch.device("cpu"), config=config)
        assert caught.value.code == "E3125"
    section = {"trainer_config": {"actor_rollout_ref": {"model": {"override_config": {"output_router_logits": False}}}}}
    config = Config.model_validate({"model": {"model_path": str(asking)}, "trainer": section})
    assert load_model(str(asking), torch.device("cpu"), config=config).config.output_router_logits is False
    assert AutoConfig.from_pretrained(silent).router_aux_loss_coef == 0.02
