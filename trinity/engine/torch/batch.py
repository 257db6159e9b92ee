"""The running batch: rows join by a prefill, take one token a step, leave.

Dimension key: G = prompts, P = prompt tokens, V = vocabulary, B = rows of a step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trinity.common.errors import EngineError
from trinity.common.models.vocabulary import drawable
from trinity.common.models.watching import Top
from trinity.engine.sample import FinishReason, Sample
from trinity.engine.sampler import most_probable, sample, uniforms
from trinity.engine.stopping import completed_stop
from trinity.engine.torch.attention import whole_blocks
from trinity.engine.torch.captured import StaticDecoding
from trinity.engine.torch.decoder import Decoder, Prompts
from trinity.engine.torch.fast_decoder import FastDecoder
from trinity.engine.torch.kv_cache import KVCache
from trinity.engine.torch.prefill import Prefill
from trinity.engine.torch.prefix_cache import BLOCK_TOKENS, PrefixCache
from trinity.engine.torch.request import RunningRow
from trinity.engine.torch.slots import Slots
from trinity.engine.torch.transfer import Download

_WIDTH_STEP = 32


@dataclass
class EngineTotals:
    """Totals of the engine; `busy_s` are seconds at work."""

    generated_tokens: int = 0
    prompt_tokens: int = 0
    prefix_groups: int = 0
    samples: int = 0
    steps: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True)
class _Drawn:
    """Tokens and logprobs of one draw, with their rows (None: idle slot).

    If a row asks for them, also logprobs and ids of the most probable tokens.
    """

    rows: list[RunningRow | None]
    values: Download


class RunningBatch:
    """Rows in the slots of one decoder.

        idle -- admit: prefill, first token --> active -- step: one token --> active
          ^                                        |
          +-- vacate: stop, max_tokens, cancelled -+

    The host never waits for a decision on the device. With `lag` 1, tokens are read back one step late, so a finished
    row draws one more token, which is dropped. Without fixed shapes, the last rows move into vacated slots.

    Args:
        decoder: the model.
        num_slots: most rows at once.
        max_length: longest sequence in tokens.
        stop_ids: token ids that end a response.
        tokenizer: decodes the end of rows that have stop strings; used only by the engine's thread.
        is_fixed: keep all shapes constant, so that the bits of a row do not depend on other slots.
        lag: steps, 0 or 1, by which tokens are read back late; None: 1 on CUDA, else 0.
        prefix_bytes: most memory of the prefix cache, in bytes; 0: there is none.
        is_compiled: compute steps by compiled kernels, whatever the decoder says; not with fixed shapes.
    """

    def __init__(
        self,
        decoder: Decoder,
        num_slots: int,
        *,
        max_length: int,
        stop_ids: Sequence[int],
        tokenizer: PreTrainedTokenizerBase,
        is_fixed: bool,
        lag: int | None = None,
        prefix_bytes: int = 0,
        is_compiled: bool = False,
    ) -> None:
        self.decoder = decoder
        self.num_slots = num_slots
        self.max_length = max_length
        self.tokenizer = tokenizer
        self.is_fixed = is_fixed
        self.cache = decoder.new_cache(num_slots, max_length, is_fixed=is_fixed)
        ids = drawable(tokenizer, decoder.vocab_size, stop_ids)
        self.stop_ids = frozenset(ids.stop_ids)
        self.slots = Slots(num_slots, drawable=ids, device=decoder.device)
        self.counts = EngineTotals()
        # With fixed shapes a prompt is copied to every slot, so the bits of a row do not depend on other rows.
        self.shares_prompts = decoder.can_share_prompts and not is_fixed
        block_bytes = decoder.kv_bytes_per_token * BLOCK_TOKENS
        self.prefixes = PrefixCache(prefix_bytes, block_bytes=block_bytes) if prefix_bytes else None
        self.prefill = Prefill(decoder, is_fixed=is_fixed, prefixes=self.prefixes)
        self._decode = decoder.decode
        self._compiled = None
        if isinstance(decoder, FastDecoder) and decoder.device.type == "cuda":
            self._decode = StaticDecoding(decoder, num_slots).decode
        elif isinstance(decoder, FastDecoder) and not is_fixed and (is_compiled or decoder.is_compiled):
            from trinity.engine.torch.compiled import CompiledDecoding  # with Numba, half a second of imports

            self._compiled = CompiledDecoding(decoder, max_length)
            self._decode = self._compiled.decode
        self.lag = int(decoder.device.type == "cuda") if lag is None else lag
        self._drawn: deque[_Drawn] = deque()

    @property
    def num_active(self) -> int:
        """Number of rows in slots."""
        return self.slots.num_active

    @property
    def num_free(self) -> int:
        """Number of idle slots."""
        return self.num_slots - self.slots.num_active

    def admit(self, rows: Sequence[RunningRow], *, model_version: int) -> None:
        """Prefill each distinct prompt of `rows` and draw their first tokens."""
        started = time.perf_counter()
        prefills = self._prefills(rows, model_version)
        chosen = self.slots.free()[: len(rows)]
        members: dict[tuple[int, ...], list[int]] = {}
        for slot, row in zip(chosen, rows, strict=True):
            row.model_version = model_version
            row.request.num_admitted += 1
            members.setdefault(tuple(row.request.prompt), []).append(slot)
        for prompt, slots in members.items():
            put = self.cache.share if self.shares_prompts else self.cache.write
            put(slots, prefills[prompt][1])
        for row in rows:
            logits, prefix = prefills[tuple(row.request.prompt)]
            has_more = row.request.num_admitted < row.request.params.n
            row.request.prefill = (model_version, logits, prefix) if has_more else None
        index = self.slots.place(chosen, rows)
        self._draw(index, chosen, torch.stack([prefills[tuple(row.request.prompt)][0] for row in rows]))
        self.counts.busy_s += time.perf_counter() - started

    def step(self) -> None:
        """Draw one token for every row in a slot."""
        started = time.perf_counter()
        if all(row is None or row.num_drawn >= row.max_tokens for row in self.slots.rows):
            self.drain()
        else:
            self._step()
        self.counts.busy_s += time.perf_counter() - started

    def _step(self) -> None:
        rows = slice(0, self.num_slots if self.is_fixed else self.num_active)
        width = self._width()
        if not self.is_fixed:
            self.cache.reserve(rows.stop, width)
        positions = self.slots.length[rows] - 1
        logits = self._decode(self.slots.token[rows], positions, cache=self.cache, width=width)
        self.counts.steps += 1
        self._draw(rows, range(rows.stop), logits)

    def go_on_with(self, model_version: int) -> None:
        """Record that newer weights sample all further tokens of all rows.

        Their cache is kept. The logprobs of later tokens are computed from it and recorded, so they are those of the
        distribution that was sampled. Recomputing it would prefill everything in progress.
        """
        self.drain()
        for row in self.slots.rows:
            if row is not None:
                row.switches.append((model_version, len(row.tokens)))

    def drop_cancelled(self) -> None:
        """Vacate the slots of rows whose request is cancelled."""
        self._vacate([s for s, row in enumerate(self.slots.rows) if row is not None and row.request.is_cancelled])

    def drain(self) -> None:
        """Read all tokens that have been drawn."""
        while self._drawn:
            self._read(self._drawn.popleft())

    def clear(self) -> None:
        """Vacate all slots and free the memory of both caches."""
        self._drawn.clear()
        self.slots.release([slot for slot, row in enumerate(self.slots.rows) if row is not None])
        self.cache.clear()
        self.drop_prefixes()

    def drop_prefixes(self) -> None:
        """Empty the prefix cache: other weights would compute other keys."""
        if self.prefixes is not None:
            self.prefixes.drop()

    def note_bypassed(self, num_tokens: int) -> None:
        """Count tokens that are computed without the prefix cache."""
        if self.prefixes is not None:
            self.prefixes.totals.bypassed_tokens += num_tokens

    def _own_length(self, row: RunningRow) -> int:
        """Return the slot positions that a row fills up to its next token."""
        return row.num_drawn + (0 if self.shares_prompts else len(row.request.prompt))

    def _width(self) -> int:
        """Return the slot positions that a step attends to.

        They are those of the longest row, rounded up. With fixed shapes they are all positions, or as many as give the
        bitwise same results with the fast path's attention.
        """
        if self.is_fixed and not (self.decoder.can_share_prompts and self.decoder.device.type == "cpu"):
            return self.max_length
        longest = max(self._own_length(row) for row in self.slots.rows if row is not None)
        wanted = whole_blocks(longest) if self.is_fixed else -(-longest // _WIDTH_STEP) * _WIDTH_STEP
        return min(self.max_length, wanted)

    def _draw(self, where: slice | Tensor, slots: Sequence[int], logits: Tensor) -> None:
        """Draw a token for each of `slots`, and read the tokens that are due.

        `where` selects the same slots in tensors; `logits` is [B, V]. Rows that ended are finished.
        """
        positions = self.slots.length[where] - self.slots.prompt_length[where]
        keys, params = self.slots.key[where], self.slots.sampling(where)
        if self._compiled is not None and params.is_plain:
            tokens, logprobs = self._compiled.sample(logits, params, keys=keys, positions=positions)
        else:
            tokens, logprobs = sample(logits, params, uniform=uniforms(keys, positions))
        self.slots.advance(where, tokens)
        rows = [self.slots.rows[slot] for slot in slots]
        for row in rows:
            if row is not None:
                row.num_drawn += 1
        count = max((row.request.params.top_logprobs for row in rows if row is not None), default=0)
        top = most_probable(logits, params, count) if count else ()
        self._drawn.append(_Drawn(rows, Download(tokens, logprobs, *top)))
        while len(self._drawn) > self.lag:
            self._read(self._drawn.popleft())

    def _read(self, drawn: _Drawn) -> None:
        """Add drawn tokens to their rows; finish those that ended."""
        tokens, logprobs, *top = drawn.values.result()
        is_open = [row is not None and row.slot is not None for row in drawn.rows]
        if not bool(torch.isfinite(logprobs)[torch.tensor(is_open)].all()):
            raise EngineError(
                "the model's logits are not finite; its weights hold NaN or infinity (see actor/grad_norm of the "
                "training steps before)",
                code="E5605",
            )
        self.counts.generated_tokens += sum(is_open)  # before a caller can ask
        done = []
        for place, (row, token, logprob) in enumerate(zip(drawn.rows, tokens.tolist(), logprobs.tolist(), strict=True)):
            if row is None or row.slot is None:
                continue
            params, listener = row.request.params, row.request.listener
            row.tokens.append(token)
            row.logprobs.append(logprob)
            tops = _top(row, place, top) if params.top_logprobs else ()
            if listener is not None:
                listener(row.index, token, logprob, tops)
            stop_text = self._stop_text(row) if params.stop else None
            is_stop = stop_text is not None or (token in self.stop_ids and not params.ignore_eos)
            if is_stop or len(row.tokens) >= row.max_tokens:
                self._finish(row, "stop" if is_stop else "length", stop_text)
                self._keep(row, row.slot)
                done.append(row.slot)
        self._vacate(done)

    def _finish(self, row: RunningRow, reason: FinishReason, stop_text: str | None) -> None:
        logprobs = torch.tensor(row.logprobs, dtype=torch.float32)
        versions = row.model_versions(len(row.tokens))
        self.counts.samples += 1
        top = tuple(row.top)
        made = Sample(row.tokens, logprobs, reason, row.model_version, stop_text, versions, top)
        row.request.finish(row.index, made)

    def _keep(self, row: RunningRow, slot: int) -> None:
        """Add the tokens of a finished row to the prefix cache, for the next turn.

        Not with fixed shapes: a decoding step may round otherwise than the prefill without the cache would. The last
        token has no keys yet. After a change of weights the row has keys of both.
        """
        prompt = row.request.prompt
        known = len(prompt) + len(row.tokens) - 1
        cache = self.cache
        if self.prefixes is None or not self.shares_prompts or row.switches:
            return
        if known // BLOCK_TOKENS > len(prompt) // BLOCK_TOKENS:
            assert isinstance(cache, KVCache), "a decoder whose slots share prompts has such a cache"
            self.prefixes.insert(
                prompt + row.tokens[:-1],
                row.model_version,
                lambda start, end: cache.span(slot, start, end, prompt_length=len(prompt)),
            )

    def _stop_text(self, row: RunningRow) -> str | None:
        """Return the stop string that the row's last token completed, or None."""
        params = row.request.params
        return completed_stop(self.tokenizer, row.tokens, params.stop, min_tokens=params.min_tokens)

    def _vacate(self, slots: list[int]) -> None:
        """Make slots idle and, without fixed shapes, move the last rows into them."""
        if not slots:
            return
        before = self.num_active
        width = max(self._own_length(row) for row in self.slots.rows if row is not None)
        self.slots.release(slots)
        self.cache.release(slots)
        if self.is_fixed:
            return
        after = before - len(slots)
        gaps = [slot for slot in slots if slot < after]
        movers = [slot for slot in range(after, before) if self.slots.rows[slot] is not None]
        self.cache.move(movers, gaps, width=width)
        self.slots.move(movers, gaps)

    def _prefills(
        self, rows: Sequence[RunningRow], model_version: int
    ) -> dict[tuple[int, ...], tuple[Tensor, Prompts]]:
        """Return logits [V] and cache of each distinct prompt among `rows`."""
        done: dict[tuple[int, ...], tuple[Tensor, Prompts]] = {}
        for row in rows:
            known = row.request.prefill
            if known is not None and known[0] == model_version:
                done[tuple(row.request.prompt)] = known[1:]
        missing = [prompt for prompt in dict.fromkeys(tuple(row.request.prompt) for row in rows) if prompt not in done]
        pictures = {picture.number: picture for row in rows for picture in row.request.pictures}
        done |= self.prefill.run(missing, model_version, pictures=pictures)
        self.counts.prefix_groups += len(missing)
        self.counts.prompt_tokens += sum(len(prompt) for prompt in missing)
        return done


def _top(row: RunningRow, place: int, top: Sequence[Tensor]) -> Top:
    """Return the most probable tokens that a row asks for, and note them."""
    count = row.request.params.top_logprobs
    values, ids = top
    found = tuple(zip(ids[place, :count].tolist(), values[place, :count].tolist(), strict=True))
    row.top.append(found)
    return found
