"""Experience operators of one's own, of both published forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.plugin_run import prepared_plugin, run_plugin, training_lines
from tests.e2e.tiny_run import TinyRun
from trinity.buffer.operators.experience_operator import create_operators
from trinity.common.config import OperatorConfig

pytestmark = pytest.mark.slow

PLUGIN = """
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator, ExperienceOperatorV1
from trinity.buffer.operators.filters import RewardFilter
from trinity.common.experience import group_by


@EXPERIENCE_OPERATORS.register_module("mine")
class MyOperator(ExperienceOperatorV1):
    def __init__(self, bonus=0.0):
        self.bonus = bonus

    async def prepare(self):
        self.names = sorted(self.auxiliary_models)

    async def process(self, exps):
        question = [{"role": "user", "content": "2+2="}]
        (answer,) = await self.auxiliary_models["judge"].chat_async(question, temperature=0.0)
        async with self.auxiliary_models["judge"].get_openai_async_client() as client:
            said = await client.chat.completions.create(
                model=client.model_path, messages=question, temperature=0.0, max_tokens=8
            )
        assert said.choices[0].message.content == answer.response_text
        for exp in exps:
            exp.reward += self.bonus
        return exps, {"judged": len(answer.tokens), "models": len(self.names)}

    async def close(self):
        open("closed.txt", "a").write("mine ")


@EXPERIENCE_OPERATORS.register_module(module_name="old")
class OldOperator(ExperienceOperator):
    def process(self, exps):
        return exps, {"tasks": len(group_by(exps, "task"))}

    def close(self):
        open("closed.txt", "a").write("old ")


class Lenient(RewardFilter):
    async def process(self, exps):
        kept, metrics = await super().process(exps)
        return kept or exps, {**metrics, "lenient": float(len(kept))}


EXPERIENCE_OPERATORS.register_module("lenient", Lenient)
"""
SETTINGS: dict[str, Any] = {
    "data_processor__experience_pipeline__operators": [
        {"name": "mine", "args": {"bonus": 1.0}},
        {"name": "old"},
        {"name": "pass_rate_calculator"},
        {"name": "lenient", "args": {"threshold": 100.0}},
    ],
    "explorer__auxiliary_models": [{"model_path": "model", "name": "judge", "dtype": "float32"}],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return run_plugin(tmp_path_factory.mktemp("operators"), PLUGIN, **SETTINGS)


@pytest.mark.difference("`self.auxiliary_models` of an operator")
def test_operators_find_the_auxiliary_models_by_name(run: TinyRun) -> None:
    for line in run.lines("explorer")[:2]:
        assert line["experience_pipeline/mine/judged"] > 0 and line["experience_pipeline/mine/models"] == 1


def test_operators_are_applied_in_their_order_each_to_what_the_one_before_left(run: TinyRun) -> None:
    for line in run.lines("explorer")[:2]:
        assert line["experience_pipeline/old/tasks"] == 2
        assert line["experience_pipeline/pass_rate_calculator/selection/>0_ratio"] == 1.0
    assert all(line["critic/score/min"] >= 1.0 for line in training_lines(run)), "the operator added 1 to each reward"


def test_an_operator_may_build_on_a_shipped_one(run: TinyRun) -> None:
    line = run.lines("explorer")[0]
    assert line["experience_pipeline/lenient/lenient"] == 0 and line["experience_pipeline/experience_count"] == 4


def test_operators_are_closed_at_the_end(run: TinyRun) -> None:
    assert (run.folder / "closed.txt").read_text().split() == ["mine", "old"]


def test_an_operator_that_fails_is_named_with_its_place(tmp_path: Path) -> None:
    changes = {"data_processor__experience_pipeline__operators": [{"name": "old"}]}
    ended = prepared_plugin(tmp_path, PLUGIN.replace('group_by(exps, "task")', "exps[99].reward"), **changes).finish()
    assert ended.status not in (0, 1), ended.output
    assert all(word in ended.output for word in ("old", "IndexError", "own.py")), ended.output[-2000:]


def test_operators_are_made_with_auxiliary_models() -> None:
    (operator,) = create_operators([OperatorConfig(name="pass_rate_calculator")], {"judge": 1})
    assert operator.auxiliary_models == {"judge": 1}
