"""SFT and DPO with the templates of eight families: what is learnt of an answer is what follows the engine's prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.common.models.families import FAMILIES, family_tokenizer, marked_tokens, stop_ids
from tests.common.models.family_cases import ASKED_LAST, LLAMA, QWEN, THOUGHT_LAST, TOOLS, TURNS, answer, user
from trinity.buffer.formatter import TokenizedRow, make_formatter
from trinity.common.config.buffer import FormatConfig
from trinity.common.errors import DataError
from trinity.common.models.chat_template import render_chat

# What is learnt of the answer `3`: with the thought that Qwen3 and GLM write for an answer that has none.
ANSWERS = {
    "qwen2_5": "3<|im_end|>",
    "qwen3": "<think>\n\n</think>\n\n3<|im_end|>",
    "llama3_1": "3<|eot_id|>",
    "mistral": " 3</s>",
    "gemma3": "3<end_of_turn>",
    "phi3_5": "3<|end|>",
    "deepseek_r1": "3<｜end▁of▁sentence｜>",
    "glm4_5": "\n<think></think>\n3<|endoftext|>",
}
ALL_ANSWERS = {
    "qwen2_5": f"{QWEN}<|im_start|>user\n1+2, größe?<|im_end|>\n<|im_start|>assistant\n«3 数学<|im_end|>»\n"
    "<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n«naïve 九<|im_end|>»",
    "llama3_1": f"{LLAMA}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n1+2, größe?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n«3 数学<|eot_id|>»"
    "<|start_header_id|>user<|end_header_id|>\n\ngo on<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n«naïve 九<|eot_id|>»",
    "mistral": "<s>[INST] 1+2, größe?[/INST]« 3 数学</s>»[INST] go on[/INST]« naïve 九</s>»",
    "gemma3": "<bos><start_of_turn>user\n1+2, größe?<end_of_turn>\n<start_of_turn>model\n«3 数学<end_of_turn>»\n"
    "<start_of_turn>user\ngo on<end_of_turn>\n<start_of_turn>model\n«naïve 九<end_of_turn>»",
    "phi3_5": "<|user|>\n1+2, größe?<|end|>\n<|assistant|>\n«3 数学<|end|>»\n"
    "<|user|>\ngo on<|end|>\n<|assistant|>\n«naïve 九<|end|>»",
    "glm4_5": "[gMASK]<sop><|user|>\n1+2, größe?<|assistant|>«\n<think></think>\n3 数学<|user|>»\ngo on<|assistant|>"
    "«\n<think></think>\nnaïve 九<|endoftext|>»",
}


def formatted(
    family: str, folder: Path, messages: list[dict[str, Any]], *, schema: str = "sft", **fmt: Any
) -> TokenizedRow:
    """Return the sample of a row, by a tokenizer whose folder says what the model stops at."""
    tokenizer = family_tokenizer(family)
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": sorted(stop_ids(family))}))
    own = type(tokenizer).from_pretrained(folder)
    columns = FormatConfig.model_validate({"messages_key": "messages"} | fmt)
    return make_formatter(schema, columns, own, kind="messages")({"messages": messages})


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_answer_is_learnt_with_its_end_after_the_engines_prompt(family: str, tmp_path: Path) -> None:
    tokenizer = family_tokenizer(family)
    sample = formatted(family, tmp_path, ASKED_LAST)
    assert sample.tokens[: sample.prompt_length] == render_chat(tokenizer, ASKED_LAST[:1])[0]
    assert tokenizer.decode(sample.tokens[sample.prompt_length :]) == ANSWERS[family]
    assert sample.action_mask == [True] * (len(sample.tokens) - sample.prompt_length)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_answers_are_learnt_or_the_row_is_refused(family: str, tmp_path: Path) -> None:
    def read() -> TokenizedRow:
        return formatted(family, tmp_path, TURNS, enable_concatenated_multi_turn=True)

    if family not in ALL_ANSWERS:
        with pytest.raises(DataError, match=r"messages\[3\].*rewrites|rewrites.*messages\[3\].*multi_turn") as caught:
            read()
        assert caught.value.code == "E4021"
        return
    tokens, mask = marked_tokens(family, ALL_ANSWERS[family])
    sample = read()
    assert sample.tokens == tokens
    assert [0] * sample.prompt_length + [int(counts) for counts in sample.action_mask] == mask


@pytest.mark.parametrize("family", ["qwen3", "deepseek_r1"])
def test_a_thought_is_learnt_once(family: str, tmp_path: Path) -> None:
    """DeepSeek-R1's prompt opens the thought that the row opens, too."""
    sample = formatted(family, tmp_path, THOUGHT_LAST)
    assert family_tokenizer(family).decode(sample.tokens).count("<think>") == 1
    told = family_tokenizer(family).decode(sample.tokens[sample.prompt_length :])
    assert told.removeprefix("<think>\n").startswith("why\n</think>\n\n3")


def test_a_call_of_a_tool_is_learnt_as_the_template_writes_it(tmp_path: Path) -> None:
    sample = formatted("glm4_5", tmp_path, TOOLS[:2])
    told = family_tokenizer("glm4_5").decode(sample.tokens[sample.prompt_length :])
    assert told == (
        "\n<think></think>\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call><|endoftext|>"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_both_answers_of_a_pair_end_as_a_turn_does(family: str, tmp_path: Path) -> None:
    tokenizer = family_tokenizer(family)
    columns = FormatConfig.model_validate({"messages_key": "messages", "chosen_key": "good", "rejected_key": "bad"})
    row = {"messages": [user("a")], "good": [answer("3")], "bad": [answer("4")]}
    sample = make_formatter("dpo", columns, tokenizer, kind="messages")(row)
    assert tokenizer.decode(sample.tokens[sample.prompt_length :]) == ANSWERS[family]
    assert tokenizer.decode(sample.rejected or []) == ANSWERS[family].replace("3", "4", 1)
