"""Models that the trainer's processes cannot divide are named by `validate`, from their `config.json` alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL
from tests.tiny import tiny_model
from trinity.launch.validation import check

ULYSSES = "trainer.ulysses_sequence_parallel_size"
TENSOR = "trainer.megatron.tensor_model_parallel_size"
STAGES = "trainer.megatron.pipeline_model_parallel_size"
MEGATRON = "trainer.trainer_strategy=megatron"
ROWS = [
    ("llama", (f"{ULYSSES}=3",), "E1836", ULYSSES, "4 attention heads and 2 key-value heads.*choose one of 1, 2, 4"),
    ("gpt2", (f"{ULYSSES}=8",), "E1836", ULYSSES, "4 attention heads and 4 key-value heads.*choose one of 1, 2, 4"),
    ("llama", (MEGATRON, f"{TENSOR}=4"), "E1855", TENSOR, "2 key-value heads.*choose one of 1, 2$"),
    ("gpt2", (MEGATRON, f"{TENSOR}=2"), "E1856", "trainer.trainer_strategy", "model_type gpt2.*fsdp2"),
    ("llama", (MEGATRON, f"{STAGES}=3"), "E1849", STAGES, "2 layers.*use 2 or less"),
    ("gpt2", (MEGATRON, f"{STAGES}=2"), "E1856", "trainer.trainer_strategy", "model_type gpt2.*fsdp2"),
    ("llama", (MEGATRON, f"{TENSOR}=2", f"{STAGES}=2"), None, "", ""),
    ("gpt2", (MEGATRON, f"{TENSOR}=1"), None, "", ""),
]


@pytest.mark.parametrize(("family", "overrides", "code", "key", "words"), ROWS)
def test_sizes_that_do_not_fit_the_model_are_named_with_those_that_do(
    tmp_path: Path, family: str, overrides: tuple[str, ...], code: str | None, key: str, words: str
) -> None:
    tiny_model(tmp_path / "model", family)
    (tmp_path / "data.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    (tmp_path / "run.yaml").write_text(MINIMAL.replace("data.jsonl", str(tmp_path / "data.jsonl")))
    general = (f"model.model_path={tmp_path / 'model'}", f"checkpoint_root_dir={tmp_path}", "trainer.num_workers=24")
    _, problems = check(tmp_path / "run.yaml", (*general, *overrides))
    found = [p for p in problems if p.code.startswith("E18")]  # this folder lacks more than that
    assert [(p.code, p.key) for p in found] == ([] if code is None else [(code, key)])
    assert all(re.search(words, p.message) for p in found)
