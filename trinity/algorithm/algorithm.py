"""Algorithm types: which components an algorithm is made of."""

from __future__ import annotations

from typing import Any

from trinity.algorithm import ALGORITHM_TYPE


class AlgorithmType:
    """What an algorithm needs from the run.

    Attributes:
        use_critic: a value model is trained beside the policy.
        use_reference: a frozen reference model may be read (it is loaded only if a nonzero coefficient reads it).
        compute_advantage_in_trainer: advantages are computed from tensors in the trainer.
        can_balance_batch: rows may be reordered within a batch.
        schema: kind of the experiences: `sft`, `cpt`, `dpo` or `experience`.
    """

    use_critic = False
    use_reference = False
    compute_advantage_in_trainer = False
    can_balance_batch = True
    schema = "experience"

    @classmethod
    def name(cls) -> str:
        """Return the name under which the class is registered."""
        place = f"{cls.__module__}:{cls.__qualname__}"
        return next(name for name, entry in ALGORITHM_TYPE.contents.items() if entry.path == place)

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        """Return the defaults that the algorithm gives the `algorithm` section."""
        return dict(ALGORITHM_TYPE.contents[cls.name()].args)

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Check what only this algorithm knows; `run` calls it before anything is started.

        Raises:
            ConfigError: the configuration does not suit the algorithm.
        """


class SFTAlgorithm(AlgorithmType):
    """Supervised fine-tuning."""

    schema = "sft"


class CPTAlgorithm(AlgorithmType):
    """Continued pre-training on plain text."""

    schema = "cpt"


class DPOAlgorithm(AlgorithmType):
    """Direct preference optimisation; the two rows of a pair stay together."""

    use_reference = True
    can_balance_batch = False
    schema = "dpo"


class PPOAlgorithm(AlgorithmType):
    """PPO with a critic."""

    use_critic = True
    use_reference = True
    compute_advantage_in_trainer = True


class GRPOAlgorithm(AlgorithmType):
    """Group relative policy optimisation."""

    use_reference = True


class DAPOAlgorithm(AlgorithmType):
    """GRPO with a wider upper clip and no KL term."""


class DrGRPOAlgorithm(AlgorithmType):
    """GRPO without standard deviation and length normalisation."""

    compute_advantage_in_trainer = True


class GRPOVerlAlgorithm(GRPOAlgorithm):
    """GRPO with advantages from token rewards."""

    compute_advantage_in_trainer = True


class GRPOPassKAlgorithm(GRPOVerlAlgorithm):
    """GRPO for the best of k rollouts."""


class MultiStepGRPOAlgorithm(GRPOAlgorithm):
    """GRPO for rollouts of several steps."""


class GiGPOAlgorithm(GRPOAlgorithm):
    """Group in group policy optimisation."""


class ReinforcePlusPlusAlgorithm(GRPOVerlAlgorithm):
    """REINFORCE++."""


class ReinforcePlusPlusBaselineAlgorithm(GRPOVerlAlgorithm):
    """REINFORCE++ with the mean of the task as baseline."""


class RLOOAlgorithm(GRPOVerlAlgorithm):
    """REINFORCE leave-one-out."""


class RemaxAlgorithm(GRPOVerlAlgorithm):
    """REINFORCE with the reward of a greedy rollout as baseline."""


class OPOAlgorithm(AlgorithmType):
    """REINFORCE with the length-weighted optimal baseline."""

    compute_advantage_in_trainer = True


class GPGAlgorithm(OPOAlgorithm):
    """Group policy gradient."""


class OPMDAlgorithm(GRPOAlgorithm):
    """Online policy mirror descent."""


class AsymREAlgorithm(AlgorithmType):
    """Asymmetric REINFORCE."""


class TOPRAlgorithm(GRPOAlgorithm):
    """Tapered off-policy REINFORCE."""


class SPPOAlgorithm(AlgorithmType):
    """Log-ratio policy gradient within a trust band."""


class RECAlgorithm(GRPOAlgorithm):
    """Group-relative REINFORCE for off-policy data."""


class CISPOAlgorithm(GRPOAlgorithm):
    """Clipped importance weights."""


class GSPOAlgorithm(GRPOAlgorithm):
    """Ratios of whole sequences."""


class SAPOAlgorithm(GRPOAlgorithm):
    """A soft gate in place of the clip."""


class ClipCovAlgorithm(AlgorithmType):
    """Tokens of high covariance leave the gradient."""


class KLCovAlgorithm(AlgorithmType):
    """Tokens of high covariance are held by a KL term."""


class GeoMeanAlgorithm(AlgorithmType):
    """Geometric mean of the ratios of a sequence."""


class RAFTAlgorithm(AlgorithmType):
    """Fine-tuning on the rollouts that filters keep."""


class MIXAlgorithm(GRPOAlgorithm):
    """GRPO on rollouts and supervised fine-tuning on expert data."""


class MIXCHORDAlgorithm(MIXAlgorithm):
    """As mix, with a scheduled weight and a weight per token."""


class OnPolicyDistillAlgorithm(AlgorithmType):
    """Towards a teacher, on the policy's own rollouts."""

    compute_advantage_in_trainer = True


class JSDAlgorithm(OnPolicyDistillAlgorithm):
    """Distillation by a Jensen-Shannon estimate."""
