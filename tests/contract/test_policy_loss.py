"""Policy losses of one's own: every published form of the constructor and of the call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.plugin_run import prepared_plugin, run_plugin, training_lines

pytestmark = pytest.mark.slow

PLUGIN = '''
from typing import Dict, Optional, Tuple

import torch

from trinity.algorithm.policy_loss_fn import POLICY_LOSS_FN, PolicyLossFn
from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn as Base
from trinity.algorithm.policy_loss_fn.ppo import PPOPolicyLossFn
from trinity.algorithm.utils import aggregate_loss, masked_mean


@POLICY_LOSS_FN.register_module("published")
class Published(PolicyLossFn):
    """With its mapper of names, further arguments and defaults of its own."""

    def __init__(self, backend: str = "verl", scale: float = 1.0, shift: float = 0.0, mode: str = "token-mean") -> None:
        super().__init__(backend=backend)
        self.scale, self.shift, self.mode = scale, shift, mode

    def __call__(  # type: ignore
        self,
        logprob: torch.Tensor,
        old_logprob: torch.Tensor,
        action_mask: torch.Tensor,
        advantages: torch.Tensor,
        **kwargs,
    ) -> Tuple[torch.Tensor, Dict]:
        assert logprob.shape == old_logprob.shape == action_mask.shape == advantages.shape
        ratio = torch.exp(logprob - old_logprob)
        loss = aggregate_loss(-advantages * ratio * self.scale, action_mask, loss_agg_mode=self.mode)
        return loss, {"pg_loss": loss.detach().item(), "my_scale": self.scale, "my_shift": self.shift}

    @classmethod
    def default_args(cls) -> Dict:
        return {"scale": 3.0, "shift": 7.0}


@POLICY_LOSS_FN.register_module(module_name="few")
class Few(Base):
    """Positional, without further arguments, and with the rewards of the tokens."""

    def __init__(self, backend="verl"):
        super().__init__(backend)

    def __call__(self, logprob, action_mask, advantages):
        loss = -masked_mean(advantages * logprob, action_mask)
        return loss, {"pg_loss": loss.item(), "my_rows": float(len(logprob))}

    @classmethod
    def default_args(cls):
        return {}


class Derived(PPOPolicyLossFn):
    def __call__(self, logprob, old_logprob, action_mask, advantages, **kwargs):
        loss, metrics = super().__call__(
            logprob=logprob, old_logprob=old_logprob, action_mask=action_mask, advantages=advantages, **kwargs
        )
        return loss * 0.5, {**metrics, "my_clip": self.clip_range_high}


POLICY_LOSS_FN.register_module("derived", Derived)


@POLICY_LOSS_FN.register_module("by_name")
class ByName(POLICY_LOSS_FN.get("ppo")):
    def __call__(self, **tensors):
        loss, metrics = super().__call__(**tensors)
        return -loss, metrics
'''


def _algorithm(name: str, **args: Any) -> dict[str, Any]:
    return {"algorithm__policy_loss_fn": name, "algorithm__policy_loss_fn_args": args}


def test_defaults_stand_under_what_the_file_writes(tmp_path: Path) -> None:
    for line in training_lines(run_plugin(tmp_path, PLUGIN, **_algorithm("published", shift=8.0))):
        assert (line["actor/my_scale"], line["actor/my_shift"]) == (3.0, 8.0)


@pytest.mark.difference("Tensors of a loss")
def test_a_loss_names_the_few_tensors_that_it_wants(tmp_path: Path) -> None:
    for line in training_lines(run_plugin(tmp_path, PLUGIN, **_algorithm("few"))):
        assert 1 <= line["actor/my_rows"] <= 4 and line["actor/pg_loss"] == line["actor/final_loss"]


def test_a_loss_may_build_on_a_shipped_one(tmp_path: Path) -> None:
    for line in training_lines(run_plugin(tmp_path, PLUGIN, **_algorithm("derived", clip_range=0.3))):
        assert line["actor/final_loss"] == pytest.approx(line["actor/pg_loss"] / 2) and line["actor/my_clip"] == 0.3


@pytest.mark.difference("Modules of shipped classes, such as `policy_loss_fn.ppo_policy_loss`")
def test_a_loss_may_build_on_a_registered_name(tmp_path: Path) -> None:
    for line in training_lines(run_plugin(tmp_path, PLUGIN, **_algorithm("by_name", clip_range=0.3))):
        assert line["actor/final_loss"] == -line["actor/pg_loss"] != 0


@pytest.mark.parametrize(
    ("text", "changed", "words"),
    [
        ("return loss, {", "return {", ("Few", "own.py")),
        ("logprob, action_mask, advantages)", "logprob, action_mask, benefits)", ("benefits",)),
        ("-masked_mean(", "-masked_meen(", ("masked_meen", "own.py")),
    ],
)
def test_a_loss_with_a_fault_is_named_with_its_file(
    tmp_path: Path, text: str, changed: str, words: tuple[str, ...]
) -> None:
    head, mark, rest = PLUGIN.partition("class Few")
    assert text in rest
    ended = prepared_plugin(tmp_path, head + mark + rest.replace(text, changed, 1), **_algorithm("few")).finish()
    assert ended.status not in (0, 1) and all(word in ended.output for word in words), ended.output[-2500:]
