"""What `validate` says of operators of Data-Juicer, which another process imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trinity.common.config import Config
from trinity.preflight.data_juicer import check_data_juicer
from trinity.utils.caches import HOME_ENV_VAR


def found(operators: list[dict[str, object]], **service: object) -> list[tuple[str, str]]:
    args = {"operators": operators}
    tree = {
        "mode": "both",
        "service": {"data_juicer": {"auto_start": True, **service}},
        "data_processor": {"experience_pipeline": {"operators": [{"name": "data_juicer", "args": args}]}},
    }
    return [(each.code, each.message) for each in check_data_juicer(Config.model_validate(tree))]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HOME_ENV_VAR, str(tmp_path / "caches"))
    return tmp_path / "caches" / "trinity" / "data_juicer"


def test_operators_arguments_and_values_are_those_of_the_installation(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = {"api_or_hf_model": "judge", "min_score": 0.0, "input_keys": ["a"], "field_names": ["A"]}
    operators = [
        {"text_length_filter": {"min_len": 3}},
        {"document_deduplicator": {}},
        {"llm_quality_score_filter": judged},
        {"text_lenght_filter": {}},
        {"text_length_filter": {"minlen": 3}},
        {"text_length_filter": {"min_len": "three"}},
        {"llm_quality_score_filter": {**judged, "try_num": 0}},
        {"naive_grouper": {}},
        {"python_lambda_mapper": {}},
        {"vggt_mapper": {}},
        {"language_id_score_filter": {}},
        {"words_num_filter": {"tokenization": True}},
        {"document_minhash_deduplicator": {"tokenization": "space"}},
    ]
    expected = [
        ("E5801", "runs code"),
        ("E5801", "vggt_mapper is refused: it fetches programs"),
        ("E5801", "language_id_score_filter is refused: it is not one of those known"),
        ("E5801", "the argument tokenization of the operator words_num_filter"),
        ("E5804", "no operator 'text_lenght_filter'; did you mean text_length_filter?"),
        ("E5804", "Unknown parameter 'minlen' (did you mean: min_len"),
        ("E5804", "'min_len' expects type 'int', got 'str' (value: 'three')"),
        ("E5804", "'try_num' is 0: Input should be greater than 0"),
        ("E5801", "joins rows"),
    ]
    first = found(operators)
    assert [code for code, _ in first] == [code for code, _ in expected]
    assert all(said in message for (_, said), (_, message) in zip(expected, first, strict=True))
    assert found([{"python_lambda_mapper": {}}], allowed_operators=["python_lambda_mapper"]) == []
    # The answer is kept: a Data-Juicer that cannot be run any more is not asked again about the same.
    assert len(list(cache.glob("*.json"))) == 2
    monkeypatch.setattr("trinity.service.data_juicer.checking.LIMIT_S", 0.0)
    assert found(operators) == first
    ((code, said),) = found([{"text_length_filter": {"max_len": 3}}])
    assert code == "W5807" and "did not answer within 0 s; the server checks them" in said


def test_what_cannot_be_checked_is_said(tmp_path: Path) -> None:
    unseen = {"auto_start": False, "server_url": "http://127.0.0.1:9"}
    ((code, said),) = found([{"my_filter": {}}], **unseen, allowed_operators=["my_filter"])
    assert code == "W5807" and "my_filter" in said and "those of the server at http://127.0.0.1:9" in said
    (code, said), (unasked, _) = found([{"text_lenght_filter": {}}], **unseen)
    assert (code, unasked) == ("E5801", "W5807") and "did you mean text_length_filter?" in said
    ((code, _),) = found([])
    assert code == "E1930"
    ((code, said),) = found([{"text_length_filter": {}}], python=str(tmp_path / "python"))
    assert code == "E3440" and "cannot be run" in said


def test_a_judge_outside_of_a_repeatable_run_is_named() -> None:
    args = {"operators": [{"llm_quality_score_filter": {"api_or_hf_model": "gpt"}}]}
    tree = {
        "mode": "both",
        "deterministic": True,
        "service": {"data_juicer": {"server_url": "http://127.0.0.1:9"}},
        "data_processor": {"experience_pipeline": {"operators": [{"name": "data_juicer", "args": args}]}},
    }

    def said(**more: object) -> dict[str, str]:
        return {each.code: each.message for each in check_data_juicer(Config.model_validate(tree | more))}

    assert "the model gpt is that of a service" in said()["W5808"]
    assert said(explorer={"auxiliary_models": [{"name": "gpt"}]}).keys() == {"W5807"}
    assert said(deterministic=False).keys() == {"W5807"}


def test_an_environment_without_it_is_told_how_to_get_it(tmp_path: Path) -> None:
    # An environment that has nothing at all.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty")], check=True, timeout=120)
    ((code, said),) = found([{"text_length_filter": {}}], python=str(tmp_path / "empty" / "bin" / "python"))
    assert code == "E3440" and "pip install py-data-juicer aiohttp" in said


@pytest.mark.parametrize("mode", ["train", "serve", "bench"])
def test_nobody_needs_it_where_nothing_is_explored(mode: str) -> None:
    tree = {"mode": mode, "data_processor": {"task_pipeline": {"operators": [{"name": "nothing"}]}}}
    assert list(check_data_juicer(Config.model_validate(tree))) == []
