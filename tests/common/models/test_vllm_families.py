"""Families that vLLM computes otherwise than transformers are refused by name, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.common.config.conftest import MINIMAL
from tests.families import FAMILIES, NOT_BUILT, tiny_config, tiny_model
from tests.tiny import tiny_tokenizer
from trinity.common.config.model import ModelConfig
from trinity.common.errors import EnvironmentProblem
from trinity.common.models.families import REFUSED, REFUSED_ON_CPU, families
from trinity.engine.vllm.weights import read_facts
from trinity.launch.validation import check

MANY = {"musicgen", "musicgen_melody"}  # made of three models, none of which is the default

WORDS = ("right", REFUSED, REFUSED_ON_CPU, "not started", "not served")
WRONG = [name for name, family in families().items() if family.vllm == REFUSED]
WRONG_ON_CPU = [name for name, family in families().items() if family.vllm == REFUSED_ON_CPU]


def test_the_table_says_what_vllm_makes_of_every_family_of_transformers() -> None:
    unmeasured = [name for name in FAMILIES if families()[name].vllm not in WORDS]
    assert unmeasured == [], "measure the family: python tools/vllm_families.py FAMILY"


def test_a_family_is_refused_if_its_part_for_text_is() -> None:
    wholes = {
        family: CONFIG_MAPPING[family]().get_text_config().model_type for family in FAMILIES if family not in MANY
    }
    assert wholes["gemma3n"] == "gemma3n_text" and wholes["llama4"] == "llama4_text"
    for found in ({*WRONG}, {*WRONG, *WRONG_ON_CPU}):
        assert {family for family, part in wholes.items() if part in found} <= found


def test_what_is_wrong_on_a_cpu_alone_is_refused_there_alone(tmp_path: Path) -> None:
    tiny_model(tiny_config("bloom")).save_pretrained(tmp_path)
    section = ModelConfig.model_validate({"model_path": str(tmp_path)})
    assert read_facts(section, {}).model_type == "bloom"
    with pytest.raises(EnvironmentProblem, match=r"bloom models.*\(on a CPU\).*0\.001 nats") as caught:
        read_facts(section, {}, is_cpu=True)
    assert caught.value.code == "E3227"


@pytest.mark.parametrize("family", [*WRONG, *WRONG_ON_CPU, "llama"])
def test_validate_and_the_engine_refuse_the_same_families(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")  # what vLLM, too, asks first
    model = tmp_path / "model"
    tiny_model(tiny_config("llama" if family in NOT_BUILT else family)).save_pretrained(model)
    if family in NOT_BUILT:  # what is refused by name needs no weights
        (model / "config.json").write_text(json.dumps({"model_type": family}))
    tiny_tokenizer(model)
    (tmp_path / "data.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    (tmp_path / "run.yaml").write_text(MINIMAL.replace("data.jsonl", str(tmp_path / "data.jsonl")))

    def codes(engine: str) -> list[str]:
        overrides = (f"model.model_path={model}", f"explorer.rollout_model.engine_type={engine}")
        return [p.code for p in check(tmp_path / "run.yaml", overrides)[1] if p.code == "E3227"]

    is_wrong = family != "llama"
    assert codes("vllm") == (["E3227"] if is_wrong else []) and codes("torch") == []
    section = ModelConfig.model_validate({"model_path": str(model)})
    if not is_wrong:
        assert read_facts(section, {}).names is not None
        return
    with pytest.raises(EnvironmentProblem, match=f"{family}(_text)? models.*engine_type=torch") as caught:
        read_facts(section, {}, is_cpu=True)
    assert caught.value.code == "E3227"
    assert read_facts(section, {}, is_updated=False).names is None, "a judge may be of any family"
    assert json.loads((model / "config.json").read_text())["model_type"].removesuffix("_text") == family.removesuffix(
        "_text"
    )
