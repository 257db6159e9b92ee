"""A Llama for vLLM that loses a weight of every reload.

A run names this module in `external_lib`; in its own processes vLLM finds `register` as one of its plugins.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from vllm import ModelRegistry
from vllm.model_executor.models.llama import LlamaForCausalLM

LOST = "model.norm.weight"


class ForgetfulLlama(LlamaForCausalLM):
    """Takes all its weights at the start, and all but one later."""

    has_started = False

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the weights."""
        lost = LOST if self.has_started else None
        self.has_started = True
        return super().load_weights((name, tensor) for name, tensor in weights if name != lost)


def register() -> None:
    """Make the model known to vLLM in this process."""
    ModelRegistry.register_model("ForgetfulLlama", ForgetfulLlama)


register()
