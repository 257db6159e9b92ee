"""The formulas of the policy losses, by class name; for the language they are written in see `utils.formula`.

r = exp(logprob - old_logprob); A is the advantage; sg holds its argument: no gradient flows through it; p =
exp(logprob). A first line that begins with `=` is the whole loss, any other the loss of a token.
"""

from __future__ import annotations

_RATIO = "\nr = exp(logprob - old_logprob)"
_SEQUENCE_RATIO = (
    "\ns = exp(mean over the response's tokens of logprob - old_logprob), each token with its own gradient"
)
_COVARIANCE = "\ncov = (A - mean A)(logprob - mean logprob), means over the tokens of the mini-batch"
_DPPO = f"-A sg(min(r, {{clip_ratio_c}})) logprob inside the trust region, else 0{_RATIO}"
_SAPO = (
    "-A sigmoid(tau (r - 1)) 4 / tau"
    f"{_RATIO}\ntau = {{tau_pos}} where A > 0, else {{tau_neg}}"
)  # fmt: skip
_VERL_BOUNDS = "1 - {clip_ratio_low|clip_ratio}, 1 + {clip_ratio_high|clip_ratio}"
_BOUNDS = "1 - {clip_range_low|clip_range}, 1 + {clip_range_high|clip_range}"
_MIX = (
    f"\nU: max(-A r, -A clip(r, {_BOUNDS})), where A < 0 at most -3 A, over the policy's own rows, by "
    "{grpo_loss_agg_mode|loss_agg_mode}"
    "\nS: over the expert's rows, by {sft_loss_agg_mode|loss_agg_mode}, of "
)
_MIX_END = f"{_RATIO}\nU and S are each normalised over their own rows of the whole mini-batch"

POLICY_LOSS_FORMULAS: dict[str, str] = {
    "PPOPolicyLossFn": (
        f"max(-A r, -A clip(r, {_BOUNDS}))"
        "\nwhere A < 0 at most -A {clip_ratio_c} (dual clip)"
        f"{_RATIO}"
        "\n?enable_sequence_masking where A < 0, 0 in responses whose mean of old_logprob - logprob is above "
        "{delta_sequence_masking}"
        "\n?fallback_to_policy_gradient old_logprob = sg(logprob): r is 1 and only its gradient counts"
    ),
    "VerlVanillaPolicyLossFn": (
        f"max(-A r, -A clip(r, {_VERL_BOUNDS}))\nwhere A < 0 at most -A {{clip_ratio_c}} (dual clip){_RATIO}"
    ),
    "ImportanceSamplingPolicyLossFn": f"-A r{_RATIO}",
    "OPMDPolicyLossFn": "-A logprob / (1 + {tau})",
    "GSPOPolicyLossFn": (
        "max(-A s, -A clip(s, 1 - {clip_range_low|clip_range|0.0003}, 1 + {clip_range_high|clip_range|0.0004}))"
        f"{_SEQUENCE_RATIO}"
    ),
    "VerlGSPOPolicyLossFn": f"max(-A s, -A clip(s, {_VERL_BOUNDS})){_SEQUENCE_RATIO}\nln s is at most 10",
    "CISPOPolicyLossFn": (
        "-A sg(clip(r, 1 - {clip_range_low}, 1 + {clip_range_high})) logprob"
        f"{_RATIO}"
        "\n?enable_mask_clip 0 where A > 0 and r > 1 + {mask_clip_range_high}, and where A < 0 and "
        "r < 1 - {mask_clip_range_low}"
    ),
    "VerlCISPOPolicyLossFn": f"-A sg(clip(r, {_VERL_BOUNDS})) logprob{_RATIO}",
    "SAPOPolicyLossFn": _SAPO,
    "VerlSAPOPolicyLossFn": f"= mean over the responses of their means over the tokens of {_SAPO}",
    "TOPRPolicyLossFn": (
        f"-sg(alpha) A logprob\nalpha = 1 where A > {{advantage_threshold}}, else clip(r, 0, 1){_RATIO}"
    ),
    "SPPOPolicyLossFn": (
        f"-A (logprob - old_logprob) where 1 / (1 + {{epsilon}}) <= r <= 1 + {{epsilon}}, else 0{_RATIO}"
    ),
    "RECPolicyLossFn": (
        "= mean of -A w logprob on the kept tokens, 0 on the others, plus the regulariser on all"
        "\n?clip_mode=gspo-one-side the mean is over the responses of their means over tokens"
        "\n?clip_mode!=gspo-one-side the mean is over the tokens"
        "\n?weight=none w = 1"
        "\n?weight=importance_sampling w = sg(r)"
        "\n?weight=gspo_importance_sampling w = sg(exp(mean over the response of logprob - old_logprob))"
        "\n?weight=advantage w = exp(A / {temp})"
        "\n?clip_mode=none every token is kept"
        "\n?clip_mode=one-side kept: r <= 1 + {epsilon_high} where A >= 0, r >= 1 - {epsilon_low} where A <= 0"
        "\n?clip_mode=gspo-one-side kept: s <= 1 + {epsilon_high} where A >= 0, s >= 1 - {epsilon_low} where A <= 0, "
        "s = exp(mean over the response of logprob - old_logprob)"
        "\n?clip_mode=two-side kept: 1 - {epsilon_low} <= r <= 1 + {epsilon_high}"
        "\n?clip_mode=ring kept: 1 - {epsilon_low} <= r <= 1 + {epsilon_high}, r <= 1 - {epsilon_low_prime} where "
        "A >= 0, r >= 1 + {epsilon_high_prime} where A <= 0"
        "\n?regularizer=none the regulariser is 0"
        "\n?regularizer=k2 the regulariser is {regularizer_coef} (logprob - old_logprob)^2"
        "\n?regularizer=forward-kl the regulariser is -{regularizer_coef} logprob"
        f"{_RATIO}"
    ),
    "SFTPolicyLossFn": "-logprob",
    "SFTISPolicyLossFn": "-sg(p) logprob\np = exp(logprob)",
    "SFTPhiPolicyLossFn": "-sg(p (1 - p)) min(logprob, ln {cutoff_prob})\np = exp(logprob)",
    "DPOPolicyLossFn": (
        "= mean over the pairs of l(x)"
        "\n?label_smoothing=0 l(x) = -ln sigmoid(x)"
        "\n?label_smoothing!=0 l(x) = -(1 - {label_smoothing}) ln sigmoid(x) - {label_smoothing} ln sigmoid(-x)"
        "\nx = {beta} (D(chosen) - D(rejected)), D = sum over the response's tokens of logprob - ref_logprob"
        "\n?sft_coef!=0 plus {sft_coef} times the mean over the pairs of the chosen response's mean of -logprob"
    ),
    "MIXPolicyLossFn": f"= (1 - {{mu}}) U + {{mu}} S{_MIX}-logprob{_MIX_END}",
    "MIXCHORDPolicyLossFn": (
        "= (1 - mu) U + mu S"
        "\nmu rises from 0 to {mu_peak} in {mu_warmup_steps} steps, falls to {mu_valley} in {mu_decay_steps} (half "
        "cosine), and stays there"
        f"{_MIX}-w logprob"
        "\n?enable_phi_function w = sg(p (1 - p)), p = exp(logprob)"
        "\n?enable_phi_function=False w = 1"
        f"{_MIX_END}"
    ),
    "VerlGPGPolicyLossFn": "-A logprob",
    "VerlGeoMeanPolicyLossFn": (
        "= mean over the responses of -mean(A) exp(mean over the tokens of d)"
        "\nd = logprob - old_logprob, at most {clip_ratio_high|clip_ratio} where A > 0 and at least "
        "-{clip_ratio_low|clip_ratio} where A < 0"
    ),
    "VerlClipCovPolicyLossFn": (
        f"max(-A r, -A clip(r, {_VERL_BOUNDS}))"
        "\n0 for a share of {clip_cov_ratio} of the tokens, at least one, drawn among those not clipped with "
        "{clip_cov_lb} < cov < {clip_cov_ub}"
        f"{_COVARIANCE}{_RATIO}"
    ),
    "VerlKLCovPolicyLossFn": (
        "-A r, plus {ppo_kl_coef} |logprob - old_logprob| on the tokens of highest covariance"
        "\nthese are a share of {kl_cov_ratio} of the tokens, at least one"
        f"{_COVARIANCE}{_RATIO}"
    ),
    "VerlDPPOTVPolicyLossFn": (
        f"{_DPPO}"
        "\ninside: p - p_old <= {clip_ratio_high|clip_ratio} where A > 0, p - p_old >= -{clip_ratio_low|clip_ratio} "
        "elsewhere"
        "\np = exp(logprob), p_old = exp(old_logprob)"
    ),
    "VerlDPPOKLPolicyLossFn": (
        f"{_DPPO}"
        "\ninside: KL <= {clip_ratio_high|clip_ratio} or p <= p_old where A > 0, KL <= {clip_ratio_low|clip_ratio} or "
        "p >= p_old elsewhere"
        "\nKL = p_old ln(p_old / p) + (1 - p_old) ln((1 - p_old) / (1 - p)), p = exp(logprob), "
        "p_old = exp(old_logprob)"
    ),
    "VerlDROPolicyLossFn": "-(A logprob - {dro_beta} (logprob - old_logprob)^2 / 2)",
    "VerlBypassModePolicyLossFn": (
        "= the loss below over the tokens that the rejection keeps"
        f"\n?loss_type=ppo_clip max(-A r, -A clip(r, {_VERL_BOUNDS})), where A < 0 at most -A {{clip_ratio_c}}, "
        "by {loss_agg_mode}"
        "\n?loss_type=reinforce -A w logprob, by {loss_agg_mode}"
        f"{_RATIO}"
        "\n?rollout_is importance weights w by {rollout_is}, bound {rollout_is_threshold}"
        "\n?rollout_rs rejection by {rollout_rs}, bounds {rollout_rs_threshold}"
    ),
}
