"""The formulas of the advantage functions, by class name; for the language they are written in see `utils.formula`.

R is the reward of a rollout; mean and std (unbiased) are over the rollouts of its task where nothing else is said.
"""

from __future__ import annotations

_WHITEN = "\nwhiten(x) = (x - mean) / sqrt(variance + 1e-8) over the tokens of the batch"
_TO_GO = "\nG = sum of the rewards from the token on"
_DROP = "\n?std_threshold tasks with std <= {std_threshold} or one rollout are dropped"
_BATCH_STD = "\n?std_cal_level=batch std is over all rollouts of the batch"
_DIVISOR = (
    "\n?norm_adv_by_std_in_grpo divisor = std({0}) + {{epsilon}}"
    "\n?norm_adv_by_std_in_grpo=False divisor = 1: no division by the standard deviation"
)
_OPMD = (
    "R - baseline"
    "\n?opmd_baseline=mean baseline = mean(R)"
    "\n?opmd_baseline=logavgexp baseline = {tau} ln(mean(exp(R / {tau})))"
)
_ASYMRE = "R - (mean(R) + {baseline_shift})"
_OTB = (
    f"G - b{_TO_GO}\nb = sum(G W) / sum(W) over the rollouts of the task, at the same position"
    "\nW = sum up to the token of 1 - 2 p + sum over the vocabulary of p^2, p = exp(old_logprob)"
)
_GRPO_TOKENS = "(R - mean(R)) / (std(R) + {epsilon})"
_CHANGE = "\nS = p (H + ln p), p = exp(old_logprob), H the entropy of the policy before the step"

ADVANTAGE_FORMULAS: dict[str, str] = {
    "GRPOGroupedAdvantage": (
        f"{_GRPO_TOKENS}{_BATCH_STD}{_DROP}"
        "\n?duplicate_experiences surviving tasks are repeated in place of dropped ones"
        "\n?rank_penalty mean and std are those of R (1 - k/n {rank_penalty}), k the rank by mean log-probability"
    ),
    "StepWiseGRPOAdvantage": (
        "(R - mean(R)) / (std(R) + {epsilon}), on every step of the rollout"
        "\nR is the reward of the rollout's last step"
        f"{_BATCH_STD}{_DROP}"
        "\n?enable_step_norm divided by the number of steps of the rollout"
    ),
    "GiGPOAdvantage": (
        "n(episode) + {omega} n(step)"
        "\nepisode: the sum of the rollout's step rewards, among the rollouts of the task"
        "\nstep: the rewards from the step on, discounted by {gamma} a step, among steps from equal states; 0 where "
        "there is no other"
        "\n?fnorm=none n(x) = (x - mean) / (1 + {epsilon})"
        "\n?fnorm=std n(x) = (x - mean) / (std + {epsilon})"
    ),
    "REINFORCEGroupAdvantage": "R",
    "OPMDGroupAdvantage": _OPMD,
    "OPMDAdvantage": _OPMD,
    "ASYMREGroupAdvantage": _ASYMRE,
    "ASYMREAdvantage": _ASYMRE,
    "RECGroupedAdvantage": (
        "(R - mean(R)) / divisor"
        "\n?std_normalize divisor = std(R) + {epsilon}, of the population"
        "\n?std_normalize=False divisor = 1"
        "\n?drop=balance rollouts below the mean that outnumber the others get 0 and leave mean and std"
    ),
    "GAEAdvantage": (
        "whiten(sum over k of ({gamma} {lam})^k delta(t + k))"
        "\ndelta(t) = reward(t) + {gamma} value(t + 1) - value(t)"
        f"{_WHITEN}"
    ),
    "REINFORCEPlusPlusAdvantage": (
        f"whiten(G)\nG = sum of the rewards from the token on, discounted by {{gamma}} a token{_WHITEN}"
    ),
    "REINFORCEPlusPlusBaselineAdvantage": f"whiten(R - mean(R)){_WHITEN}",
    "REMAXAdvantage": f"G - R(greedy rollout of the task){_TO_GO}",
    "RLOOAdvantage": "R - mean(R of the other rollouts)\na task with one rollout keeps R",
    "RLOOVectorizedAdvantage": "R - mean(R of the other rollouts)\na task with one rollout gets 0",
    "GRPOAdvantage": _GRPO_TOKENS,
    "VerlGRPOAdvantage": f"(R - mean(R)) / divisor{_DIVISOR.format('R')}",
    "GRPOPassKAdvantage": (
        f"(best R - second best R) / divisor for the best rollout, 0 for the others{_DIVISOR.format('R')}"
    ),
    "GDPOAdvantage": (
        "whiten(sum over the reward components k of w(k) (R(k) - mean(R(k))) / divisor)"
        "\n?gdpo_reward_weights w = {gdpo_reward_weights}"
        "\n?gdpo_reward_weights=None w(k) = 1"
        "\n?gdpo_reward_keys components: {gdpo_reward_keys}"
        f"{_DIVISOR.format('R(k)')}{_WHITEN}"
    ),
    "OPOAdvantage": "R - sum(length R) / sum(length)\nlength: tokens of the rollout",
    "GPGAdvantage": "alpha (R - mean(R))\nalpha = rollouts of the batch / those whose reward is not 0",
    "OptimalTokenBaselineAdvantage": _OTB,
    "TIROptimalTokenBaselineAdvantage": f"{_OTB}\npositions are counted over the tokens that the policy produced",
    "ClipBAdvantage": (
        "G, and 0 where G < 0 and S < mean(S) - {mu} std(S), over the tokens of the batch"
        f"\nG = {_GRPO_TOKENS}{_CHANGE}"
    ),
    "ClipVAdvantage": (
        "G, and 0 where G <= 0 and E - S > {mu} std(E - S), over the tokens of the batch, for at most a share of "
        f"{{max_frac}} of them\nG = {_GRPO_TOKENS}{_CHANGE}"
        "\nE = sum over the vocabulary of p^2 (H + ln p)"
    ),
    "OnPolicyDistillAdvantage": "{kl_coef} (teacher_logprob - old_logprob)",
    "JSDAdvantage": (
        "-{kl_coef} J"
        "\n?estimator=gradient J = (1 - {lambda_coef}) (s - m), the policy gradient of the divergence"
        "\n?estimator=value J = {lambda_coef} (t - m) + (1 - {lambda_coef}) (s - m), its estimate at the token"
        "\nm = ln({lambda_coef} e^t + (1 - {lambda_coef}) e^s)"
        "\ns = old_logprob / {temperature}, t = teacher_logprob / {temperature}"
        "\n?lambda_coef=0 J is s - t"
    ),
}
