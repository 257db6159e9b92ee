"""An algorithm of one's own in one file: an advantage, a policy loss, and a type that names both."""

import torch

from trinity.algorithm import ADVANTAGE_FN, ALGORITHM_TYPE, POLICY_LOSS_FN, AlgorithmType
from trinity.algorithm.advantage_fn import GroupAdvantage
from trinity.algorithm.policy_loss_fn import TokenLossFn


@ADVANTAGE_FN.register_module("gentle_advantage")
class GentleAdvantage(GroupAdvantage):
    """The reward minus the group's mean; what is below the mean counts less."""

    ranges = {"below": "[0, 1]"}

    def __init__(self, below: float = 0.5) -> None:
        self.below = below

    def calculate_group_advantage(self, group_id, exps):
        mean = sum(exp.reward for exp in exps) / len(exps)
        for exp in exps:
            gain = exp.reward - mean
            exp.advantages = (gain if gain > 0 else self.below * gain) * exp.action_mask
            exp.returns = exp.advantages.clone()
        return exps, {"group_mean": mean}


@POLICY_LOSS_FN.register_module("gentle_loss")
class GentleLoss(TokenLossFn):
    """The policy gradient, with a ratio that is bounded above and passes no gradient."""

    formula = "-min(exp(logprob - old_logprob), {bound}) A logprob"
    ranges = {"bound": "(0, inf)"}

    def __init__(self, backend: str = "verl", bound: float = 2.0, loss_agg_mode: str = "token-mean") -> None:
        super().__init__(backend, loss_agg_mode)
        self.bound = bound

    def __call__(self, logprob, old_logprob, action_mask, advantages):
        weight = torch.exp(logprob.detach() - old_logprob).clamp(max=self.bound)
        loss = self.aggregate(-weight * advantages * logprob, action_mask)
        return loss, {"pg_loss": loss.item()}


@ALGORITHM_TYPE.register_module("gentle")
class Gentle(AlgorithmType):
    """Both, and no other term."""

    use_reference = False
    defaults = {
        "repeat_times": 8, "advantage_fn": "gentle_advantage", "policy_loss_fn": "gentle_loss",
        "kl_loss_fn": "none", "entropy_loss_fn": "none",
    }  # fmt: skip
