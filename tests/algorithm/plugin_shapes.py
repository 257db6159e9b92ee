"""A plugin that declares in every way that there is, for every kind of function of an algorithm."""

from __future__ import annotations

HEAD = """
import math
from abc import ABC

import trinity.algorithm as ta
from trinity.algorithm import ADVANTAGE_FN, ALGORITHM_TYPE, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN, SAMPLE_STRATEGY
from trinity.algorithm import AdvantageFn, AlgorithmType, EntropyLossFn, GroupAdvantage, KLFn, SampleStrategy
from trinity.algorithm import PolicyLossFn as Base
from trinity.algorithm.algorithm import DAPOAlgorithm, GRPOAlgorithm, PPOAlgorithm
from trinity.algorithm.policy_loss_fn.gspo import GSPOPolicyLossFn
from trinity.algorithm.policy_loss_fn.token_loss import TokenLossFn

"""
# Every way of saying something that published plugins have, and those that our own classes have.
SHAPES = (
    HEAD
    + '''
BETA = 0.5
SHARED = {"beta": BETA, "names": ("a", "b")}


class Remembering:
    """Has nothing to say."""

    def state_dict(self):
        return {}


@POLICY_LOSS_FN.register_module("by_signature")
class BySignature(Base):
    """Says it with its parameters.

    More text.
    """

    def __init__(self, backend: str = "verl", clip: float | None = 0.1, *, beta: float = BETA, bound=-math.inf):
        super().__init__(backend)

    def __call__(self, logprob, action_mask, advantages, ref_logprob, teacher_logprobs=None, **kwargs):
        return logprob.sum(), {}


@POLICY_LOSS_FN.register_module("by_method")
class ByMethod(TokenLossFn):
    summary = "says it " + "with methods"
    formula = f"-A logprob {BETA}"
    ranges = {"beta": "[0, 1]", "kind": ("a", "b")}
    needed_if = {"beta": ""}
    convention = "verl"

    def __init__(self, backend="verl", beta=0.1, kind="a", loss_agg_mode="token-mean"):
        super().__init__(backend, loss_agg_mode)

    def __call__(self, logprob, old_logprob, action_mask, advantages, rollout_is_weights=None):
        return logprob.sum(), {}

    @classmethod
    def default_args(cls) -> dict:
        """Doc."""
        return {"beta": 0.25, "kind": "b"}


class Between(ByMethod, ABC):
    """A base in the file."""

    def __init__(self, backend="verl", beta=0.1, more=None, needed=None, **kwargs):
        super().__init__(backend, beta=beta, **kwargs)


@POLICY_LOSS_FN.register_module("by_inheritance")
class ByInheritance(Remembering, Between):
    """Inherits."""


@POLICY_LOSS_FN.register_module("needs_an_argument")
@POLICY_LOSS_FN.register_module(name="needs_an_argument_too")
class NeedsAnArgument(GSPOPolicyLossFn):
    """Has no default for one."""

    def __init__(self, backend, needed, clip_range=None):
        super().__init__(backend, clip_range)


@ADVANTAGE_FN.register_module("in_trainer")
class InTrainer(ta.AdvantageFn):
    """Compares in the trainer."""

    def __init__(self, gamma=1.0):
        self.gamma = gamma

    def __call__(self, token_level_rewards, action_mask, uid, values=None):
        return token_level_rewards, token_level_rewards, {}


@ADVANTAGE_FN.register_module("in_pipeline")
class InPipeline(GroupAdvantage):
    """Compares in the pipeline."""

    def __init__(self, epsilon=1e-6, **kwargs):
        self.epsilon = epsilon

    @classmethod
    def default_args(cls):
        args = {"epsilon": 1e-3}
        args["rest"] = dict(a=1)
        args.update({"more": [1, 2]})
        return args

    def calculate_group_advantage(self, group_id, exps):
        return exps, {}


@ADVANTAGE_FN.register_module("elsewhere")
class Elsewhere(AdvantageFn):
    """Says where by a method."""

    @classmethod
    def compute_in_trainer(cls):
        return False


@KL_FN.register_module("own_kl")
class OwnKL(KLFn):
    """A divergence."""

    needs = frozenset({"ref_logprob", "old_logprob"})

    def __init__(self, power: float = 2.0, **kwargs):
        super().__init__(**kwargs)

    @classmethod
    def default_args(cls):
        return {**super().default_args(), "kl_coef": 0.5}

    def calculate_kl(self, logprob, ref_logprob, old_logprob=None):
        return logprob


@ENTROPY_LOSS_FN.register_module("own_entropy")
class OwnEntropy(EntropyLossFn):
    """An entropy term."""

    def __init__(self, entropy_coef=0.01, target=1.0):
        super().__init__(entropy_coef)

    def __call__(self, entropy, action_mask, loss_agg_mode="token-mean", expert_mask=None, **kwargs):
        return entropy.sum(), {}


@SAMPLE_STRATEGY.register_module("own_strategy")
class OwnStrategy(SampleStrategy):
    """A strategy."""

    def __init__(self, source, *, batch_size, window: int = 4):
        super().__init__(source, batch_size=batch_size)

    async def sample(self, step):
        return [], {}, []


@ALGORITHM_TYPE.register_module("published_type")
class PublishedType(AlgorithmType):
    """As published plugins write it."""

    use_critic = True
    use_reference: bool = True
    compute_advantage_in_trainer = True
    can_balance_batch = False
    schema = "experience"

    @classmethod
    def default_config(cls) -> dict:
        return {
            "repeat_times": 3,
            "advantage_fn": "in_trainer",
            "advantage_fn_args": {"gamma": 0.9},
            "sample_strategy": "own_strategy",
            "policy_loss_fn": "by_method",
            "kl_penalty_fn": "none",
            "kl_loss_fn": "own_kl",
            "entropy_loss_fn": "own_entropy",
        }

    @classmethod
    def check_config(cls, config) -> None:
        pass


@ALGORITHM_TYPE.register_module("type_over_another")
class TypeOverAnother(DAPOAlgorithm):
    """Takes over what it does not say."""

    defaults = {"policy_loss_fn": "by_signature", "repeat_times": 4}
    needs_operators = True
    also_needed = ("buffer:", "  batch_size: 4")


@ALGORITHM_TYPE.register_module("type_over_a_plugin")
class TypeOverAPlugin(PublishedType):
    """Adds to what another plugin says."""

    @classmethod
    def default_config(cls):
        config = {**super().default_config(), "repeat_times": 5}
        config["kl_loss_fn"] = "none"
        return config


@ALGORITHM_TYPE.register_module("type_of_pairs")
class TypeOfPairs(ta.AlgorithmType):
    """Trains on pairs."""

    schema = "dpo"
    defaults = {"policy_loss_fn": "dpo", "repeat_times": 2}
'''
)
