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
        schema: kind of the experiences: `sft`, `experience` or `dpo`.
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


class GRPOAlgorithm(AlgorithmType):
    """Group relative policy optimisation."""

    use_reference = True
