"""`validate` says which rows of a veRL file nothing could score, and that a checkpoint is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.common.config.test_dialects import with_parts
from trinity.launch.validation import check
from trinity.preflight.scorers import missing_function

CODES = ("E4004", "E5136", "E5137", "E7058", "W7059", "W3112")


@pytest.mark.parametrize(
    ("source", "changes", "code", "words"),
    [
        ("openai/gsm8k", [], None, ""),
        ("mine", [], "E5136", "'mine'"),
        ("mine", ["custom_reward_function.path=HERE/score.py"], None, ""),
        ("mine", ["custom_reward_function.path=HERE/none.py"], "E5137", "none.py"),
        ("mine", ["custom_reward_function.path=HERE/score.py", "custom_reward_function.name=x"], "E5137",
         "compute_score"),
        ("openai/gsm8k", ["data.reward_fn_key=nope"], "E4004", "'nope'"),
        ("openai/gsm8k", ["trainer.resume_mode=resume_path", "trainer.resume_from_path=HERE/global_step_2"], "E7058",
         "global_step_2"),
        ("openai/gsm8k", ["trainer.resume_mode=resume_path", "trainer.resume_from_path=HERE/global_step_3"], "W7059",
         "data.pt of"),
        ("openai/gsm8k", ["trainer.resume_mode=resume_path", "trainer.resume_from_path=s3://b/global_step_2"], "W3112",
         "nothing of it was looked at"),
    ],
)  # fmt: skip
def test_what_could_not_be_scored_or_resumed_is_told(
    tmp_path: Path, source: str, changes: list[str], code: str | None, words: str
) -> None:
    row = {
        "prompt": [{"role": "user", "content": "1 + 1"}],
        "data_source": source,
        "reward_model": {"ground_truth": "2"},
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "score.py").write_text("import no_such_package\n\ndef compute_score(**row):\n    return 1.0\n")
    (tmp_path / "global_step_3").mkdir()
    (tmp_path / "global_step_3" / "data.pt").touch()
    values = with_parts(
        data__train_files=str(tmp_path / "rows.jsonl"), trainer__default_local_dir=str(tmp_path / "out")
    )
    del values["data"]["val_files"]
    words_of = [f"++{change}".replace("HERE", str(tmp_path)) for change in changes]
    found = {each.code: each.message for each in check(values, tuple(words_of))[1] if each.code in CODES}
    assert list(found) == ([code] if code else [])
    assert words in found.get(code or "", "")


def test_names_that_a_module_binds_are_found_without_running_it(tmp_path: Path) -> None:
    file = tmp_path / "score.py"
    file.write_text(
        "try:\n    from fast import score as a\nexcept ImportError:\n    def b(): ...\nc, d = 1, 2\n1 / 0\n"
    )
    assert [name for name in "abcde" if missing_function(file, name)] == ["e"]
    file.write_text("from mine import *\n")
    assert missing_function(file, "anything") is None
    file.write_text("def (\n")
    assert "no Python file" in str(missing_function(file, "f"))
