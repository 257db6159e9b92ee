"""An algorithm of parts of one's own: type, policy loss, advantage, KL, entropy term and sample strategy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.plugin_run import prepared_plugin, run_plugin
from tests.e2e.tiny_run import TinyRun
from trinity.algorithm import ADVANTAGE_FN, AdvantageFn, SampleStrategy
from trinity.algorithm.advantage_fn import GroupAdvantage
from trinity.algorithm.sample_strategy.default import DefaultSampleStrategy
from trinity.common.config import BufferConfig
from trinity.common.experience import EID, Experience
from trinity.launch.validation import check

pytestmark = pytest.mark.slow

PLUGIN = '''
import torch

from trinity.algorithm import (
    ADVANTAGE_FN, ALGORITHM_TYPE, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN, SAMPLE_STRATEGY,
    AdvantageFn, AlgorithmType, EntropyLossFn, KLFn, PolicyLossFn, SampleStrategy,
)
from trinity.algorithm.kl_fn import KL_FN as DIVERGENCES
from trinity.algorithm.sample_strategy.default import DefaultSampleStrategy
from trinity.algorithm.utils import aggregate_loss, masked_mean
from trinity.buffer import get_buffer_reader


@ALGORITHM_TYPE.register_module("mine")
class Mine(AlgorithmType):
    """All of it."""

    use_critic: bool = False
    use_reference: bool = True
    compute_advantage_in_trainer: bool = True
    can_balance_batch: bool = True
    schema: str = "experience"

    @classmethod
    def default_config(cls):
        return {
            "repeat_times": 2,
            "advantage_fn": "mine",
            "sample_strategy": "mine",
            "policy_loss_fn": "mine",
            "kl_penalty_fn": "none",
            "kl_loss_fn": "mine",
            "entropy_loss_fn": "mine",
        }


@POLICY_LOSS_FN.register_module("mine")
class MyLoss(PolicyLossFn):
    def __init__(self, backend="verl", scale=1.0, shift=0.0):
        super().__init__(backend=backend)
        self.scale, self.shift = scale, shift

    def __call__(self, logprob, old_logprob, action_mask, advantages, **kwargs):
        loss = aggregate_loss(-advantages * logprob * self.scale, action_mask, "token-mean")
        return loss, {"pg_loss": loss.item(), "my_scale": self.scale, "my_shift": self.shift}

    @classmethod
    def default_args(cls):
        return {"scale": 3.0, "shift": 7.0}


@ADVANTAGE_FN.register_module(module_name="mine")
class MyAdvantage(AdvantageFn):
    def __init__(self, factor=1.0):
        self.factor = factor

    def __call__(self, token_level_rewards, response_mask, **kwargs):
        advantages = token_level_rewards.sum(-1, keepdim=True) * response_mask * self.factor
        return advantages, advantages + 1.0, {"my_factor": self.factor}

    @classmethod
    def default_args(cls):
        return {"factor": 5.0}


@DIVERGENCES.register_module("mine")
class MyDivergence(KLFn):
    def calculate_kl(self, logprob, ref_logprob, old_logprob=None):
        return (logprob - ref_logprob) ** 2

    @classmethod
    def default_args(cls):
        return {"adaptive": False, "kl_coef": 0.01}


@ENTROPY_LOSS_FN.register_module("mine")
class MyEntropy(EntropyLossFn):
    def __init__(self, entropy_coef=0.0):
        self.entropy_coef = entropy_coef

    def __call__(self, entropy, action_mask, **kwargs):
        loss = masked_mean(entropy, action_mask)
        return loss * self.entropy_coef, {"my_entropy_coef": self.entropy_coef, "entropy_loss": loss.item()}

    @classmethod
    def default_args(cls):
        return {"entropy_coef": 0.125}


@SAMPLE_STRATEGY.register_module("mine")
class MyStrategy(SampleStrategy):
    def __init__(self, buffer_config, **kwargs):
        super().__init__(buffer_config, **kwargs)
        self.reader = get_buffer_reader(buffer_config.trainer_input.experience_buffer)
        self.steps, self.size, self.word = 0, buffer_config.train_batch_size, kwargs["word"]

    async def sample(self, step, **kwargs):
        metrics = {}
        exps = await self.reader.read()
        self.steps += 1
        self.set_model_version_metric(exps, metrics)
        metrics |= {"sample/my_steps": self.steps, "sample/my_size": self.size, "sample/word": self.word}
        return exps, metrics, []

    @classmethod
    def default_args(cls):
        return {"word": 11.0}

    def state_dict(self):
        return {"steps": self.steps, "reader": self.reader.state_dict()}

    def load_state_dict(self, state_dict):
        self.steps = state_dict["steps"]
        self.reader.load_state_dict(state_dict["reader"])


@SAMPLE_STRATEGY.register_module("over_default")
class OverDefault(DefaultSampleStrategy):
    def __init__(self, buffer_config, **kwargs):
        super().__init__(buffer_config)

    async def sample(self, step, **kwargs):
        exps, metrics, shown = await super().sample(step)
        return exps, {**metrics, "sample/mine": 1.0}, shown
'''
SETTINGS = {
    "algorithm": {
        "algorithm_type": "mine",
        "optimizer": {"lr": 1.0e-3},
        "policy_loss_fn_args": {"shift": 8.0},
    }
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return run_plugin(tmp_path_factory.mktemp("algorithm"), PLUGIN, **SETTINGS)


@pytest.mark.parametrize(
    ("name", "value"),
    {
        "actor/my_scale": 3.0,  # of `default_args`, over the constructor's
        "actor/my_shift": 8.0,  # of the file, over both
        "critic/my_factor": 5.0,
        "actor/kl_coef": 0.01,
        "actor/my_entropy_coef": 0.125,
        "sample/my_size": 4,
        "sample/word": 11.0,
    }.items(),
)
def test_what_the_parts_declare_is_in_force(run: TinyRun, name: str, value: float) -> None:
    lines = [line for line in run.lines("trainer") if "actor/pg_loss" in line]
    assert len(lines) == 2 and [line[name] for line in lines] == [value, value]


def test_the_functions_are_called_with_what_they_ask_for(run: TinyRun) -> None:
    first, second = [line for line in run.lines("trainer") if "actor/pg_loss" in line]
    assert [first["sample/my_steps"], second["sample/my_steps"]] == [1, 2]
    assert first["sample/rollout_count"] == 4 and first["sample/model_version/max"] == 0
    assert first["critic/returns/mean"] == pytest.approx(first["critic/advantages/mean"] + 1)
    assert first["actor/kl_loss"] == 0 < second["actor/kl_loss"]  # the reference is what the run began with


def test_the_state_of_a_strategy_goes_on_after_a_kill(tmp_path: Path) -> None:
    run = prepared_plugin(tmp_path, PLUGIN, **SETTINGS)
    assert run.finish(failpoints="train.before_step=kill@2").status != 0
    assert run.finish().status == 0
    assert [line["sample/my_steps"] for line in run.lines("trainer") if "actor/pg_loss" in line] == [1, 2]


def test_a_strategy_may_build_on_the_one_there_is(tmp_path: Path) -> None:
    algorithm = SETTINGS["algorithm"] | {"sample_strategy": "over_default"}
    run = run_plugin(tmp_path, PLUGIN, algorithm=algorithm)
    lines = [line for line in run.lines("trainer") if "actor/pg_loss" in line]
    assert [line["sample/mine"] for line in lines] == [1.0, 1.0] and lines[0]["sample/rollout_count"] == 4


@pytest.mark.parametrize(
    ("text", "changed", "word"),
    [
        ("use_critic: bool = False", "use_critic: bool = True", "use_critic"),
        ("compute_advantage_in_trainer: bool = True", "compute_advantage_in_trainer: bool = False", "in_trainer"),
        ('"kl_loss_fn": "mine"', '"kl_los_fn": "mine"', "kl_los_fn"),
        ('schema: str = "experience"', 'schema: str = "tables"', "schema"),
    ],
)
def test_a_type_that_its_functions_contradict_is_refused(tmp_path: Path, text: str, changed: str, word: str) -> None:
    assert text in PLUGIN
    run = prepared_plugin(tmp_path, PLUGIN.replace(text, changed), **SETTINGS)
    ended = run.finish()
    assert ended.status == 3 and word in ended.output, ended.output[-1500:]


def test_a_file_is_valid_where_it_runs(run: TinyRun) -> None:
    found = check(run.folder / "run.yaml", plugin_dirs=(run.folder / "plugins",), schema_only=True)[1]
    assert not [problem for problem in found if problem.is_error]


class Shifted(GroupAdvantage):
    """A group advantage as published: every abstract function is there."""

    def __init__(self, shift: float = 0.5) -> None:
        self.shift = shift

    def group_experiences(self, exps):
        return {exp.eid.tid: [other for other in exps if other.eid.tid == exp.eid.tid] for exp in exps}

    def calculate_group_advantage(self, group_id, exps):
        for exp in exps:
            exp.advantages = (exp.reward - self.shift) * exp.action_mask
            exp.returns = exp.advantages.clone()
        return exps, {"seen": len(exps)}

    @classmethod
    def default_args(cls):
        return {"shift": 0.5}


def test_a_group_advantage_is_called_with_experiences() -> None:
    exps, metrics = Shifted()(_experiences(1.0, 0.0), some_argument=1)
    assert [exp.returns.tolist() for exp in exps] == [[0.5, 0.5], [-0.5, -0.5]]
    assert metrics["group_advantages/seen/mean"] == 2 and not Shifted.compute_in_trainer()
    assert issubclass(Shifted, AdvantageFn)


@pytest.mark.parametrize("name", ["grpo", "opmd", "reinforce", "rec", "asymre"])
def test_shipped_group_advantages_set_returns(name: str) -> None:
    exps, _ = ADVANTAGE_FN.get(name)()(_experiences(1.0, 0.0))
    for exp in exps:
        assert exp.advantages.abs().sum() > 0 or exp.reward == 0
        assert exp.returns.equal(exp.advantages) and exp.returns is not exp.advantages


def test_the_constructor_of_a_strategy_takes_the_section() -> None:
    class Plain(SampleStrategy):
        async def sample(self, step):
            return [], {}, []

    section = BufferConfig(batch_size=3)
    assert Plain(section).buffer_config is section and Plain(buffer_config=section, other=1).buffer_config is section
    assert DefaultSampleStrategy(section).buffer_config is section


def _experiences(*rewards: float) -> list[Experience]:
    import torch

    return [
        Experience(
            eid=EID(batch=0, task=0, run=number),
            tokens=torch.tensor([1, 2, 3]),
            prompt_length=1,
            logprobs=torch.zeros(2),
            reward=reward,
        )
        for number, reward in enumerate(rewards)
    ]
