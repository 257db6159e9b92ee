"""The fallback: the forward pass of any Hugging Face causal language model over our slot cache.

Dimension key: B = rows of a step, G = prompts, P = prompt tokens, T = tokens of a sequence, V = vocabulary,
H = key-value heads, D = head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from trinity.common.errors import EngineError
from trinity.common.models.torch_engine.kv_cache import KVCache, Prefix


class SlotLayer(CacheLayerMixin):
    """One layer of the slot cache as a Hugging Face cache layer, for steps of one token a row.

    It reports all of its width as the past of the query; which positions count is said by the 2-D attention mask.
    """

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor, *, positions: Tensor, width: int) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.positions = positions
        self.rows = torch.arange(len(positions), device=positions.device)
        self.width = width
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the slots exist already."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [B, H, 1, D] states at each row's position; return the first `width` positions of the rows."""
        self.keys[self.rows, :, self.positions] = key_states[:, :, 0]
        self.values[self.rows, :, self.positions] = value_states[:, :, 0]
        return self.keys[: len(self.rows), :, : self.width], self.values[: len(self.rows), :, : self.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the keys that the mask covers."""
        return self.width, 0

    def get_seq_length(self) -> int:
        """Return the number of positions before the query."""
        return self.width - 1

    def get_max_length(self) -> int:
        """Return the number of positions."""
        return self.width


class HFDecoder:
    """Any causal language model whose cache is keys and values a layer; see `Decoder`."""

    kind = "hf"
    can_share_prompts = False

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.device = model.device
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.kv_bytes_per_token = 0
        self._accepted = frozenset(inspect.signature(model.forward).parameters)

    def targets(self) -> Mapping[str, Tensor]:
        """Return the parameters; of tied ones the first name."""
        return {name: parameter.data for name, parameter in self.model.named_parameters()}

    def optional_names(self) -> frozenset[str]:
        """Return what a state dict may list besides: tied copies and buffers."""
        return frozenset(self.model.state_dict()) - frozenset(dict(self.model.named_parameters()))

    def _call(self, tokens: Tensor, cache: Cache, **wanted: Any) -> Tensor:
        known = {name: value for name, value in wanted.items() if name in self._accepted}
        return self.model(input_ids=tokens, past_key_values=cache, use_cache=True, **known).logits

    def prefill(self, tokens: Int[Tensor, "G P"], last: Int[Tensor, "G"]) -> tuple[Float[Tensor, "G V"], Prefix]:
        """Return the logits after position `last` of each prompt, and the cache; see `Decoder`."""
        # Without a config the cache has one kind of layer: everything kept, windows cut by the mask only.
        cache = DynamicCache()
        positions = torch.arange(tokens.shape[1], device=self.device).expand_as(tokens)
        wanted, column = torch.unique(last, return_inverse=True)
        logits = self._call(
            tokens, cache, attention_mask=torch.ones_like(tokens), position_ids=positions, logits_to_keep=wanted
        )
        if logits.shape[1] != len(wanted):
            column = last
        rows = torch.arange(len(last), device=self.device)
        return logits[rows, column].float(), self._prefix(cache)

    def _prefix(self, cache: Cache) -> Prefix:
        held = [(layer.keys, layer.values) for layer in cache.layers if isinstance(layer, CacheLayerMixin)]
        keys = [key for key, _ in held if key is not None and key.ndim == 4]
        values = [value for _, value in held if value is not None and value.ndim == 4]
        if not keys or not len(keys) == len(values) == len(cache.layers):
            raise EngineError(
                f"the torch engine serves models whose cache is keys and values a layer; {type(self.model).__name__} "
                "keeps another state; use explorer.rollout_model.engine_type=vllm",
                code="E5604",
            )
        self.kv_bytes_per_token = sum(t.shape[1] * t.shape[3] * t.element_size() for t in keys + values)
        return Prefix(keys, values)

    def decode(
        self, tokens: Int[Tensor, "B"], positions: Int[Tensor, "B"], *, cache: KVCache, width: int
    ) -> Float[Tensor, "B V"]:
        """Return the logits after one more token in slots 0 to B - 1; see `Decoder`."""
        layers: list[Any] = [
            SlotLayer(keys, values, positions=positions, width=width)
            for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        mask = (torch.arange(width, device=self.device) <= positions[:, None]).long()
        logits = self._call(tokens[:, None], Cache(layers=layers), attention_mask=mask, position_ids=positions[:, None])
        return logits[:, -1].float()

    def sequence_logprobs(self, tokens: Int[Tensor, "T"], temperature: float) -> Float[Tensor, "T-1"]:
        """Return the logprob of each token but the first; see `Decoder`."""
        logits = self._call(tokens[None], DynamicCache(), attention_mask=torch.ones_like(tokens[None]))
        logprobs = torch.log_softmax(logits[0, :-1].float() / temperature, -1)
        return logprobs.gather(1, tokens[1:, None])[:, 0]
