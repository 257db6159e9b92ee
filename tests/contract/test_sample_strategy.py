"""Sample strategies of one's own: with a reader, over the shipped one, and their state."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.plugin_run import prepared_plugin, run_plugin, training_lines
from trinity.algorithm import SampleStrategy
from trinity.common.config import BufferConfig

pytestmark = pytest.mark.slow

PLUGIN = """
from trinity.algorithm.sample_strategy import SAMPLE_STRATEGY, SampleStrategy
from trinity.algorithm.sample_strategy.sample_strategy import DefaultSampleStrategy
from trinity.algorithm.sample_strategy.utils import representative_sample
from trinity.buffer import get_buffer_reader
from trinity.utils.timer import Timer


@SAMPLE_STRATEGY.register_module("mine")
class MyStrategy(SampleStrategy):
    def __init__(self, buffer_config, **kwargs):
        super().__init__(buffer_config, **kwargs)
        self.exp_buffer = get_buffer_reader(buffer_config.trainer_input.experience_buffer)
        self.steps, self.size, self.word = 0, buffer_config.train_batch_size, kwargs["word"]

    async def sample(self, step, **kwargs):
        metrics = {}
        with Timer(metrics, "time/read_experience"):
            exps = await self.exp_buffer.read(min_model_version=max(step - 3, 0))
        self.steps += 1
        self.set_model_version_metric(exps, metrics)
        metrics |= {"sample/my_steps": self.steps, "sample/my_size": self.size, "sample/word": self.word}
        return exps, metrics, representative_sample(exps)

    @classmethod
    def default_args(cls):
        return {"word": 11.0}

    def state_dict(self):
        return {"steps": self.steps, "reader": self.exp_buffer.state_dict()}

    def load_state_dict(self, state_dict):
        self.steps = state_dict["steps"]
        self.exp_buffer.load_state_dict(state_dict["reader"])


class OverDefault(DefaultSampleStrategy):
    def __init__(self, buffer_config, **kwargs):
        super().__init__(buffer_config)

    async def sample(self, step, **kwargs):
        exps, metrics, shown = await super().sample(step)
        return exps, {**metrics, "sample/mine": 1.0}, shown


SAMPLE_STRATEGY.register_module(module_name="over_default", module_cls=OverDefault)
"""
KEY = "algorithm__sample_strategy"


def test_a_strategy_reads_the_buffer_and_has_the_defaults_that_it_declares(tmp_path: Path) -> None:
    first, second = training_lines(run_plugin(tmp_path, PLUGIN, **{KEY: "mine"}))
    assert [first["sample/my_steps"], second["sample/my_steps"]] == [1, 2]
    assert (first["sample/my_size"], first["sample/word"]) == (4, 11.0)
    assert first["sample/rollout_count"] == 4 and first["sample/model_version/max"] == 0
    assert first["time/read_experience"] > 0


def test_what_a_strategy_knows_outlives_a_kill(tmp_path: Path) -> None:
    run = prepared_plugin(tmp_path, PLUGIN, **{KEY: "mine", "algorithm__sample_strategy_args": {"word": 2.0}})
    assert run.finish(failpoints="train.before_step=kill@2").status != 0
    assert run.finish().status == 0
    lines = training_lines(run)
    assert [line["sample/my_steps"] for line in lines] == [1, 2] and lines[0]["sample/word"] == 2.0


def test_a_strategy_may_build_on_the_shipped_one(tmp_path: Path) -> None:
    lines = training_lines(run_plugin(tmp_path, PLUGIN, **{KEY: "over_default"}))
    assert [line["sample/mine"] for line in lines] == [1.0, 1.0] and lines[0]["sample/rollout_count"] == 4


def test_the_constructor_of_a_strategy_takes_the_section() -> None:
    class Plain(SampleStrategy):
        async def sample(self, step):
            return [], {}, []

    section = BufferConfig(batch_size=3)
    assert Plain(section).buffer_config is section and Plain(buffer_config=section, other=1).buffer_config is section
