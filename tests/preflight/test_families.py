"""`validate` names the families that the trainer refuses, and no others, whatever role the model has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL
from tests.families import FAMILIES
from trinity.common.config import Finding
from trinity.common.models.families import REFUSED, families
from trinity.launch.validation import check

PPO = ("algorithm.algorithm_type=ppo",)
Found = Callable[..., list[Finding]]


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """Return a function that gives the problems of a run with a policy and a critic of some families."""
    (tmp_path / "data.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    (tmp_path / "run.yaml").write_text(MINIMAL.replace("data.jsonl", str(tmp_path / "data.jsonl")))

    def folder(family: str) -> Path:
        path = tmp_path / family
        path.mkdir(exist_ok=True)
        config = {"model_type": family, "architectures": ["XForCausalLM"], "num_attention_heads": 4}
        (path / "config.json").write_text(json.dumps(config))
        return path

    def of(policy: str, critic: str | None = None, *overrides: str) -> list[Finding]:
        models = (f"model.model_path={folder(policy)}", f"checkpoint_root_dir={tmp_path}")
        models += () if critic is None else (f"model.critic_model_path={folder(critic)}",)
        codes = ("E3130", "E3120", "E1836")
        return [p for p in check(tmp_path / "run.yaml", (*models, *overrides))[1] if p.code in codes]

    return of


def test_families_that_cannot_be_trained_are_named_before_anything_starts(found: Found) -> None:
    some = [name for name in FAMILIES if families()[name].trainer == REFUSED]
    assert len(some) > 20
    for family in some:
        (problem,) = found(family)
        assert problem.code == "E3130" and problem.key == "model.model_path"
        assert family in problem.message and families()[family].reasons["trainer"] in problem.message
        assert "docs/families.md" in problem.message


def test_families_that_are_trained_pass(found: Found) -> None:
    for family in ("llama", "gemma3_text", "gpt_oss", "mixtral", "deepseek_v3", "qwen3_next", "bloom", "olmo3"):
        assert found(family) == []


def test_a_critic_of_a_family_without_value_models_is_named(found: Found) -> None:
    for family in ("gemma3_text", "gemma3", "olmo3", "phi4_multimodal"):
        (problem,) = found("llama", family, *PPO)
        assert problem.code == "E3120" and problem.key == "model.critic_model_path"
        assert family in problem.message and "model.critic_model_path a model of another family" in problem.message
        assert [p.code for p in found(family, None, *PPO)] == ["E3120"]
    for family in ("llama", "gemma2", "mistral", "qwen3_next"):
        assert found("llama", family, *PPO) == []


def test_ranks_cannot_share_the_rows_of_a_family_that_is_computed_row_by_row(found: Found) -> None:
    ranks = ("trainer.num_workers=2", "trainer.ulysses_sequence_parallel_size=2")
    assert "E1836" not in [p.code for p in found("mistral", None, *ranks)]
    (problem,) = found("bloom", None, *ranks)
    assert problem.code == "E1836" and "row by row" in problem.message and "write 1" in problem.message
