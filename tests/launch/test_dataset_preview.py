"""What `trinity data preview` finds in files that are trained on."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.tiny_run import PLAIN
from tests.tiny import tiny_model
from trinity.cli.data import _lines
from trinity.common.errors import ConfigError
from trinity.launch.trial.dataset_preview import DatasetPreview, _num_measured, datasets_previewed
from trinity.launch.trial.stage import TrialOptions, data_stages


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder, "llama", seed=1)
    return folder


def file_of(folder: Path, model: Path, algorithm: str, rows: list[dict[str, Any]], **fmt: Any) -> Path:
    """Write a configuration that trains on rows."""
    tree = json.loads(json.dumps(PLAIN))
    tree |= {"mode": "train", "algorithm": {"algorithm_type": algorithm}, "checkpoint_root_dir": str(folder / "out")}
    tree["model"]["model_path"] = str(model)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = {"name": "own", "storage_type": "file", "path": str(folder / "rows.jsonl"), "format": fmt}
    section = {"train_batch_size": 2, "total_steps": 1, "max_bad_row_ratio": 0.5}
    tree["buffer"] = {**section, "trainer_input": {"experience_buffer": dataset}}
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))
    return folder / "run.yaml"


def found_in(file: Path, **numbers: int) -> DatasetPreview:
    """Return what is found, of the only dataset."""
    (config,) = data_stages(file, TrialOptions())
    (found,) = datasets_previewed(config, num_shown=1, **numbers)
    return found


def test_of_demonstrations_the_answer_is_marked(model: Path, tmp_path: Path) -> None:
    """B95, B100."""
    rows = [
        {"prompt": "1+1=", "response": "2", "number": 0},
        {"prompt": "1+1=", "response": "3", "number": 1},
        {"prompt": "1+1=", "response": "2", "number": 2},
        {"prompt": "1+1=", "response": "1" * 60, "number": 3},
        {"prompt": None, "response": "2", "number": 4},
    ]
    found = found_in(file_of(tmp_path, model, "sft", rows))
    assert (found.num_rows, found.num_repeated, found.num_cut, found.num_dropped) == (4, 1, 0, 1)
    (row,) = found.rows
    assert [(part.name, part.is_trained) for part in row] == [("prompt", False), ("response", True)]
    assert "1+1=" in row[0].text and row[1].text.startswith("2")
    assert [bad.line for bad in found.bad] == [5] and found.long[0].split(":")[1] == "4"
    assert len(found.lengths["prompt"]) == len(found.lengths["response"]) == 4
    assert max(found.lengths["response"]) == 61, "sixty digits, and the end"
    assert [each.code for each in found.findings()] == ["W4040"]
    lines = "\n".join(_lines(found))
    assert "dataset 'own', sft: 4 usable rows, 1 are left out" in lines and "rows.jsonl:5: prompt: is null" in lines
    assert "1 rows have more than 48 tokens (model.max_model_len): they are left out" in lines
    assert "response (trained)\n" in lines and json.dumps(found.facts())


ROWS = {
    "sft": {"prompt": "1+1=", "response": "2"},
    "dpo": {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
    "cpt": {"prompt": "1+1=2"},
}


@pytest.mark.parametrize("algorithm", sorted(ROWS))
def test_texts_are_shown_without_torch(algorithm: str, model: Path, tmp_path: Path) -> None:
    """Its import would take a third of the time."""
    file = file_of(tmp_path, model, algorithm, [ROWS[algorithm], {"prompt": "7", **ROWS[algorithm]}])
    code = "import sys; from trinity.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "assert 'torch' not in sys.modules"
    words = [sys.executable, "-c", code, "data", "preview", "--config", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"dataset 'own', {algorithm}: 2 usable rows" in done.stdout


def test_of_several_turns_each_answer_is_marked(model: Path, tmp_path: Path) -> None:
    turns = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    messages = [{"role": role, "content": text} for role, text in turns]
    fmt = {"prompt_type": "messages", "messages_key": "messages", "enable_concatenated_multi_turn": True}
    (row,) = found_in(file_of(tmp_path, model, "sft", [{"messages": messages}], **fmt)).rows
    assert [part.name for part in row] == ["prompt", "response", "prompt", "response"]
    assert [part.is_trained for part in row] == [False, True, False, True]
    assert all(said in part.text for said, part in zip("abcd", row, strict=True))


def test_of_a_pair_both_answers_are_shown_and_measured(model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "chosen": "2", "rejected": "333"}, {"prompt": "1+1=", "chosen": "2", "rejected": "2"}]
    found = found_in(file_of(tmp_path, model, "dpo", rows))
    (row,) = found.rows
    assert [part.name for part in row] == ["prompt", "chosen", "rejected"]
    assert row[1].text.startswith("2") and row[2].text.startswith("333")
    assert {part: len(lengths) for part, lengths in found.lengths.items()} == {"prompt": 1, "chosen": 1, "rejected": 1}
    assert found.lengths["rejected"][0] == found.lengths["chosen"][0] + 2
    (bad,) = found.bad
    assert (bad.line, bad.code) == (2, "E4022")


def test_a_long_text_is_cut_and_few_rows_are_measured(model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": str(number % 10) * (10 if number % 2 else 60)} for number in range(40)]
    found = found_in(file_of(tmp_path, model, "cpt", rows), num_measured=10)
    assert (found.num_rows, found.num_measured, found.num_cut, found.num_repeated) == (40, 10, 10, 30)
    assert sum(len(part.text) for part in found.rows[0]) == 48, "a token a character, and what is trained on is shown"
    assert "tokens of 10 of them, evenly spaced, are counted" in "\n".join(_lines(found))


def test_of_long_rows_and_of_pairs_fewer_are_measured() -> None:
    texts, pairs = (partial(_num_measured, is_of_pairs=is_of_pairs) for is_of_pairs in (False, True))
    assert texts(300, 60 * 300) == texts(10_000, 10_000) == 2000, "all of a small file"
    assert texts(10_000, 3000 * 10_000) == pairs(10_000, 3000 * 10_000) == 300
    assert texts(10_000, 10**6 * 10_000) == pairs(10_000, 10**6 * 10_000) == 200
    assert pairs(10_000, 10_000) == 1000


def test_more_bad_rows_than_a_run_admits_are_all_shown(model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "1", "response": "2"}, *[{"prompt": None, "response": "2"}] * 3]
    found = found_in(file_of(tmp_path, model, "sft", rows))
    assert [bad.line for bad in found.bad] == [2, 3, 4]
    (finding,) = found.findings()
    assert finding.code == "E4011" and "3 rows cannot be used, and a run leaves out 2 at most" in finding.message


def test_a_stage_without_data_is_refused(model: Path, tmp_path: Path) -> None:
    file = file_of(tmp_path, model, "sft", [{"prompt": "1", "response": "2"}])
    with pytest.raises(ConfigError, match="no stage called 'second' of the file has data to look at") as caught:
        data_stages(file, TrialOptions(stage="second"))
    assert caught.value.code == "E1920"
