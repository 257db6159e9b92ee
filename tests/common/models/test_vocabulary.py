"""Token ids with gaps: what the tokenizer knows can be drawn, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tests.engine.engines import engine, run
from tests.tiny import EOS, tiny_model
from trinity.common.errors import EnvironmentProblem
from trinity.common.models.vocabulary import drawable, known_ids, stop_token_ids

FAR, ADDED, ROWS = 95, 97, 100


@pytest.fixture
def gappy(tmp_path: Path) -> tuple[Path, PreTrainedModel, PreTrainedTokenizerBase]:
    """Folder, model and tokenizer whose end of sequence has id 95 and whose added token has 97; there are gaps."""
    model = tiny_model(tmp_path, "llama", vocab_size=ROWS, scale=1.0)
    file = tmp_path / "tokenizer.json"
    core = json.loads(file.read_text())
    core["model"]["vocab"] |= {EOS: FAR, "<far>": ADDED}
    for token in core["added_tokens"]:
        token["id"] = FAR if token["content"] == EOS else token["id"]
    core["added_tokens"].append({**core["added_tokens"][0], "id": ADDED, "content": "<far>"})
    file.write_text(json.dumps(core))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.eos_token_id == FAR >= len(tokenizer)
    return tmp_path, model, tokenizer


@pytest.mark.difference("Token ids that can be drawn")
def test_ids_with_gaps_are_those_of_the_tokenizer(gappy: tuple[Path, PreTrainedModel, PreTrainedTokenizerBase]) -> None:
    tokenizer = gappy[2]
    ids = drawable(tokenizer, ROWS, [FAR])
    assert ids.num_tokens == ADDED + 1 and ids.stop_ids == (FAR,)
    assert 1 in ids.unknown_ids and 96 in ids.unknown_ids and FAR not in ids.unknown_ids
    assert set(range(ids.num_tokens)) - set(ids.unknown_ids) == set(known_ids(tokenizer))


def test_a_stop_id_is_drawn_even_if_the_tokenizer_does_not_know_it_and_ignored_beyond_the_logits(
    gappy: tuple[Path, PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    ids = drawable(gappy[2], ROWS, [FAR, 98, 200])
    assert ids.num_tokens == 99 and ids.stop_ids == (FAR, 98) and 96 in ids.unknown_ids
    assert drawable(gappy[2], 50, [FAR, 98, 200]).stop_ids == ()


def test_an_engine_draws_the_far_ids_and_no_unknown_one(
    gappy: tuple[Path, PreTrainedModel, PreTrainedTokenizerBase],
) -> None:
    path, _, tokenizer = gappy
    # An end beyond the logits is named by some models' files.
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [FAR, 500]}))

    async def sample() -> list[list[int]]:
        async with engine(path, max_num_seqs=64) as made:
            free = await made.generate("12+34=", n=192, max_tokens=24)
            held = await made.generate("12+34=", n=32, max_tokens=12, min_tokens=12)
            return [experience.tokens[experience.prompt_length :].tolist() for experience in [*free, *held]]

    responses = run(sample())
    drawn = {token for response in responses for token in response}
    assert {FAR, ADDED} <= drawn <= set(known_ids(tokenizer))
    assert any(response[-1] == FAR and len(response) < 24 for response in responses[:192]), "it ends a response"
    assert all(FAR not in response[:11] and len(response) == 12 for response in responses[192:])


@pytest.mark.parametrize("written", ["{", "3", "null", '{"eos_token_id": [7, 5]}', '{"eos_token_id": 7}', "{}"])
def test_stop_ids_are_read_from_the_models_file(written: str, gappy: tuple[Path, PreTrainedModel, Any]) -> None:
    folder, _, tokenizer = gappy
    (folder / "generation_config.json").write_text(written)
    if written in ("{", "3", "null"):
        with pytest.raises(EnvironmentProblem, match="cannot read .*generation_config.json") as caught:
            stop_token_ids(str(folder), tokenizer)
        assert caught.value.code == "E3102"
        return
    named = GenerationConfig.from_pretrained(folder).eos_token_id  # what others read there
    ids = [named] if isinstance(named, int) else named or []
    assert stop_token_ids(str(folder), tokenizer) == sorted({FAR, *ids})
