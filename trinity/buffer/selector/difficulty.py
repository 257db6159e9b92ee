"""Tasks near a target difficulty, which is estimated online.

The method is BOTS, of Q. Shen et al., "BOTS: A Unified Framework for Bayesian Online Task Selection in LLM
Reinforcement Finetuning" (arXiv:2510.26374): a belief about every task, which is updated with explicit and implicit
evidence and forgets older evidence, an interpolation between two reference models, and Thompson sampling. The arguments
are those of Trinity-RFT's selector of this name. What is computed:

Of every task k the belief about the model's pass rate is Beta(alpha_k, beta_k), with the prior Beta(1, 1). After a step
in which the tasks B were attempted:

    alpha_k <- (1 - lamb) alpha_k + lamb + (1 - rho) s_k + rho s~_k
    beta_k  <- (1 - lamb) beta_k  + lamb + (1 - rho) f_k + rho f~_k

s_k = m r_k and f_k = m (1 - r_k) are the explicit evidence, with the mean reward r_k of the task, and 0 for tasks
outside of B. s~_k = m p~_k and f~_k = m (1 - p~_k) are the implicit evidence: r_k again for tasks of B, and for all
others an interpolation between the pass rates of a weaker and a stronger reference model, w_k and v_k:

    p~_k = clip(w_k + c (v_k - w_k), 0, 1),   c = (mean_B r - mean_B w) / (mean_B v - mean_B w)

c says where the model stands between the two, as a running mean. Tasks are drawn without replacement from the softmax
of -|target_reward - p_k| / tau, p_k being the mean of the belief or a draw from it (Thompson sampling).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinity.buffer.selector.data_source import DataSource
from trinity.buffer.selector.features import features_of
from trinity.buffer.selector.registry import SELECTORS
from trinity.buffer.selector.selector import BaseSelector, generator
from trinity.common.config.buffer import DataSelectorConfig
from trinity.utils.log import get_logger

NUM_REFERENCES = 2
CAPABILITY_DECAY = 0.9  # of the running mean of c, as published
MIN_SPREAD = 1e-6  # references that differ by less on the tasks of a step say nothing about c
MAX_ERROR = 0.25  # with adaptive_rho, the mean error of p~ from which rho is halved

_logger = get_logger("buffer")


@SELECTORS.register_module("difficulty_based")
class DifficultyBasedSelector(BaseSelector):
    """Rows with a pass rate near a target (BOTS, arXiv:2510.26374).

    It learns from what the operator `pass_rate_calculator` reports after each explore step, and needs two
    `feature_keys`: the pass rates of a weaker and of a stronger model. A choice is a function of the seed, of the
    number of rows chosen before and of what was reported so far. A call for up to `dataset_size` rows returns no row
    twice.

    Arguments (`kwargs`):
        m: rollouts that the evidence of a step counts as, > 0.
        lamb: share of the belief that is forgotten in a step, in [0, 1].
        rho: weight of implicit evidence, in [0, 1].
        target_reward: pass rate that is aimed at.
        tau: temperature of the choice, >= 0; 0: the nearest rows.
        do_sample: draw the pass rate from the belief in place of its mean.
        adaptive_rho: halve `rho` after each step in which p~ was off by 0.25 on average.
    """

    arguments = {
        "m": 16,
        "lamb": 0.2,
        "rho": 0.2,
        "target_reward": 1.0,
        "tau": 1.0,
        "do_sample": False,
        "adaptive_rho": False,
    }
    ranges = {"m": "(0, inf)", "lamb": "[0, 1]", "rho": "[0, 1]", "target_reward": "(-inf, inf)", "tau": "[0, inf)"}
    num_features = (NUM_REFERENCES, NUM_REFERENCES)
    learns_from_feedback = True

    def __init__(self, data_source: DataSource, config: DataSelectorConfig) -> None:
        super().__init__(data_source, config)
        chosen = self.arguments | config.kwargs
        self._m, self._lamb = float(chosen["m"]), float(chosen["lamb"])
        self._target, self._tau = float(chosen["target_reward"]), float(chosen["tau"])
        self._do_sample, self._adaptive = bool(chosen["do_sample"]), bool(chosen["adaptive_rho"])
        features = features_of(data_source, config, fewest=NUM_REFERENCES, most=NUM_REFERENCES)
        self._weak, self._strong = np.asarray(features, dtype=np.float64).T
        self.alphas = np.ones(self.num_rows)
        self.betas = np.ones(self.num_rows)
        self.rho = float(chosen["rho"])
        self.capability: float | None = None
        self._has_warned = False

    def get_indices(self, batch_size: int, return_extra_info: bool = False) -> Any:
        """Return the 0-based indices of the next `batch_size` rows.

        With `return_extra_info`, also return `scores`, `alphas`, `betas` and the means `point` of the rows.
        """
        rows, scores = list[int](), list[float]()
        while len(rows) < batch_size:
            chosen, of_chosen = self._choose(min(batch_size - len(rows), self.num_rows))
            rows += chosen
            scores += of_chosen
        if not return_extra_info:
            return rows
        alphas, betas = self.alphas[rows], self.betas[rows]
        return rows, {
            "indices": rows,
            "scores": scores,
            "alphas": alphas.tolist(),
            "betas": betas.tolist(),
            "point": (alphas / (alphas + betas)).tolist(),
        }

    def _choose(self, n: int) -> tuple[list[int], list[float]]:
        draws = generator(self.seed, self.position)
        rates = draws.beta(self.alphas, self.betas) if self._do_sample else self.alphas / (self.alphas + self.betas)
        scores = -np.abs(self._target - rates)
        keys = scores
        if self._tau > 0:
            # The n largest of logits with Gumbel noise are n draws without replacement from their softmax.
            keys = scores / self._tau + draws.gumbel(size=self.num_rows)
        rows = np.argsort(-keys, kind="stable")[:n].tolist()
        self.position += n
        return rows, scores[rows].tolist()

    def feedback(self, indices: Sequence[int], values: Sequence[float]) -> None:
        """Update the beliefs with the mean rewards of the tasks of a step.

        Rewards are taken as pass rates: what is below 0 or above 1 is cut, with a warning.
        """
        if not len(indices):
            return
        rows, rates = self._means(indices, values)
        self._follow(rows, rates)
        implicit = np.zeros(self.num_rows)
        has_implicit = np.zeros(self.num_rows, dtype=bool)
        if self.capability is not None:
            implicit = np.clip(self._weak + self.capability * (self._strong - self._weak), 0.0, 1.0)
            has_implicit[:] = True
            error = float(np.abs(implicit[rows] - rates).mean())
            if self._adaptive and error >= MAX_ERROR:
                self.rho *= 0.5
        implicit[rows], has_implicit[rows] = rates, True
        explicit, is_explicit = np.zeros(self.num_rows), np.zeros(self.num_rows)
        explicit[rows], is_explicit[rows] = rates, 1.0
        of_step, of_model = (1 - self.rho) * self._m, self.rho * self._m * has_implicit
        kept = 1 - self._lamb
        self.alphas = kept * self.alphas + self._lamb + of_step * explicit + of_model * implicit
        self.betas = kept * self.betas + self._lamb + of_step * (is_explicit - explicit) + of_model * (1 - implicit)

    def _means(self, indices: Sequence[int], values: Sequence[float]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the rows, each once, and the means of their values in [0, 1]."""
        given = np.asarray(values, dtype=np.float64)
        if not self._has_warned and not ((given >= 0) & (given <= 1)).all():
            self._has_warned = True
            text = "selector difficulty_based: mean rewards from %g to %g are cut to pass rates in [0, 1]"
            _logger.warning(text, given.min(), given.max())
        rows, place = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
        sums = np.bincount(place, weights=np.clip(given, 0.0, 1.0))
        return rows, sums / np.bincount(place)

    def _follow(self, rows: NDArray[Any], rates: NDArray[Any]) -> None:
        """Estimate where the model stands between the two references."""
        weak = self._weak[rows].mean()
        spread = self._strong[rows].mean() - weak
        if abs(spread) < MIN_SPREAD:
            return
        now = float((rates.mean() - weak) / spread)
        before = now if self.capability is None else self.capability
        self.capability = CAPABILITY_DECAY * before + (1 - CAPABILITY_DECAY) * now

    def state_dict(self) -> dict[str, Any]:
        """Return position and beliefs.

        The arrays are packed, since they are part of every snapshot.
        """
        return super().state_dict() | {
            "alphas": _packed(self.alphas),
            "betas": _packed(self.betas),
            "capability": self.capability,
            "rho": self.rho,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            CheckpointError: the dataset or the seed is not the one of the state (E7005).
        """
        super().load_state_dict(state_dict)
        self.alphas, self.betas = _unpacked(state_dict["alphas"]), _unpacked(state_dict["betas"])
        self.capability, self.rho = state_dict["capability"], float(state_dict["rho"])


def _packed(array: NDArray[Any]) -> str:
    """Return the bytes of float64 numbers, compressed, as text."""
    return base64.b64encode(zlib.compress(array.astype("<f8").tobytes())).decode("ascii")


def _unpacked(text: str) -> NDArray[Any]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<f8").astype(np.float64)
