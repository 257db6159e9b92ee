"""Every kind of wrong configuration: its code, the key, the line and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from tests.common.config.rows import COMBINATIONS, KEYS_AND_TYPES, RANGES, with_
from tests.common.config.rows_of_tasksets import TASKSETS
from trinity.common.config import Catalogue, ConfigErrors, Finding, examine
from trinity.common.errors import ExitCode


def find(problems: list[Finding], code: str, key: str) -> Finding:
    found = [p for p in problems if p.code == code and p.key == key]
    assert found, [(p.code, p.key, p.message) for p in problems]
    return found[0]


@pytest.mark.difference("`over_rollout`, `dynamic_timeout` with `deterministic: true`")
@pytest.mark.parametrize(
    ("text", "code", "key", "line", "hint"),
    [
        pytest.param(*row, id=name)
        for rows in (KEYS_AND_TYPES, RANGES, COMBINATIONS, TASKSETS)
        for name, row in rows.items()
    ],
)
def test_wrong_values_are_named_with_place_and_way_out(
    examined: Examine, text: str, code: str, key: str, line: int | None, hint: str | None
) -> None:
    problem = find(examined(text)[1], code, key)
    assert line is None or problem.line == line
    assert problem.is_error == code.startswith("E")
    assert hint is None or hint in (problem.suggestion or "")
    assert problem.exit_code == ExitCode.USAGE or not problem.is_error


@pytest.mark.difference("`name`")
@pytest.mark.parametrize(
    "name", ["", "../../x", "a/b/c", "CON", "x" * 300, "emoji🙂", "-n", ".hidden", "con.txt", "trailing.", "nul"]
)
def test_names_that_are_no_folder_are_refused(examined: Examine, name: str) -> None:
    problem = find(examined(with_("", name=f"name: '{name}'"))[1], "E1304", "name")
    assert problem.line == 2


@pytest.mark.parametrize("place", ["trainer", "bench"])
def test_an_explorer_apart_does_not_take_the_place_of_another_component(examined: Examine, place: str) -> None:
    rest = f"explorer: {{name: {place}}}\ntrainer: {{name: learner}}\n"
    problem = find(examined(with_(f"mode: explore\n{rest}"))[1], "E1305", "explorer.name")
    assert problem.line == 14 and "its own name" in (problem.suggestion or "")
    assert not [each for each in examined(with_(rest))[1] if each.code == "E1305"], "in one process nothing is shared"


@pytest.mark.parametrize("name", ["gsm8k", "Trinity-RFT", "实验一", "a b", "v0.1+x"])
def test_names_that_are_folders_are_accepted(examined: Examine, name: str) -> None:
    assert not [p for p in examined(with_("", name=f"name: '{name}'"))[1] if p.is_error]


TEXTS = {
    "B12": ("model: {}\nname: a\nname: b\n", "E1006", 3, "keep one"),
    "B13": ("model:\n\tmodel_path: x\n", "E1001", 2, "tab"),
    "B14": ("", "E1002", None, "model"),
    "comments only": ("# nothing\n", "E1002", None, "model"),
    "B17 colon": ("name：x\nmode: both\n", "E1001", 1, "full-width"),
    "B18": ('name: !!python/object/apply:os.system ["true"]\n', "E1005", 1, "plain"),
    "B19 depth": ("a: " + "[" * 5000, "E1007", 1, None),
    "B19 recursion": ("a: &a [*a]\n", "E1007", 1, None),
    "backticks": ("mode: `both`\n", "E1001", 1, "backticks"),
    "list": ("- 1\n", "E1001", 1, "project"),
    "two documents": ("a: 1\n---\nb: 1\n", "E1001", 2, None),
}


@pytest.mark.parametrize(("text", "code", "line", "hint"), [pytest.param(*row, id=name) for name, row in TEXTS.items()])
def test_text_that_is_no_configuration(examined: Examine, text: str, code: str, line: int, hint: str | None) -> None:
    with pytest.raises(ConfigErrors) as caught:
        examined(text)
    problem = caught.value.problems[0]
    assert (problem.code, problem.line) == (code, line)
    assert hint is None or hint in (problem.suggestion or "")
    assert caught.value.exit_code == ExitCode.USAGE


def test_alias_bombs_end_at_the_limit(examined: Examine) -> None:
    text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for left, right in zip("abcdefg", "bcdefgh", strict=True):
        text += f"{right}: &{right} [{', '.join(['*' + left] * 10)}]\n"
    with pytest.raises(ConfigErrors, match="more than 50000 values"):
        examined(text)


def test_files_that_cannot_be_read(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    with pytest.raises(ConfigErrors, match="did you mean .*run.yaml"):
        examine(tmp_path / "rum.yaml", catalogue=catalogue)
    with pytest.raises(ConfigErrors, match="is a folder"):
        examine(tmp_path, catalogue=catalogue)
    (tmp_path / "run.toml").write_text("a = 1\n")
    with pytest.raises(ConfigErrors, match="TOML") as caught:
        examine(tmp_path / "run.toml", catalogue=catalogue)
    assert caught.value.code == "E1004"
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ConfigErrors, match="UTF-8"):
        examine(tmp_path / "latin.yaml", catalogue=catalogue)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks_are_accepted(tmp_path: Path, catalogue: Catalogue, encoding: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(("# 配置\n" + MINIMAL).encode(encoding))
    assert not [p for p in examine(path, catalogue=catalogue)[1] if p.is_error]


def test_json_is_accepted_even_with_tabs(examined: Examine) -> None:
    text = '{\n\t"model": {"model_path": "m", "max_model_len": 8},\n\t"nme": 1\n}\n'
    problem = find(examined(text)[1], "E1203", "nme")
    assert problem.line == 3


@pytest.mark.difference("Unknown keys")
def test_all_problems_come_at_once_with_their_lines(examined: Examine) -> None:
    text = with_(
        "mode: trian\nalgorithm:\n  repeat_time: 8\n", batch_size="batch_size: abc", max_model_len="max_model_len: 0"
    )
    problems = [p for p in examined(text)[1] if p.is_error]
    assert [(p.code, p.line) for p in problems] == [("E1302", 5), ("E1101", 7), ("E1301", 13), ("E1203", 15)]


def test_the_text_of_a_problem_shows_the_line(examined: Examine) -> None:
    problem = find(examined(with_("algorithm:\n  repeat_time: 8\n"))[1], "E1203", "algorithm.repeat_time")
    assert problem.render().splitlines() == [
        "error[E1203]: unknown key `algorithm.repeat_time`",
        f"  --> {problem.file}:14:3",
        "  14 |   repeat_time: 8",
        "     |   ^^^^^^^^^^^ did you mean `repeat_times`?",
    ]


@pytest.mark.parametrize(
    ("key", "address", "way_out"),
    [
        ("checkpoint_root_dir", "hdfs://nn/place", "keep it on a local disk"),
        ("checkpoint_root_dir", "s3://nn/place", "keep it on a local disk"),
        ("trainer.trainer_config.trainer.resume_from_path", "https://nn/place", "mount or download nn/place"),
        ("model.model_path", "ftp://nn/place", "mount or download nn/place"),
        ("model.model_path", "https://nn/place", "mount or download nn/place"),
        ("buffer.explorer_input.taskset.path", "ftp://nn/place", "mount or download nn/place"),
        ("trainer.checkpoint_upload_dir", "https://nn/place", "checkpoints are in `checkpoint_root_dir`"),
        ("buffer.trainer_input.auxiliary_buffers.sft_dataset.path", "az://u:pass-word@nn/place", "download u:***@nn"),
    ],
)
def test_an_address_from_which_nothing_is_fetched_is_refused(
    examined: Examine, key: str, address: str, way_out: str
) -> None:
    """It became a folder `hdfs:` in the working directory, and a dataset was not found under a name nobody wrote."""
    _, problems = examined(MINIMAL, f"{key}={address}")
    problem = find(problems, "E1896", key)
    assert problem.is_error and way_out in (problem.suggestion or ""), problem.suggestion
    assert f"an address of {address.partition(':')[0]}" in problem.message and "pass-word" not in problem.render()
