"""A plugin that declares in every way that there is, for every kind of class that is no part of an algorithm."""

from __future__ import annotations

HEAD = """
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator, ExperienceOperatorV1
from trinity.buffer.operators.filters import RewardFilter
from trinity.buffer.priority import PRIORITY_FUNC, PriorityFunction
from trinity.buffer.selector import SELECTORS, BaseSelector
from trinity.common.models.reward_models import REWARD_MODELS, RewardModel
from trinity.common.models.reward_models.sequence_classifier import SequenceClassifier
from trinity.common.rewards import REWARD_FUNCTIONS, AccuracyReward, RewardFn
from trinity.common.rewards.no_reward import NoReward
from trinity.common.workflows import WORKFLOWS, Workflow
from trinity.common.workflows.step_wise_workflow import StepWiseRewardWorkflow
from trinity.common.workflows.workflow import MathWorkflow, SimpleWorkflow
from trinity.utils.monitor import MONITOR, Monitor
"""
SHAPES = (
    HEAD
    + '''
MOST = 5.0


@WORKFLOWS.register_module("plain")
class Plain(Workflow):
    """Reads columns of its own."""


@WORKFLOWS.register_module("stepwise")
class Stepwise(StepWiseRewardWorkflow):
    needs = frozenset({"prompt"}) | {"auxiliary_model"}


@WORKFLOWS.register_module("simple")
class Simple(SimpleWorkflow):
    """Has nothing to say.

    More text.
    """


@WORKFLOWS.register_module("chooses")
class Chooses(SimpleWorkflow):
    def reset(self, task):
        self.task = task


@WORKFLOWS.register_module("with_default")
class WithDefault(Simple):
    default_reward_fn: str = "own_accuracy"


@REWARD_FUNCTIONS.register_module("own_accuracy")
class OwnAccuracy(AccuracyReward):
    """As its base."""


@REWARD_FUNCTIONS.register_module("other")
class Other(AccuracyReward):
    ranges = {"weight": f"[0, {MOST}]"}

    def __init__(self, weight, deadline_s=1.0, **rest):
        super().__init__(deadline_s=deadline_s)

    def __call__(self, response, prompt=None, truth=None, **kwargs):
        return {"other": 1.0}


@REWARD_FUNCTIONS.register_module("silent")
class Silent(NoReward):
    pass


@REWARD_FUNCTIONS.register_module("not_silent")
class NotSilent(NoReward):
    def __call__(self, response, prompt=None, truth=None, **kwargs):
        return {"one": 1.0}


@REWARD_FUNCTIONS.register_module("by_function")
def by_function(response, prompt=None, truth=None, **kwargs):
    return {"one": 1.0}


@EXPERIENCE_OPERATORS.register_module("filter")
class Filter(RewardFilter):
    """As its base."""


@EXPERIENCE_OPERATORS.register_module("bonus")
class Bonus(ExperienceOperator):
    changes_rewards = True

    def __init__(self, bonus: float = 0.5, *, where=("a", "b")):
        self.bonus = bonus

    def process(self, exps):
        return exps, {}


@EXPERIENCE_OPERATORS.register_module("late")
class Late(ExperienceOperatorV1):
    async def process(self, exps):
        return exps, {}


@SELECTORS.register_module("backwards")
class Backwards(BaseSelector):
    def row_at(self, position):
        return -position % self.num_rows


@PRIORITY_FUNC.register_module("newest")
class Newest(PriorityFunction):
    ranges = {"most": "[0, inf]"}

    def __init__(self, most=3):
        self.most = most

    def __call__(self, item):
        return item.model_version, item.use_count < self.most


@REWARD_MODELS.register_module("letters")
class Letters(RewardModel):
    def __init__(self, config, weight=1.0):
        super().__init__(config)

    def score(self, experiences):
        return [0.0 for _ in experiences]


@REWARD_MODELS.register_module("classifier")
class Classifier(SequenceClassifier):
    pass


@MONITOR.register_module("elsewhere")
class Elsewhere(Monitor):
    package = "no_such_tracker"

    @classmethod
    def default_args(cls):
        return {"url": "http://localhost"}

    def log(self, data, step, commit=False):
        pass
'''
)
