"""Families that engine or trainer do not know, found in `config.json` before anything is loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trinity.common.models.families import families
from trinity.preflight.loading import causal_families, check_loading

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


def test_the_table_of_families_is_read_as_transformers_reads_it() -> None:
    assert causal_families() == frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert causal_families() < families().keys(), "run python tools/family_table.py"


@pytest.mark.parametrize(
    ("config", "codes", "words"),
    [
        ({"model_type": "llama"}, [], ""),
        ({"model_type": "nemotron_h"}, ["E5604"], "the model family nemotron_h: .*bound.*engine_type: vllm"),
        ({"model_type": "bert"}, ["E5604"], "the model family bert: its tokens see those after them"),
        ({"model_type": "bert", "is_decoder": True}, [], ""),
        ({"model_type": "qwen3_vl"}, ["E3110"], "'qwen3_vl'.*causal language model"),
        ({"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "m.M"}}, [], ""),
        ({"model_type": "llama", "rope_parameters": DYNAMIC, "max_position_embeddings": 64}, [], ""),
        ({"model_type": "llama", "rope_parameters": DYNAMIC, "max_position_embeddings": 63}, ["E1895"], "63 at most"),
        ({"rope_scaling": {"type": "dynamic"}, "max_position_embeddings": 8}, ["E1895"], "8 at most"),
        ({"text_config": {"rope_parameters": {"a": DYNAMIC}, "max_position_embeddings": 8}}, ["E1895"], "8 at most"),
    ],
)
def test_what_cannot_be_loaded_or_served_is_found(
    tmp_path: Path, config: dict[str, Any], codes: list[str], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = check_loading(tmp_path, is_served=True, max_model_len=64)
    assert [finding.code for finding in found] == codes
    for finding in found:
        assert re.search(words, finding.message)


def test_a_model_that_is_only_trained_needs_no_engine_and_overrides_count(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "zamba2"}))
    assert check_loading(tmp_path, is_served=False, max_model_len=None) == []
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "rope_parameters": DYNAMIC, "max_position_embeddings": 8})
    )
    assert len(check_loading(tmp_path, is_served=True, max_model_len=64)) == 1
    yarn = {"rope_parameters": {"rope_type": "yarn"}}
    assert check_loading(tmp_path, is_served=True, max_model_len=64, overrides=yarn) == []
    assert check_loading(tmp_path / "nowhere", is_served=True, max_model_len=64) == []
