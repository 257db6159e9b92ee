"""The written model is one that Hugging Face reads: nothing missing, text there and back, a template that splits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from trinity.quickstart import dataset
from trinity.quickstart.model import MAX_TOKENS, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_model(path, seed=1)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


def test_every_weight_is_loaded_and_there_are_431_thousand(folder: Path) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert sum(weight.numel() for weight in model.parameters()) == 430_976
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert model.config.tie_word_embeddings is False


def test_the_untrained_model_finds_every_token_about_equally_likely(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        probabilities = model(torch.tensor([[7, 10, 13]])).logits.softmax(-1)
    assert probabilities.max().item() < 3 / 17


def test_a_seed_decides_the_weights(folder: Path, tmp_path: Path) -> None:
    for name, seed in (("same", 1), ("other", 2)):
        write_model(tmp_path / name, seed=seed)
    weights = (folder / "model.safetensors").read_bytes()
    assert (tmp_path / "same" / "model.safetensors").read_bytes() == weights
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != weights


def test_every_example_is_read_and_written_back_without_unknown_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    for row in dataset.test_rows()[:64]:
        text = f"{row['question']}={row['answer']}"
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text
        assert len(ids) == 27 <= MAX_TOKENS


def test_the_prompt_is_the_beginning_of_the_whole_conversation(tokenizer: PreTrainedTokenizerBase) -> None:
    question = [{"role": "user", "content": "47+58"}]
    answer = [{"role": "assistant", "content": dataset.solution(47, 58)}]
    prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(question + answer, tokenize=False)
    assert prompt == "47+58="
    assert whole == "47+58=7+8+0=15,4+5+1=10\n#### 105<eos>"
    ids = tokenizer(whole)["input_ids"]
    assert ids[: len(tokenizer(prompt)["input_ids"])] == tokenizer(prompt)["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == "47+58=7+8+0=15,4+5+1=10\n#### 105"


def test_a_system_prompt_is_left_out_and_other_text_is_unknown(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "01+02"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == "01+02="
    assert tokenizer("a 1")["input_ids"] == [tokenizer.unk_token_id] * 2 + [4]
