"""The fallback: Hugging Face's forward pass over our slot cache.

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
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from trinity.common.errors import EngineError
from trinity.engine.torch.kv_cache import KVCache, Prefix
from trinity.engine.torch.slot_attention import noted_attention, use_slot_attention


class SlotLayer(CacheLayerMixin):
    """One layer of the slot cache as a Hugging Face cache layer.

    It is for steps of one token a row. It reports its whole width as the past of the query; the 2-D attention mask
    selects the positions that count.
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
        """Do nothing with the states [B, H, 1, D]: the slots exist already."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [B, H, 1, D] states at each row's position.

        Return the first `width` positions of keys and values, [B, H, width, D].
        """
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


class HFModel:
    """Weights by name and logprobs, for decoders over a Hugging Face model."""

    can_share_prompts = False

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.device = model.device
        self._accepted = frozenset(inspect.signature(model.forward).parameters)
        self.weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in self.targets().values())

    def targets(self) -> Mapping[str, Tensor]:
        """Return the parameters by name; of tied ones the first name."""
        return {name: parameter.data for name, parameter in self.model.named_parameters()}

    def optional_names(self) -> frozenset[str]:
        """Return further names of a state dict: tied copies and buffers."""
        return frozenset(self.model.state_dict()) - frozenset(dict(self.model.named_parameters()))

    @torch.no_grad()
    def _check_causal(self) -> None:
        """Refuse a model whose tokens attend to later ones: it cannot sample."""
        tokens = torch.zeros(2, 2, dtype=torch.long, device=self.device)
        tokens[1, 1] = 1
        one, other = (self.model(input_ids=row[None], **self._known({"use_cache": False})).logits for row in tokens)
        if one.shape[1] != 2:
            raise self._refusal("gives no logits for each of its tokens")
        if _differ(one[:, 0], other[:, 0]):
            raise self._refusal("lets tokens see those after them (a model of a decoder has `is_decoder: true`)")

    @torch.no_grad()
    def _counts_from_zero(self) -> bool:
        """Return whether the family's default positions are 0, 1, 2, ..."""
        if "position_ids" not in self._accepted:
            return False
        tokens = torch.zeros(1, 2, dtype=torch.long, device=self.device)
        settings = self._known({"use_cache": False})
        told = self.model(input_ids=tokens, position_ids=torch.arange(2, device=self.device)[None], **settings)
        return not _differ(told.logits, self.model(input_ids=tokens, **settings).logits)

    def _refusal(self, what: str) -> EngineError:
        return EngineError(f"{type(self.model).__name__} {what}", code="E5604")

    def _known(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that the family's forward accepts."""
        return {name: value for name, value in wanted.items() if name in self._accepted}

    def sequence_logprobs(self, tokens: Int[Tensor, "T"], temperature: float) -> Float[Tensor, "T-1"]:
        """Return the logprob of each token but the first; see `Decoder`."""
        logits = self.model(input_ids=tokens[None], **self._known({"use_cache": False})).logits
        logprobs = torch.log_softmax(logits[0, :-1].float() / temperature, -1)
        return logprobs.gather(1, tokens[1:, None])[:, 0]


class HFDecoder(HFModel):
    """A model with standard attention and a key-value cache; see `Decoder`.

    It leaves attention and masks to transformers and keeps keys and values of each layer.

    Raises:
        EngineError: the model works differently (E5604).
    """

    kind = "hf"

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        use_slot_attention(model)
        self._check_causal()
        self.vocab_size, self.kv_bytes_per_token = 0, 0
        self._probe()

    def new_cache(self, num_slots: int, max_length: int, *, is_fixed: bool) -> KVCache:
        """Return the slots' cache; see `Decoder`."""
        return KVCache(num_slots, max_length, is_fixed=is_fixed)

    def _call(self, tokens: Tensor, cache: Cache, **wanted: Any) -> Tensor:
        logits: Tensor = self.model(
            input_ids=tokens, past_key_values=cache, use_cache=True, **self._known(wanted)
        ).logits
        return logits

    @torch.no_grad()
    def _probe(self) -> None:
        """Verify what `decode` relies on by a step of two rows of unequal length.

        Raises:
            EngineError: the model works differently (E5604).
        """
        tokens = torch.zeros(2, 3, dtype=torch.long, device=self.device)
        lengths = torch.tensor([3, 1], device=self.device)
        logits, prefix = self.prefill(tokens, lengths - 1)
        self.vocab_size = logits.shape[1]
        self.kv_bytes_per_token = sum(t.shape[1] * t.shape[3] * t.element_size() for t in prefix.keys + prefix.values)
        cache = self.new_cache(2, 4, is_fixed=True)
        for row, length in enumerate(lengths.tolist()):
            cache.write([row], prefix.row(row, length))
        with noted_attention() as seen:
            self.decode(tokens[:, 0], lengths, cache=cache, width=4)
        if not self._counts_from_zero():
            raise self._refusal("gives its tokens positions of its own")
        if len(seen) != len(prefix.keys) or not all(seen):
            raise self._refusal("computes attention by itself")

    def prefill(self, tokens: Int[Tensor, "G P"], last: Int[Tensor, "G"]) -> tuple[Float[Tensor, "G V"], Prefix]:
        """Return the logits after `last` of each prompt, and the cache."""
        # Without a config the cache has one kind of layer: it keeps everything, and only the mask cuts windows.
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
        held = [(layer.keys, layer.values) for layer in cache.layers if type(layer) is DynamicLayer]
        keys = [key for key, _ in held if key is not None and key.ndim == 4]
        values = [value for _, value in held if value is not None and value.ndim == 4]
        if not keys or not len(keys) == len(values) == len(cache.layers):
            raise self._refusal("keeps another state than keys and values a layer")
        return Prefix(keys, values)

    def decode(
        self, tokens: Int[Tensor, "B"], positions: Int[Tensor, "B"], *, cache: KVCache, width: int
    ) -> Float[Tensor, "B V"]:
        """Return the logits after one more token in each slot; see `Decoder`."""
        layers: list[Any] = [
            SlotLayer(keys, values, positions=positions, width=width)
            for keys, values in zip(cache.keys, cache.values, strict=True)
        ]
        mask = (torch.arange(width, device=self.device) <= positions[:, None]).long()
        logits = self._call(tokens[:, None], Cache(layers=layers), attention_mask=mask, position_ids=positions[:, None])
        return logits[:, -1].float()


def _differ(one: Tensor, other: Tensor) -> bool:
    """Return whether logits differ by more than the order of sums explains."""
    return bool((one - other).abs().max() > 1e-3 * one.abs().max())
