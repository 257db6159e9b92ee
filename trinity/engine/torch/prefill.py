"""Prefill: logits, keys and values of prompts, using the prefix cache.

Dimension key: V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trinity.common.images.picture import Picture
from trinity.engine.torch.decoder import Decoder, ExtendingDecoder, Prompts, SeeingDecoder
from trinity.engine.torch.kv_cache import Prefix
from trinity.engine.torch.pieces import Piece, Sight
from trinity.engine.torch.prefix_cache import BLOCK_TOKENS, PrefixCache

_MAX_TOKENS = 4096
"""Most tokens of a pass."""
_MAX_PIECE = 128
"""Most tokens of a piece: its scores and its bias grow with the square."""
_FIXED_TOKENS = 256
"""Tokens of a pass with fixed shapes, in pieces of a block."""

Prompt = tuple[int, ...]
Prefilled = tuple[Tensor, Prompts]


class Prefill:
    """Prefills of whole prompts, or of what follows their cached beginning.

    With fixed shapes a pass of the fast path always has the same number of tokens, in pieces that begin at a multiple
    of `BLOCK_TOKENS`. So the bits of a token's keys and values are a function of the prompt up to that token,
    whichever pass computed them: they are the same with and without the cache. A prompt with images is always computed
    in pieces. Its image tokens equal those of another prompt if, and only if, the images are equal.

    Args:
        decoder: the model.
        is_fixed: see `RunningBatch`.
        prefixes: the prefix cache; None computes every prompt as a whole.
    """

    def __init__(self, decoder: Decoder, *, is_fixed: bool, prefixes: PrefixCache | None) -> None:
        self.decoder = decoder
        self.is_fixed = is_fixed
        self.prefixes = prefixes

    def run(
        self, prompts: Sequence[Prompt], version: int, *, pictures: Mapping[int, Picture] | None = None
    ) -> dict[Prompt, Prefilled]:
        """Return logits [V] after each prompt, and its cache.

        The prompts differ; `version` is that of the weights, `pictures` are the images of all prompts by number.
        """
        decoder = self.decoder
        pictures = pictures or {}
        if not isinstance(decoder, ExtendingDecoder):
            if self.prefixes is not None:
                self.prefixes.totals.bypassed_tokens += sum(map(len, prompts))
            return self._whole(prompts)
        if self.prefixes is None:
            unknown: dict[Prompt, list[Tensor]] = {p: [] for p in prompts if self.is_fixed or min(p) < 0}
            made = self._extended(decoder, unknown, pictures) if unknown else {}
            return made | self._whole([prompt for prompt in prompts if prompt not in unknown])
        done: dict[Prompt, Prefilled] = {}
        for found in self._waves(self.prefixes, prompts, version):
            is_hit = {prompt: bool(blocks) or self.is_fixed or min(prompt) < 0 for prompt, blocks in found.items()}
            made = self._extended(decoder, {prompt: found[prompt] for prompt in found if is_hit[prompt]}, pictures)
            made |= self._whole([prompt for prompt in found if not is_hit[prompt]])
            for prompt, (_, prefix) in made.items():
                assert isinstance(prefix, Prefix), "a decoder that extends prompts keeps keys and values"
                self.prefixes.insert(prompt, version, prefix.span)
            done |= made
        return done

    def _waves(
        self, prefixes: PrefixCache, prompts: Sequence[Prompt], version: int
    ) -> Iterator[dict[Prompt, list[Tensor]]]:
        """Yield prompts with their cached blocks, in waves.

        Those of a wave have no missing block in common. Of prompts with the same missing block one is computed first;
        then the others find it.
        """
        waiting = list(prompts)
        while waiting:
            wave: dict[Prompt, list[Tensor]] = {}
            claimed: set[Prompt] = set()
            for prompt in waiting:
                blocks = prefixes.find(prompt, version)
                missing = prompt[: (len(blocks) + 1) * BLOCK_TOKENS]
                if len(missing) < len(prompt):
                    if missing in claimed:
                        continue
                    claimed.add(missing)
                wave[prompt] = blocks
            prefixes.totals.lookup_tokens += sum(map(len, wave))
            prefixes.totals.hit_tokens += sum(len(blocks) for blocks in wave.values()) * BLOCK_TOKENS
            waiting = [prompt for prompt in waiting if prompt not in wave]
            yield wave

    def _extended(
        self, decoder: ExtendingDecoder, found: dict[Prompt, list[Tensor]], pictures: Mapping[int, Picture]
    ) -> dict[Prompt, Prefilled]:
        """Return logits and cache of prompts; `found` has their first blocks."""
        states = {prompt: self._begun(decoder, prompt, blocks) for prompt, blocks in found.items()}
        pieces: list[Piece] = []
        shifts = dict.fromkeys(found, 0)
        for prompt, blocks in found.items():
            start, sight = len(blocks) * BLOCK_TOKENS, None
            if min(prompt) < 0:
                assert isinstance(decoder, SeeingDecoder), "only for it a prompt has images"
                sight = decoder.look(prompt, pictures, start=start)
                shifts[prompt] = sight.shift
            pieces += self._pieces(prompt, states[prompt], start=start, sight=sight)
        logits: list[Tensor] = []
        for batch in self._passes(pieces):
            num_tokens = _FIXED_TOKENS if self.is_fixed else None
            num_ends = _FIXED_TOKENS // BLOCK_TOKENS if self.is_fixed else None
            logits += decoder.extend(batch, num_tokens=num_tokens, num_ends=num_ends).unbind(0)
        return {
            prompt: (row.clone(), Prefix.of(states[prompt][:, :, : len(prompt)], shift=shifts[prompt]))
            for prompt, row in zip(found, logits, strict=True)
        }

    def _begun(self, decoder: ExtendingDecoder, prompt: Prompt, blocks: list[Tensor]) -> Tensor:
        """Return memory for the keys and values of a prompt, with the cached ones."""
        length = -(-len(prompt) // BLOCK_TOKENS) * BLOCK_TOKENS if self.is_fixed else len(prompt)
        states = decoder.new_states(length)
        for index, block in enumerate(blocks):
            states[:, :, index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS] = block
        return states

    def _pieces(self, prompt: Prompt, states: Tensor, *, start: int, sight: Sight | None) -> Iterator[Piece]:
        size = BLOCK_TOKENS if self.is_fixed else _MAX_PIECE
        for begin in range(start, len(prompt), size):
            tokens = [max(token, 0) for token in prompt[begin : begin + size]]
            last = len(prompt) - 1 if begin + size >= len(prompt) else None
            if self.is_fixed:
                tokens += [0] * (size - len(tokens))
            yield Piece(tokens, begin, states, last, sight)

    def _passes(self, pieces: list[Piece]) -> Iterator[list[Piece]]:
        limit = _FIXED_TOKENS if self.is_fixed else _MAX_TOKENS
        batch: list[Piece] = []
        for piece in pieces:
            if sum(len(other.tokens) for other in batch) + len(piece.tokens) > limit:
                yield batch
                batch = []
            batch.append(piece)
        if batch:
            yield batch

    def _whole(self, prompts: Sequence[Prompt]) -> dict[Prompt, Prefilled]:
        done: dict[Prompt, Prefilled] = {}
        for chunk in self._chunks(prompts):
            done |= self._padded(chunk)
        return done

    def _chunks(self, prompts: Sequence[Prompt]) -> list[list[Prompt]]:
        """Split prompts into prefills.

        With fixed shapes, those of a prefill have equal length; else lengths are similar and total tokens are limited.
        """
        chunks: list[list[Prompt]] = []
        for prompt in sorted(prompts, key=len):
            size = len(chunks[-1]) if chunks else 0
            if self.is_fixed:
                is_full = not chunks or len(chunks[-1][0]) != len(prompt) or size >= _fixed_rows(len(prompt))
            else:
                is_full = not chunks or (size + 1) * len(prompt) > _MAX_TOKENS
            if is_full:
                chunks.append([])
            chunks[-1].append(prompt)
        return chunks

    def _padded(self, prompts: list[Prompt]) -> dict[Prompt, Prefilled]:
        width = max(len(prompt) for prompt in prompts)
        num_rows = _fixed_rows(width) if self.is_fixed else len(prompts)
        padded = [list(prompt) + [0] * (width - len(prompt)) for prompt in prompts]
        padded += [[0] * width] * (num_rows - len(prompts))
        last = [len(prompt) - 1 for prompt in prompts] + [width - 1] * (num_rows - len(prompts))
        device = self.decoder.device
        logits, prefix = self.decoder.prefill(torch.tensor(padded, device=device), torch.tensor(last, device=device))
        return {prompt: (logits[index].clone(), prefix.row(index, len(prompt))) for index, prompt in enumerate(prompts)}


def _fixed_rows(length: int) -> int:
    """Return the rows of a fixed-shape prefill for prompts of `length` tokens."""
    return max(1, _FIXED_TOKENS // length)
