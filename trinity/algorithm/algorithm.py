"""Algorithm types, in the order of `trinity algorithms`.

A type names its functions and has its own defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trinity.algorithm import ALGORITHM_TYPE
from trinity.utils.declaration import Declared, entry_of

TEACHER = ("explorer:", "  auxiliary_models:", "    - model_path: /models/teacher")
EXPERT_DATA = (
    "buffer:",
    "  trainer_input:",
    "    auxiliary_buffers:",
    "      sft_dataset:",
    "        path: demonstrations.jsonl",
)


class AlgorithmType(Declared):
    """What an algorithm is made of, and what it needs from the run.

    Attributes:
        defaults: what differs from the base class in `repeat_times`, `advantage_fn`, `policy_loss_fn`, `kl_loss_fn`,
            `kl_penalty_fn`, `entropy_loss_fn`, `sample_strategy`, and in `..._args` from the defaults of each function.
        use_critic: a critic is trained beside the policy, and the advantage reads its `values`.
        use_reference: a frozen reference model may be read (it is loaded only if a nonzero coefficient reads it).
        compute_advantage_in_trainer: advantages are computed from tensors in the trainer.
        can_balance_batch: rows may be shared among workers in any order.
        schema: kind of the experiences: `sft`, `cpt`, `dpo` or `experience`.
        needs_operators: operators must select the good rollouts; from all of its own rollouts it would learn nothing.
        also_needed: lines of YAML outside of `algorithm` that it needs, with values to start from.
    """

    kind = "algorithm_type"
    defaults: ClassVar[Mapping[str, Any]] = {}
    use_critic = False
    use_reference = False
    compute_advantage_in_trainer = False
    can_balance_batch = True
    schema = "experience"
    needs_operators = False
    also_needed: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def name(cls) -> str:
        """Return the name under which the class is registered."""
        place = f"{cls.__module__}:{cls.__qualname__}"
        return next(name for name, entry in ALGORITHM_TYPE.contents.items() if entry.path == place)

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        """Return the defaults that the algorithm gives the `algorithm` section."""
        return dict(entry_of(cls, kind=cls.kind, calls=False).args)

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Check the rules that are specific to this algorithm.

        `run` calls this before anything is started.

        Raises:
            ConfigError: the configuration does not suit the algorithm.
        """


@ALGORITHM_TYPE.register_module("sft")
class SFTAlgorithm(AlgorithmType):
    """Supervised fine-tuning."""

    summary = "supervised fine-tuning on demonstrations"
    schema = "sft"


@ALGORITHM_TYPE.register_module("cpt")
class CPTAlgorithm(AlgorithmType):
    """Continued pre-training on plain text."""

    summary = "continued pre-training on plain text"
    schema = "cpt"


@ALGORITHM_TYPE.register_module("dpo")
class DPOAlgorithm(AlgorithmType):
    """Direct preference optimisation; the two rows of a pair stay together."""

    summary = "direct preference optimisation on pairs (arXiv:2305.18290, eq. 7)"
    use_reference = True
    can_balance_batch = False
    schema = "dpo"
    defaults = {"repeat_times": 2, "policy_loss_fn": "dpo"}


@ALGORITHM_TYPE.register_module("ppo")
class PPOAlgorithm(AlgorithmType):
    """PPO with a critic."""

    summary = "PPO with a critic (arXiv:1707.06347v2, eq. 7)"
    use_critic = True
    use_reference = True
    compute_advantage_in_trainer = True
    defaults = {"repeat_times": 1, "advantage_fn": "ppo"}


@ALGORITHM_TYPE.register_module("grpo")
class GRPOAlgorithm(AlgorithmType):
    """Group relative policy optimisation."""

    summary = "group relative policy optimisation (arXiv:2402.03300v3, eq. 3)"
    use_reference = True


@ALGORITHM_TYPE.register_module("dapo")
class DAPOAlgorithm(AlgorithmType):
    """GRPO with a wider upper clip and no KL term."""

    summary = "GRPO with a wider upper clip and no KL term (arXiv:2503.14476v2, eq. 8)"
    defaults = {
        "repeat_times": 16,
        "kl_loss_fn": "none",
        "policy_loss_fn_args": {"clip_range_low": 0.2, "clip_range_high": 0.28},
    }


@ALGORITHM_TYPE.register_module("dr_grpo")
class DrGRPOAlgorithm(AlgorithmType):
    """GRPO without standard deviation and length normalisation."""

    summary = "GRPO without standard deviation and length normalisation (arXiv:2503.20783v2, section 3.2)"
    compute_advantage_in_trainer = True
    defaults = {
        "advantage_fn": "verl_grpo",
        "policy_loss_fn": "verl_vanilla",  # its seq-mean-token-sum-norm is the paper's mean over responses
        "kl_loss_fn": "none",
        "advantage_fn_args": {"norm_adv_by_std_in_grpo": False},
        "policy_loss_fn_args": {"loss_agg_mode": "seq-mean-token-sum-norm"},
    }


@ALGORITHM_TYPE.register_module("grpo_verl")
class GRPOVerlAlgorithm(GRPOAlgorithm):
    """GRPO with advantages from token rewards."""

    summary = "GRPO with advantages from token rewards, in the trainer"
    compute_advantage_in_trainer = True
    defaults = {"advantage_fn": "grpo_verl"}


@ALGORITHM_TYPE.register_module("grpo_passk")
class GRPOPassKAlgorithm(GRPOVerlAlgorithm):
    """GRPO for the best of k rollouts."""

    summary = "GRPO for the best of k rollouts (arXiv:2503.19595v2, section 3.1)"
    defaults = {"advantage_fn": "grpo_passk"}


@ALGORITHM_TYPE.register_module("multi_step_grpo")
class MultiStepGRPOAlgorithm(GRPOAlgorithm):
    """GRPO for rollouts of several steps."""

    summary = "GRPO for rollouts of several steps"
    defaults = {"advantage_fn": "step_wise_grpo"}


@ALGORITHM_TYPE.register_module("gigpo")
class GiGPOAlgorithm(GRPOAlgorithm):
    """Group in group policy optimisation."""

    summary = "groups within groups, for agents (arXiv:2505.10978v3, eq. 8)"
    defaults = {"advantage_fn": "gigpo"}


@ALGORITHM_TYPE.register_module("reinforceplusplus")
class ReinforcePlusPlusAlgorithm(GRPOVerlAlgorithm):
    """REINFORCE++."""

    summary = "whitened reward to go (arXiv:2501.03262v9, eq. 4 and 5)"
    defaults = {"repeat_times": 1, "advantage_fn": "reinforceplusplus"}


@ALGORITHM_TYPE.register_module("reinforce_plus_plus_baseline")
class ReinforcePlusPlusBaselineAlgorithm(GRPOVerlAlgorithm):
    """REINFORCE++ with the mean of the task as baseline."""

    summary = "whitened reward minus the mean of the task (arXiv:2501.03262v9, eq. 6 and 7)"
    defaults = {"advantage_fn": "reinforce_plus_plus_baseline"}


@ALGORITHM_TYPE.register_module("rloo")
class RLOOAlgorithm(GRPOVerlAlgorithm):
    """REINFORCE leave-one-out."""

    summary = "REINFORCE leave-one-out (arXiv:2402.14740v2, section 2.3)"
    defaults = {"advantage_fn": "rloo"}


@ALGORITHM_TYPE.register_module("remax")
class RemaxAlgorithm(GRPOVerlAlgorithm):
    """REINFORCE with the reward of a greedy rollout as baseline."""

    summary = "reward minus that of a greedy rollout (arXiv:2310.10505v3, section 4.2)"
    defaults = {"repeat_times": 1, "advantage_fn": "remax"}


@ALGORITHM_TYPE.register_module("opo")
class OPOAlgorithm(AlgorithmType):
    """REINFORCE with the length-weighted optimal baseline."""

    summary = "length-weighted optimal baseline (arXiv:2505.23585v2, section 3.2)"
    compute_advantage_in_trainer = True
    defaults = {"advantage_fn": "opo", "kl_loss_fn": "none"}


@ALGORITHM_TYPE.register_module("gpg")
class GPGAlgorithm(OPOAlgorithm):
    """Group policy gradient."""

    summary = "group policy gradient (arXiv:2504.02546v4, eq. 5)"
    defaults = {"advantage_fn": "gpg", "policy_loss_fn": "verl_gpg"}


@ALGORITHM_TYPE.register_module("opmd")
class OPMDAlgorithm(GRPOAlgorithm):
    """Online policy mirror descent."""

    summary = "online policy mirror descent (arXiv:2505.17826; after arXiv:2501.12599v4, eq. 3)"
    defaults = {"advantage_fn": "opmd", "policy_loss_fn": "opmd"}


@ALGORITHM_TYPE.register_module("asymre")
class AsymREAlgorithm(AlgorithmType):
    """Asymmetric REINFORCE."""

    summary = "asymmetric REINFORCE (arXiv:2506.20520v2, eq. 4)"
    defaults = {"advantage_fn": "asymre", "policy_loss_fn": "opmd", "kl_loss_fn": "none", "entropy_loss_fn": "none"}


@ALGORITHM_TYPE.register_module("topr")
class TOPRAlgorithm(GRPOAlgorithm):
    """Tapered off-policy REINFORCE."""

    summary = "tapered off-policy REINFORCE (arXiv:2503.14286v2, eq. 8)"
    defaults = {"advantage_fn": "reinforce", "policy_loss_fn": "topr"}


@ALGORITHM_TYPE.register_module("sppo")
class SPPOAlgorithm(AlgorithmType):
    """Log-ratio policy gradient within a trust region."""

    summary = "softmax PPO, the log-ratio within a trust region (arXiv:2108.05828)"
    defaults = {"advantage_fn": "opmd", "policy_loss_fn": "sppo", "kl_loss_fn": "none", "entropy_loss_fn": "none"}


@ALGORITHM_TYPE.register_module("rec")
class RECAlgorithm(GRPOAlgorithm):
    """Group-relative REINFORCE for off-policy data."""

    summary = "group-relative REINFORCE, off-policy (arXiv:2509.24203)"
    defaults = {"advantage_fn": "rec", "policy_loss_fn": "rec"}


@ALGORITHM_TYPE.register_module("cispo")
class CISPOAlgorithm(GRPOAlgorithm):
    """Clipped importance weights."""

    summary = "clipped importance weights (arXiv:2506.13585v1, eq. 4 and 5)"
    defaults = {"policy_loss_fn": "cispo"}


@ALGORITHM_TYPE.register_module("gspo")
class GSPOAlgorithm(GRPOAlgorithm):
    """Ratios of whole sequences."""

    summary = "ratios of whole sequences (arXiv:2507.18071v2, eq. 5)"
    defaults = {"policy_loss_fn": "gspo", "policy_loss_fn_args": {"loss_agg_mode": "seq-mean-token-mean"}}


@ALGORITHM_TYPE.register_module("sapo")
class SAPOAlgorithm(GRPOAlgorithm):
    """A soft gate in place of the clip."""

    summary = "a smooth gate instead of the clip (arXiv:2511.20347v2, eq. 5 and 6)"
    defaults = {"policy_loss_fn": "sapo"}


@ALGORITHM_TYPE.register_module("clip_cov")
class ClipCovAlgorithm(AlgorithmType):
    """Some tokens of high covariance are left out of the gradient."""

    summary = "some tokens of high covariance left out (arXiv:2505.22617v1, eq. 11 and 12)"
    defaults = {"policy_loss_fn": "verl_clip_cov", "kl_loss_fn": "none"}


@ALGORITHM_TYPE.register_module("kl_cov")
class KLCovAlgorithm(AlgorithmType):
    """A KL term on the tokens of highest covariance."""

    summary = "a KL term on the tokens of highest covariance (arXiv:2505.22617v1, eq. 13 and 14)"
    defaults = {"policy_loss_fn": "verl_kl_cov", "kl_loss_fn": "none"}


@ALGORITHM_TYPE.register_module("geo_mean")
class GeoMeanAlgorithm(AlgorithmType):
    """Geometric mean of the ratios of a sequence."""

    summary = "geometric mean of the ratios, GMPO (arXiv:2507.20673v3, eq. 4)"
    defaults = {"policy_loss_fn": "verl_geo_mean", "kl_loss_fn": "none"}


@ALGORITHM_TYPE.register_module("raft")
class RAFTAlgorithm(AlgorithmType):
    """Fine-tuning on the rollouts that filters keep."""

    summary = "fine-tuning on the rollouts that filters keep (arXiv:2304.06767)"
    defaults = {"advantage_fn": None, "policy_loss_fn": "sft", "kl_loss_fn": "none", "entropy_loss_fn": "none"}
    needs_operators = True
    also_needed = (
        "data_processor:",
        "  experience_pipeline:",
        "    operators:",
        "      - name: reward_filter",
        "        args: {threshold: 1.0}",
    )


@ALGORITHM_TYPE.register_module("mix")
class MIXAlgorithm(GRPOAlgorithm):
    """GRPO on rollouts and supervised fine-tuning on expert data."""

    summary = "GRPO on rollouts and SFT on expert data (arXiv:2505.17826v3, section 3.2)"
    defaults = {"policy_loss_fn": "mix", "entropy_loss_fn": "mix", "sample_strategy": "mix"}
    also_needed = EXPERT_DATA


@ALGORITHM_TYPE.register_module("mix_chord")
class MIXCHORDAlgorithm(MIXAlgorithm):
    """As mix, with a scheduled weight and a weight per token."""

    summary = "mix with a scheduled weight and a token weight, CHORD (arXiv:2508.11408, eq. 3)"
    defaults = {"policy_loss_fn": "mix_chord"}
    also_needed = EXPERT_DATA


@ALGORITHM_TYPE.register_module("on_policy_distill")
class OnPolicyDistillAlgorithm(AlgorithmType):
    """Distillation from a teacher, on the policy's own rollouts."""

    summary = "distillation from a teacher, on the policy's own rollouts (arXiv:2306.13649)"
    compute_advantage_in_trainer = True
    defaults = {"repeat_times": 1, "advantage_fn": "on_policy_distill", "kl_loss_fn": "none", "entropy_loss_fn": "none"}
    also_needed = TEACHER


@ALGORITHM_TYPE.register_module("jsd")
class JSDAlgorithm(OnPolicyDistillAlgorithm):
    """Distillation by a Jensen-Shannon estimate."""

    summary = "distillation by a Jensen-Shannon estimate (arXiv:2306.13649v3, eq. 1)"
    defaults = {"advantage_fn": "jsd", "advantage_fn_args": {"estimator": "gradient"}}
    also_needed = TEACHER
