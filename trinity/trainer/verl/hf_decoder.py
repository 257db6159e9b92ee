"""Hidden states of packed tokens through Hugging Face's own forward.

It serves the families that our own decoder does not implement.

Dimension key: m = scored positions of this rank (all, unless ranks share a sequence), d = hidden size, B = rows,
L = padded length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from trinity.common.errors import ConfigError
from trinity.preflight.division import family_problem, row_problem
from trinity.trainer.verl.attention import MAX_PADDING_FACTOR
from trinity.trainer.verl.layout import choose_layout, run_packed, run_padded
from trinity.trainer.verl.output_layer import OutputLayer
from trinity.trainer.verl.packing import Packed
from trinity.trainer.verl.parallel.pipeline import Stages
from trinity.trainer.verl.parallel.tensor import TensorGroup

Without = Callable[[], AbstractContextManager[None]]


class HFPackedDecoder(nn.Module):
    """Any causal language model through Hugging Face's own forward.

    Each row is computed as if it were alone; see `layout.py`.

    Args:
        model: parameters in float32; its attention function is replaced.
        dtype: data type of autocast.
        recompute: gradient checkpointing.
        without: makes the context in which the forward pass leaves the adapter out; None: with the adapter.

    Raises:
        EnvironmentProblem: rows of this model cannot be computed together (E3130), or its logits not by a linear layer
            (E3131).
    """

    can_share_prompts = False
    reads_images = False
    stages: Stages | None = None

    def __init__(
        self, model: PreTrainedModel, *, dtype: torch.dtype, recompute: bool, without: Without | None = None
    ) -> None:
        super().__init__()
        self.model, self.dtype, self.context = model, dtype, without or nullcontext
        if without is None:  # else another decoder shares the model and may recompute its layers
            model.eval()
        self.layout = choose_layout(model, has_logits=model.get_output_embeddings() is not None)
        self.can_share_prefixes = self.layout.shares_prefixes
        self.is_sharded = False
        if recompute:
            recompute_layers(model)

    def blocks(self) -> list[nn.Module]:
        """Return the modules that are sharded separately; see `PackedDecoder`."""
        names = set(self.model._no_split_modules or ())
        return [module for module in self.model.modules() if type(module).__name__ in names]

    def shard(self, group: TensorGroup | None = None, stages: Stages | None = None) -> None:
        """Prepare for sharded weights; refuse to share matrices or layers.

        Raises:
            ConfigError: `group` or `stages` is given (E1856).
        """
        if group is not None or stages is not None:
            raise ConfigError(family_problem(str(self.model.config.model_type)), code="E1856")
        self.is_sharded = True

    def hidden(self, packed: Packed) -> Float[Tensor, "m d"]:
        """Return the last hidden states; see `PackedDecoder`.

        The caller stays inside `computing` for the backward pass.
        """
        hidden: Tensor = self(packed)
        return hidden

    def forward(self, packed: Packed) -> Float[Tensor, "m d"]:
        """Return last hidden states; call the module, so that shards are gathered."""
        device = packed.tokens.device
        with self.context(), torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32):
            hidden = self._packed(packed) if self.layout.kind == "packed" else self._padded(packed)
        return hidden.index_select(0, packed.own_sources).to(self.dtype)

    def _packed(self, packed: Packed) -> Tensor:
        return run_packed(self.model, *packed.own_tokens)

    def _padded(self, packed: Packed) -> Tensor:
        """Return all hidden states, computed as rows padded on the right."""
        if packed.piece is not None:
            raise ConfigError(row_problem(str(self.model.config.model_type), packed.piece.size), code="E1836")
        lengths = packed.rows.lengths
        rows = packed.tokens.split(lengths)
        found: dict[int, Tensor] = {}
        for group in [range(len(rows))] if self.is_sharded else alike(lengths):  # ranks gather weights together
            padded = pad_sequence([rows[row] for row in group], batch_first=True)
            places = torch.arange(padded.shape[1], device=padded.device)
            sizes = torch.tensor([lengths[row] for row in group], device=padded.device)
            hidden = run_padded(self.model, padded, places < sizes[:, None])
            found |= {row: hidden[place, : lengths[row]] for place, row in enumerate(group)}
        return torch.cat([found[row] for row in range(len(rows))])

    def head(self) -> OutputLayer:
        """Return the output layer; see `PackedDecoder`."""
        layer: Any = self.model.get_output_embeddings()
        return OutputLayer(layer.weight.detach().to(self.dtype), layer.bias, layer.weight, self.layout.logits)

    def refresh(self) -> None:
        """Do nothing: the decoder holds no copies of parameters."""


def alike(lengths: Sequence[int]) -> list[list[int]]:
    """Group rows of similar length: padding adds at most half to a group."""
    groups: list[list[int]] = []
    total = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        total += lengths[row]
        if not groups or (len(groups[-1]) + 1) * lengths[groups[-1][0]] > MAX_PADDING_FACTOR * total:
            groups.append([])
            total = lengths[row]
        groups[-1].append(row)
    return groups


def recompute_layers(model: PreTrainedModel) -> None:
    """Enable recomputation of each layer in the backward pass.

    Hugging Face recomputes in training mode only. Only the layers themselves are put into that mode, not their
    submodules, so that nothing that differs between training and evaluation (routers, noise) is switched on.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True
