"""The vLLM engine: an `InferenceModel` over vLLM's AsyncLLM.

Its samples and logprobs equal those of the torch engine. vLLM is imported when an engine is prepared. It works in its
own processes; an event loop in a thread of this process talks to them, so methods may be awaited on any loop.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trinity.common.errors import ConfigError, EngineError, EnvironmentProblem
from trinity.common.images.picture import ImageReader
from trinity.common.models.chat_template import load_tokenizer
from trinity.common.models.generate_params import GenerateParams
from trinity.common.models.model_config import import_libraries
from trinity.common.models.vocabulary import drawable, stop_token_ids
from trinity.engine.image_prompts import ImagePrompts, SeenPrompt
from trinity.engine.local_model import LocalModel
from trinity.engine.sample import Sample
from trinity.engine.vllm.asking import ask
from trinity.engine.vllm.core_watch import watch_over
from trinity.engine.vllm.requests import RequestProgress, Scored, Texts, is_early, sample_of, stops_of
from trinity.engine.vllm.settings import TORCH_INSTEAD, VLLMSettings, engine_arguments
from trinity.engine.vllm.start import async_llm, check_installed, difference, refusal, trial_of
from trinity.engine.vllm.state import Started, VLLMTotals, running_task
from trinity.engine.vllm.weights import read_facts, written_weights
from trinity.utils.deadline import bounded
from trinity.utils.device import compute_dtype, select_device
from trinity.utils.log import get_logger

T = TypeVar("T")

_START_TIMEOUT_S = 1800.0
_STOP_TIMEOUT_S = 30.0
_PROCESS_GRACE_S = 1.0
_TRIED_TOKENS = 16


class VLLMEngine(LocalModel):
    """Continuous batching by vLLM; see `InferenceModel`."""

    settings: VLLMSettings

    def __init__(self, settings: VLLMSettings) -> None:
        super().__init__(settings)
        self._started: Started | None = None
        self._prepare_lock = threading.Lock()
        self._failure: EngineError | None = None
        self._images: ImagePrompts | None = None
        self._version = 0
        self._counts = VLLMTotals()
        self.workers: list[dict[str, Any]] = []
        self._ids = itertools.count()
        # A prompt is scored in one pass at this temperature; at any other, scoring takes a step a token.
        self._temperature = settings.params.temperature or 1.0

    async def prepare(self) -> None:
        """Start vLLM and load the model; later calls do nothing.

        Raises:
            EnvironmentProblem: vLLM is missing (E3301), of another version (E3221), a CUDA build without a GPU (E3201),
                it does not start (E3222), or the model cannot be read.
            ConfigError: an argument that vLLM does not know (E1612).
        """
        await bounded(
            asyncio.to_thread(self._prepare), _START_TIMEOUT_S, what="vLLM to start", setting="_START_TIMEOUT_S"
        )

    def _prepare(self) -> None:
        with self._prepare_lock:
            if self._started is not None:
                return
            check_installed()
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="vllm-engine", daemon=True).start()
            try:
                self._started = asyncio.run_coroutine_threadsafe(self._start(), loop).result(_START_TIMEOUT_S)
                asyncio.run_coroutine_threadsafe(self._try(), loop).result(_START_TIMEOUT_S)
                self._counts = VLLMTotals()
                loop.call_soon_threadsafe(watch_over, self._started, self.workers, self.settings.probes, self._fail)
            except (EnvironmentProblem, ConfigError):
                self._give_up(loop)
                raise
            # Any error of vLLM's start ends the run, with vLLM's message and this engine's keys.
            except Exception as error:
                self._give_up(loop)
                raise EnvironmentProblem(
                    f"vLLM did not start with {self.settings.model.model_path}: {type(error).__name__}: {error}; see "
                    "its lines above (VLLM_LOGGING_LEVEL=INFO for more), explorer.rollout_model.extra_engine_args, or "
                    f"{TORCH_INSTEAD}",
                    code="E3222",
                ) from error

    def _give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        started, self._started, self._failure = self._started, None, None
        if started is not None:
            started.stop(_PROCESS_GRACE_S)
        loop.call_soon_threadsafe(loop.stop)

    async def _start(self) -> Started:
        settings, model = self.settings, self.settings.model
        import_libraries(settings.external_lib)
        tokenizer = load_tokenizer(model)
        device = select_device("auto")
        is_cpu = device.type == "cpu"
        facts = read_facts(model, settings.model_overrides, is_updated=not settings.is_auxiliary, is_cpu=is_cpu)
        dtype = compute_dtype(settings.dtype, device)
        stop_ids = stop_token_ids(model.model_path, tokenizer)
        ids = drawable(tokenizer, facts.vocab_size, stop_ids)
        self._num_tokens = ids.num_tokens
        own = {"temperature": self._temperature, **asdict(ids)}
        if facts.image_token is not None and settings.is_multimodal:
            reader = ImageReader(facts.folder, merge_size=facts.merge_size, max_bytes=settings.image_cache_bytes)
            self._images = ImagePrompts(reader, facts.image_token)
        of_model: dict[str, Any] = {"changed": facts.changed, "has_images": facts.image_token is not None}
        arguments = engine_arguments(
            settings, facts.text_config, folder=facts.folder, dtype=dtype, is_cpu=is_cpu, own=own, **of_model
        )
        slots = asyncio.Semaphore(settings.max_num_seqs)
        loop = asyncio.get_running_loop()
        llm, scratch = async_llm(arguments, is_cpu=is_cpu)
        started = Started(llm, scratch, loop, tokenizer, facts, dtype, dtype, stop_ids, slots)
        self.workers = await started.llm.collective_rpc("trinity_start", args=(os.getpid(), self._temperature))
        started.own(self.workers)
        if any(worker["loaded"] != [str(dtype)] for worker in self.workers):
            started.wire_dtype = torch.float32  # part of the model has a wider data type
        get_logger("explorer").info(
            "vLLM engine: %s, %s on %s, %d sequences at once of %d tokens at most; workers %s",
            *(model.model_path, dtype, device, settings.max_num_seqs, self._max_model_len, self.workers),
        )
        return started

    async def _try(self) -> None:
        """Try one sample and one weight update, which no check can predict.

        Raises:
            EnvironmentProblem: an update would not replace all weights (E3226).
        """
        started = self._ready()
        length = max(1, min(_TRIED_TOKENS, self._max_model_len - 1))
        tokens = [number % self._num_tokens for number in range(length)]
        params = GenerateParams(max_tokens=1, ignore_eos=True)
        _, before = await self._one(SeenPrompt(tokens), params, 0, forced=tokens[:1])
        if started.facts.names is None:
            return
        try:
            await started.llm.pause_generation(mode="abort", clear_cache=True)
            reasons = await started.llm.collective_rpc("trinity_try", args=trial_of(started.facts, started.wire_dtype))
            await started.llm.resume_generation()
        # Any error of a vLLM model that loads weights means that it cannot be trained.
        except Exception as error:
            raise refusal(started.facts, f"whose reload ends with {type(error).__name__}: {error}") from error
        reason = next((each for each in reasons if each is not None), None)
        if reason is None:
            _, after = await self._one(SeenPrompt(tokens), params, 0, forced=tokens[:1])
            reason = difference(before, after, dtype=started.dtype)
        if reason is not None:
            raise refusal(started.facts, reason)

    def _ready(self) -> Started:
        if self._started is None:
            raise EngineError("the engine is not prepared; await prepare() first", code="E5611")
        if self._failure is not None:
            raise EngineError(self._failure.args[0], code=self._failure.code)
        return self._started

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer with its chat template."""
        return self._ready().tokenizer

    @property
    def images(self) -> ImagePrompts | None:
        """What renders conversations with images; None: the model reads none."""
        return self._images

    @property
    def model_version(self) -> int:
        """Version of the weights: 0 as loaded, then that of the last update."""
        return self._version

    async def _call(self, call: Coroutine[Any, Any, T], seconds: float, *, what: str, setting: str) -> T:
        """Run a coroutine on the engine's loop; the caller can cancel it."""
        try:
            future = asyncio.run_coroutine_threadsafe(call, self._ready().loop)
        except EngineError:
            call.close()
            raise
        return await bounded(asyncio.wrap_future(future), seconds, what=what, setting=setting)

    async def _sample(
        self, prompt: SeenPrompt, params: GenerateParams, *, keys: list[int], ids: tuple[str, ...]
    ) -> list[Sample]:
        """Return the samples, one request each; vLLM shares the prompt's cache."""
        self._counts.prompt_tokens += len(prompt.tokens)

        async def one(key: int) -> Sample:
            sample, _ = await self._one(prompt, params, key, stops=stops_of(params))
            return (await self._one(prompt, params, key))[0] if is_early(sample, params) else sample

        async def every() -> list[Sample]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(key)) for key in keys]
            self._counts.samples += len(tasks)
            return [task.result() for task in tasks]

        return await self._answer(every(), what="the engine's samples")

    async def _score(self, tokens: list[int], temperature: float) -> Float[Tensor, "N"]:
        """Return logprobs in one pass; token by token at another temperature."""
        start = len(tokens) - 1 if temperature == self._temperature else 1
        params = GenerateParams(temperature=temperature, max_tokens=len(tokens) - start, ignore_eos=True)

        async def score() -> Float[Tensor, "scored"]:
            sample, scored = await self._one(SeenPrompt(tokens[:start]), params, 0, forced=tokens[start:])
            return torch.cat([torch.tensor(scored[1:]), sample.logprobs])

        return await self._answer(score(), what="logprobs")

    async def _answer(self, call: Coroutine[Any, Any, T], *, what: str) -> T:
        try:
            return await self._call(call, self.settings.timeout_s, what=what, setting="explorer.max_timeout")
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _one(
        self,
        prompt: SeenPrompt,
        params: GenerateParams,
        key: int,
        *,
        forced: list[int] | None = None,
        stops: Texts = (),
    ) -> Scored:
        """Return one sample, and with `forced` tokens also the prompt's logprobs."""
        started = self._ready()
        async with started.slots:
            await started.gate.wait()
            self._ready()
            name = str(next(self._ids))
            progress = RequestProgress(self._version)
            started.begin(name, progress, self._counts)
            try:
                return await self._ask(name, prompt, params, key=key, forced=forced, progress=progress, stops=stops)
            except asyncio.CancelledError:
                if self._failure is not None:
                    self._ready()
                raise
            finally:
                started.end(name, self._counts)

    async def _ask(
        self,
        name: str,
        prompt: SeenPrompt,
        params: GenerateParams,
        *,
        key: int,
        forced: list[int] | None,
        progress: RequestProgress,
        stops: Texts,
    ) -> Scored:
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        started = self._ready()
        given: dict[str, Any] = {"key": key, "forced": forced, "stops": stops, "stop_ids": started.stop_ids}
        try:
            last = await ask(started.llm, name, prompt, params, **given)
        except (EngineDeadError, EngineGenerateError) as error:
            self._fail(f"vLLM's process has ended or failed: {error.__cause__ or error}", code="E5660", cause=error)
            self._ready()
            raise
        sample, scored = sample_of(last, params, tokenizer=started.tokenizer, progress=progress, has_stops=bool(stops))
        self._counts.generated_tokens += len(sample.tokens) if forced is None else 0
        return sample, scored

    def _fail(self, message: str, *, code: str, cause: BaseException | None) -> None:
        """Mark the engine unusable and fail the calls in progress."""
        if self._failure is not None or self._started is None:
            return
        self._failure = EngineError(f"{message}; the engine must be started again", code=code)
        get_logger("explorer").error("%s", self._failure, exc_info=cause)
        self._started.cancel_others()

    async def update_weights(
        self, weights: Mapping[str, Tensor], *, version: int, in_flight: bool | None = None
    ) -> None:
        """Load weights by Hugging Face name into vLLM and set their version.

        Samples in progress finish first, so one version makes all of a sample. With `in_flight` (None: as
        `synchronizer.update_in_flight` says) they are paused and continue with the new weights, their cache recomputed;
        the experience holds each token's version. Waiting requests get the new weights. Caches of the old weights are
        dropped.

        Raises:
            SyncError: names or shapes differ; the engine keeps its weights (E5505).
            EngineError: loading failed midway; the engine is unusable (E5661).
            DeadlineError: not idle within `synchronizer.sync_timeout`.
        """
        started = self._ready()
        is_in_flight = self.settings.updates_in_flight if in_flight is None else in_flight
        source = f"weights of version {version}"
        written = written_weights(weights, started.facts, dtype=started.wire_dtype, source=source)
        path, digest = await asyncio.to_thread(written.__enter__)
        try:
            await self._call(
                self._update(path, digest, version=version, in_flight=is_in_flight),
                self.settings.sync_timeout_s,
                what="the engine to finish its samples and take the new weights",
                setting="synchronizer.sync_timeout",
            )
        finally:
            written.__exit__(None, None, None)

    async def _update(self, path: str, digest: str, *, version: int, in_flight: bool) -> None:
        started = self._ready()
        async with started.update_lock:
            started.gate.clear()
            started.tasks.add(running_task())
            try:
                if not in_flight:
                    await started.idle.wait()
                await self._load(started, path, digest, version=version, in_flight=in_flight)
            except asyncio.CancelledError:
                self._ready()  # the engine may have failed meanwhile
                raise
            finally:
                started.tasks.discard(running_task())
                started.gate.set()

    async def _load(self, started: Started, path: str, digest: str, *, version: int, in_flight: bool) -> None:
        """Pause, load and resume; an error leaves weights in an unknown state."""
        try:
            await started.llm.pause_generation(mode="keep" if in_flight else "abort", clear_cache=True)
            answers = await started.llm.collective_rpc("trinity_update", args=(path, digest))
            for name, progress in started.active.items():
                progress.change(max((answer.get(name, 0) for answer in answers), default=0), version)
            self._version = version
            self.gauge.note_weights()
            await started.llm.resume_generation()
        except BaseException as error:
            self._fail(f"weights of version {version} could not be loaded: {error!r}", code="E5661", cause=error)
            self._ready()
            raise

    async def join_round(self, participant: str) -> None:
        """Do nothing: this engine has no rounds."""

    async def leave_round(self, participant: str) -> None:
        """Do nothing: this engine has no rounds."""

    async def waits_in_round(self, participant: str) -> bool:
        """Return false: this engine has no rounds."""
        return False

    async def shutdown(self) -> None:
        """End vLLM's processes; calls in progress get an EngineError."""
        started = self._started
        if started is None or started.llm is None:
            return

        async def end() -> None:
            if self._failure is None:
                self._failure = EngineError("the engine is shut down", code="E5607")
            started.cancel_others()
            await asyncio.to_thread(started.stop, _PROCESS_GRACE_S)

        future = asyncio.run_coroutine_threadsafe(end(), started.loop)
        await bounded(asyncio.wrap_future(future), _STOP_TIMEOUT_S, what="vLLM to end", setting="_STOP_TIMEOUT_S")
        started.loop.call_soon_threadsafe(started.loop.stop)

    async def stats(self) -> dict[str, float]:
        """Return totals since the start, and current figures.

        They have the names of the torch engine; see `VLLMTotals.table` and `RequestGauge.table`.
        """
        started, num_slots = self._ready(), self.settings.max_num_seqs
        totals = self._counts.table(is_busy=not started.idle.is_set(), num_slots=num_slots)
        read = {} if self._images is None else self._images.reader.totals
        return totals | read | self.turns | self.gauge.table(version=self._version, num_slots=num_slots)
