"""What a program may give as configuration and overrides, and that nothing of it changes on the way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import trinity
from tests.e2e.tiny_run import PLAIN
from trinity.common.config import ConfigErrors, override_texts
from trinity.common.config.given import read_source
from trinity.common.config.overrides import apply_overrides
from trinity.common.config.tree import Tree

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=12)
PLAIN_VALUES = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | WORDS
VALUES = st.recursive(
    PLAIN_VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"\A[a-z_]+\Z"), inner)
)


@given(value=VALUES)
def test_a_value_is_read_as_it_was_given(value: Any) -> None:
    assert read_source({"a": value}).values == {"a": value}
    tree, problems = apply_overrides(Tree({}), override_texts({"a": value}))
    assert not problems and tree.values == {"a": value}


def test_a_number_that_looks_like_text_stays_what_it_is() -> None:
    values = {"a": "1e-6", "b": 1e-6, "c": "yes", "d": True, "e": "null", "f": math.inf, "g": "0x10", "h": "2026-01-01"}
    assert read_source(values).values == values


def test_overrides_may_be_nested_dotted_or_texts() -> None:
    dotted = {"algorithm.repeat_times": 4, "algorithm.optimizer.lr": 1e-5, "stages[0].mode": "train"}
    nested = {"algorithm": {"repeat_times": 4, "optimizer": {"lr": 1e-5}}, "stages[0]": {"mode": "train"}}
    assert override_texts(dotted) == override_texts(nested)
    assert override_texts(["a.b=1", "c={}"]) == ("a.b=1", "c={}") and override_texts("a=1") == ("a=1",)
    assert override_texts(None) == () and override_texts({"a": {}}) == ("a={}",)
    assert override_texts({"a": Path("x/y"), "b": (1, 2)}) == ("a=x/y", "b=[1, 2]")


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        ({"algorithm": {"repat_times": 4}}, "E1203", "did you mean `repeat_times`?"),
        ({"num_generations": 4}, "E1205", "write `algorithm.repeat_times`"),
        ({"algorithm.repeat_times": "four"}, "E1101", "must be an integer"),
        ({"algorithm": {"optimizer": {1: 2}}}, "E1012", "`algorithm.optimizer`: a key must be text"),
        ({"model.model_path": object()}, "E1011", "`model.model_path` has object, which YAML cannot hold"),
        (["repeat_times"], "E1008", "not of the form a.b=c"),
    ],
)
def test_overrides_are_as_strict_as_those_of_the_command(overrides: Any, code: str, words: str) -> None:
    with pytest.raises(ConfigErrors) as refused:
        trinity.load_config(PLAIN, overrides)
    assert code in {problem.code for problem in refused.value.problems} and words in refused.value.format()


def test_a_configuration_is_a_file_a_mapping_or_what_load_config_gave(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(PLAIN))
    config = trinity.load_config(file, {"buffer.total_steps": 5})
    assert config.buffer.total_steps == 5 and config == trinity.load_config(PLAIN, ["buffer.total_steps=5"])
    reports = [
        trinity.validate(given, schema_only=True) for given in (file, str(file), PLAIN, trinity.load_config(file))
    ]
    assert all(report.is_valid for report in reports), reports[0].errors
    assert len({config.model_dump_json() for report in reports for config in report.configs}) == 1
    with pytest.raises(ConfigErrors, match="must be a YAML file, a mapping or a `Config`, got int"):
        trinity.load_config(7)  # type: ignore[arg-type]


def test_validate_tells_all_problems_and_raises_them_on_demand() -> None:
    report = trinity.validate(PLAIN, {"algorithm.repat_times": 4, "buffer.batch_sise": 1}, schema_only=True)
    assert [problem.code for problem in report.errors] == ["E1203", "E1203"]
    assert not report.is_valid and not report.configs
    with pytest.raises(ConfigErrors, match="repat_times"):
        report.raise_errors()
    assert "<given values>" in trinity.validate(PLAIN | {"modle": {}}, schema_only=True).errors[0].render()
    good = trinity.validate(PLAIN, schema_only=True)
    good.raise_errors()
    assert {"seed", "buffer.train_batch_size"} & {each.key for each in good.derived[0]}
