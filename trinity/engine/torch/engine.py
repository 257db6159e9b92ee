"""The torch engine: an `InferenceModel` in this process.

It has its own copy of the weights.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trinity.common.errors import ConfigError, EngineError, EnvironmentProblem, OutOfMemoryError
from trinity.common.images.picture import ImageReader
from trinity.common.models.chat_template import load_tokenizer
from trinity.common.models.generate_params import GenerateParams
from trinity.common.models.model_config import import_libraries
from trinity.common.models.vocabulary import stop_token_ids
from trinity.common.models.watching import listener
from trinity.common.models.weights import copy_weights
from trinity.engine.image_prompts import ImagePrompts, SeenPrompt
from trinity.engine.local_model import LocalModel
from trinity.engine.sample import Sample
from trinity.engine.settings import EngineSettings
from trinity.engine.torch.admission import make_admission
from trinity.engine.torch.batch import RunningBatch
from trinity.engine.torch.decoder import Decoder, SeeingDecoder
from trinity.engine.torch.loading import load_decoder
from trinity.engine.torch.loop import EngineLoop
from trinity.engine.torch.memory import MEMORY_KEYS, PREFIX_KEY, explained
from trinity.engine.torch.prefix_cache import BLOCK_TOKENS
from trinity.engine.torch.request import Request
from trinity.utils.deadline import bounded
from trinity.utils.device import compute_dtype, is_out_of_memory, select_device, total_memory_bytes
from trinity.utils.log import get_logger

_CPU_CACHE_FRAC = 0.4  # of the machine's memory, which trainer and engine share on a CPU


class TorchEngine(LocalModel):
    """Continuous batching over one causal language model.

    See `InferenceModel`. Methods may be awaited on any event loop, several at once. One thread of this process does the
    work.
    """

    has_top_logprobs = True

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._loaded: tuple[Decoder, EngineLoop, PreTrainedTokenizerBase] | None = None
        self._images: ImagePrompts | None = None
        self._load_lock = threading.Lock()
        self._staged: dict[asyncio.AbstractEventLoop, list[Request]] = {}

    async def prepare(self) -> None:
        """Load tokenizer and weights and start the thread; later calls do nothing.

        Raises:
            EnvironmentProblem: no readable model or tokenizer, or no chat template where one is set.
            OutOfMemoryError: the weights or a single sequence do not fit.
            ConfigError: `prefix_cache_bytes` is less than a block (E1897).
        """
        await asyncio.to_thread(self._load)

    def _load(self) -> None:
        with self._load_lock:
            if self._loaded is not None:
                return
            settings, model = self.settings, self.settings.model
            try:
                device = select_device(settings.device)
            except ValueError as error:
                raise EnvironmentProblem(f"explorer.rollout_model.extra_engine_args: {error}", code="E3201") from error
            tokenizer = load_tokenizer(model)
            import_libraries(settings.external_lib)
            decoder: Decoder | None = None
            try:
                decoder = load_decoder(
                    model.model_path,
                    dtype=compute_dtype(settings.dtype, device),
                    device=device,
                    max_model_len=self._max_model_len,
                    trust_remote_code=model.trust_remote_code,
                    is_fast_allowed=settings.is_fast_allowed,
                    overrides=settings.model_overrides,
                    rotary_len=settings.rotary_len,
                    is_exact=settings.is_deterministic,
                )
                num_slots = self._num_slots(decoder)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                slots = settings.max_num_seqs
                raise explained(error, decoder, num_slots=slots, max_length=self._max_model_len) from error
            batch = RunningBatch(
                decoder,
                num_slots,
                max_length=self._max_model_len,
                stop_ids=stop_token_ids(model.model_path, tokenizer),
                tokenizer=copy.deepcopy(tokenizer),
                is_fixed=settings.is_deterministic,
                prefix_bytes=self._prefix_bytes(decoder, num_slots=num_slots),
            )
            if isinstance(decoder, SeeingDecoder) and settings.is_multimodal:
                kept, merge = settings.image_cache_bytes, decoder.merge_size
                reader = ImageReader(model.model_path, merge_size=merge, max_bytes=kept)
                self._images = ImagePrompts(reader, decoder.image_token)
            loop = EngineLoop(batch, make_admission(settings.is_deterministic, settings.is_auxiliary))
            loop.start()
            self._loaded = decoder, loop, tokenizer
            get_logger("explorer").info(
                "torch engine: %s, %s path, %s on %s, %d sequences at once of %d tokens at most",
                *(model.model_path, decoder.kind, compute_dtype(settings.dtype, device), device),
                *(num_slots, self._max_model_len),
            )

    def _room(self, decoder: Decoder) -> int:
        """Return the memory for keys and values, in bytes."""
        if decoder.kv_bytes_per_token == 0:
            probe = torch.zeros(1, 1, dtype=torch.long, device=decoder.device)
            with torch.no_grad():
                decoder.prefill(probe, probe[0])
        total = total_memory_bytes(decoder.device) // self.settings.num_engines
        if decoder.device.type == "cpu":
            return int(total * _CPU_CACHE_FRAC)
        return int(total * self.settings.memory_frac) - decoder.weight_bytes

    def _num_slots(self, decoder: Decoder) -> int:
        """Return how many sequences of full length fit, at most `max_num_seqs`.

        They fit beside the memory that `prefix_cache_bytes` reserves.
        """
        settings, room = self.settings, self._room(decoder)
        reserved = (settings.prefix_cache_bytes or 0) if settings.has_prefix_cache else 0
        fitting = (room - reserved) // (decoder.kv_bytes_per_token * self._max_model_len)
        if fitting < 1:
            beside = f" beside {PREFIX_KEY} ({reserved / 2**30:.2f} GiB)" if reserved else ""
            raise OutOfMemoryError(
                f"the cache of one sequence of {self._max_model_len} tokens takes "
                f"{decoder.kv_bytes_per_token * self._max_model_len / 2**30:.2f} GiB and the engine may use "
                f"{max(room - reserved, 0) / 2**30:.2f} GiB for it{beside}; {MEMORY_KEYS}"
            )
        if fitting < settings.max_num_seqs:
            get_logger("explorer").warning(
                "max_num_seqs lowered from %d to %d: so many sequences of %d tokens fit into memory",
                *(settings.max_num_seqs, fitting, self._max_model_len),
            )
        return min(fitting, settings.max_num_seqs)

    def _prefix_bytes(self, decoder: Decoder, *, num_slots: int) -> int:
        """Return the limit of the prefix cache in bytes; 0: there is none.

        Raises:
            ConfigError: it is less than a block (E1897).
        """
        settings, block = self.settings, BLOCK_TOKENS * decoder.kv_bytes_per_token
        if not settings.has_prefix_cache:
            return 0
        if settings.prefix_cache_bytes is None:
            room, of_slots = self._room(decoder), num_slots * self._max_model_len * decoder.kv_bytes_per_token
            return min(of_slots, room // 4, room - of_slots)
        if settings.prefix_cache_bytes < block:
            raise ConfigError(
                f"{PREFIX_KEY} must be at least {block}, the keys and values of {BLOCK_TOKENS} tokens of this model, "
                f"got {settings.prefix_cache_bytes}; raise it, or write enable_prefix_caching: false",
                code="E1897",
            )
        return settings.prefix_cache_bytes

    def _ready(self) -> tuple[Decoder, EngineLoop, PreTrainedTokenizerBase]:
        if self._loaded is None:
            raise EngineError("the engine is not prepared; await prepare() first", code="E5611")
        return self._loaded

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer with its chat template."""
        return self._ready()[2]

    @property
    def images(self) -> ImagePrompts | None:
        """What renders conversations with images; None: the model reads none."""
        return self._images

    @property
    def model_version(self) -> int:
        """Version of the weights: 0 as loaded, then that of the last update."""
        return self._loaded[1].model_version if self._loaded else 0

    async def update_weights(self, weights: Mapping[str, Tensor], *, version: int) -> None:
        """Copy weights in by Hugging Face name and set their version.

        The copy waits until every sample in progress is finished, so one version makes all of a sample; with
        `synchronizer.update_in_flight` it is done before their next token. Waiting requests get the new weights. No
        memory is shared with `weights` afterwards.

        Raises:
            SyncError: names or shapes differ; the engine keeps its weights.
            DeadlineError: not idle within `synchronizer.sync_timeout`.
        """
        decoder, loop, _ = self._ready()

        def copy_all() -> None:
            copy_weights(
                decoder.targets(), weights, optional=decoder.optional_names(), source=f"weights of version {version}"
            )
            loop.model_version = version
            self.gauge.note_weights()
            loop.batch.drop_prefixes()
            if self.settings.updates_in_flight:
                loop.batch.go_on_with(version)

        when = loop.between_steps if self.settings.updates_in_flight else loop.when_idle
        await bounded(
            asyncio.wrap_future(when(copy_all)),
            self.settings.sync_timeout_s,
            what="the engine to finish its samples and take the new weights",
            setting="synchronizer.sync_timeout",
        )

    async def join_round(self, participant: str) -> None:
        """In deterministic mode, make every round wait for `participant`."""
        self._ready()[1].join_round(participant)

    async def leave_round(self, participant: str) -> None:
        """Stop rounds from waiting for `participant`."""
        self._ready()[1].leave_round(participant)

    async def waits_in_round(self, participant: str) -> bool:
        """Return whether `participant` has an open request in a round."""
        return self._ready()[1].waits_in_round(participant)

    async def shutdown(self) -> None:
        """End the engine's thread; calls in progress get an EngineError."""
        if self._loaded is not None:
            await asyncio.to_thread(self._loaded[1].stop)

    async def stats(self) -> dict[str, float]:
        """Return totals since the start, and current figures.

        Totals are tokens, samples, prefills, turns and seconds at work, and those of the prefix cache. Figures are
        tokens per second, slots, bytes of the prefix cache, and those of `RequestGauge.table`.

        Raises:
            EngineError: the engine's thread has failed, or was shut down.
            OutOfMemoryError: it has failed for lack of memory.
        """
        _, loop, _ = self._ready()
        loop.check()
        counts, prefixes = loop.batch.counts, loop.batch.prefixes
        return (
            {
                "generated_tokens": float(counts.generated_tokens),
                "prompt_tokens": float(counts.prompt_tokens),
                "prefix_groups": float(counts.prefix_groups),
                "samples": float(counts.samples),
                "steps": float(counts.steps),
                "busy_s": counts.busy_s,
                "tokens_per_second": counts.generated_tokens / counts.busy_s if counts.busy_s else 0.0,
                "num_slots": float(loop.batch.num_slots),
            }
            | self.turns
            | ({} if self._images is None else self._images.reader.totals)
            | ({} if prefixes is None else prefixes.table())
            | self.gauge.table(version=loop.model_version, num_slots=loop.batch.num_slots)
        )

    async def _score(self, tokens: list[int], temperature: float) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first, float32."""
        decoder, loop, _ = self._ready()
        sequence = torch.tensor(tokens, device=decoder.device)

        def score() -> Float[Tensor, "N"]:
            loop.batch.note_bypassed(len(tokens))
            return decoder.sequence_logprobs(sequence, temperature).to("cpu")

        future = loop.between_steps(score)
        return await bounded(
            asyncio.wrap_future(future), self.settings.timeout_s, what="logprobs", setting="explorer.max_timeout"
        )

    async def _sample(
        self, prompt: SeenPrompt, params: GenerateParams, *, keys: list[int], ids: tuple[str, ...]
    ) -> list[Sample]:
        """Return samples; submit all requests of an event loop's turn together."""
        engine = self._ready()[1]
        caller = asyncio.get_running_loop()
        future: asyncio.Future[list[Sample]] = caller.create_future()
        request = Request(
            prompt.keys,
            params,
            keys=keys,
            ids=ids,
            loop=caller,
            future=future,
            listener=listener(),
            pictures=prompt.pictures,
        )
        staged = self._staged.setdefault(request.loop, [])
        staged.append(request)
        if len(staged) == 1:
            request.loop.call_soon(self._flush, request.loop)
        try:
            return await bounded(
                request.future, self.settings.timeout_s, what="the engine's samples", setting="explorer.max_timeout"
            )
        finally:
            if not request.is_finished:
                engine.cancel(request)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ready()[1].submit(self._staged.pop(loop))
