"""The shared part of engines that sample here: prompts to experiences.

It covers tokenisation, length limits, identities of samples, and experiences.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trinity.common.errors import EngineError, EnvironmentProblem, NotAvailableError
from trinity.common.experience import Experience
from trinity.common.images.messages import has_images
from trinity.common.images.picture import as_inputs
from trinity.common.models.answer_parsers import AnswerParser
from trinity.common.models.answers import AnswerRenderer
from trinity.common.models.chat_template import decode_tokens, encode_text, render_chat
from trinity.common.models.generate_params import GenerateParams
from trinity.common.models.masking import masked_conversation
from trinity.common.models.said import Said
from trinity.common.models.vocabulary import stop_token_ids
from trinity.common.models.watching import note_prompt
from trinity.common.weights import Ticket, update_from
from trinity.engine.gauge import RequestGauge
from trinity.engine.image_prompts import ImagePrompts, SeenPrompt, required
from trinity.engine.sample import Sample, unanswered
from trinity.engine.sampler import noise_key
from trinity.engine.settings import EngineSettings
from trinity.engine.stopping import stop_at_end, text_of
from trinity.utils.log import get_logger


class LocalModel(ABC):
    """The shared part of our engines, which add sampling and scoring."""

    has_top_logprobs = False

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.gauge = RequestGauge()
        self.turns = {"continued_turns": 0.0, "split_turns": 0.0}
        self._renderers: dict[tuple[str | None, bool | None], AnswerRenderer] = {}
        parsers = settings.tool_call_parser, settings.reasoning_parser
        self._parser = AnswerParser(*parsers) if any(parsers) else None
        self._numbers = itertools.count()
        self._has_warned = False

    @property
    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer with its chat template."""

    @property
    @abstractmethod
    def model_version(self) -> int:
        """Version of the weights: 0 as loaded, then that of the last update."""

    @property
    def images(self) -> ImagePrompts | None:
        """What renders conversations with images; None: the model reads none."""
        return None

    @abstractmethod
    async def _sample(
        self, prompt: SeenPrompt, params: GenerateParams, *, keys: list[int], ids: tuple[str, ...]
    ) -> list[Sample]:
        """Return `params.n` samples for a prompt, with its images if any.

        `params.max_tokens` is set; `keys` are the noise keys of the samples, `ids` their identities.
        """

    @abstractmethod
    async def _score(self, tokens: list[int], temperature: float) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first, float32."""

    @abstractmethod
    async def update_weights(self, weights: Mapping[str, Tensor], *, version: int) -> None:
        """Copy weights in by Hugging Face name and set their version."""

    async def pull(self, ticket: Ticket) -> None:
        """Fetch, verify and load a ticket's weights, as `update_weights` does.

        Raises:
            SyncError: the weights are no longer held, or differ from what was published; the engine keeps its weights.
            DeadlineError: they did not arrive within `synchronizer.sync_timeout`.
        """
        await update_from(ticket, self, timeout_s=self.settings.sync_timeout_s)

    @property
    def _max_model_len(self) -> int:
        assert self.settings.model.max_model_len is not None, "engine settings carry max_model_len"
        return self.settings.model.max_model_len

    def vocabulary(self) -> Mapping[str, int]:
        """Return the tokenizer's ids by token."""
        return self.tokenizer.get_vocab()

    async def generate(self, prompt: str | Sequence[int], **arguments: Any) -> list[Experience]:
        """Return `n` responses to one prompt (text or token ids).

        See `generate_seen`.

        Raises:
            EngineError: a token that the tokenizer does not have (E5602), and as for `generate_seen`.
        """
        tokenizer = self.tokenizer
        tokens = encode_text(tokenizer, prompt) if isinstance(prompt, str) else self._known(prompt)
        return await self.generate_seen(SeenPrompt(tokens), **arguments)

    def _known(self, given: Sequence[int]) -> list[int]:
        """Return the tokens; refuse any that the tokenizer lacks (E5602)."""
        tokens, count = [int(token) for token in given], len(self.tokenizer)
        if tokens and not 0 <= min(tokens) <= max(tokens) < count:
            raise EngineError(
                f"tokens of a prompt must be from 0 to {count - 1}, the tokenizer's last, got "
                f"{min(tokens)} to {max(tokens)}",
                code="E5602",
            )
        return tokens

    async def generate_seen(self, prompt: SeenPrompt, **arguments: Any) -> list[Experience]:
        """Return `n` responses to one prompt, which may have images.

        A prompt longer than `model.max_prompt_tokens` is cut if `enable_prompt_truncation`, of the call or else of the
        model. The rest is then the prompt. With `prompt_truncation: stop` nothing is sampled: each of the `n`
        experiences is marked `prompt_truncated`, and its one response token is masked.

        Args:
            prompt: the prompt.
            arguments: those of `GenerateParams`; None keeps the default.

        Raises:
            EngineError: bad argument, a prompt that leaves no room for a response, or the engine failed.
            DeadlineError: no result within `explorer.max_timeout`.
        """
        params = self.settings.params.override(arguments)
        if params.top_logprobs and not self.has_top_logprobs:
            raise NotAvailableError("top_logprobs above 0 is served by the torch engine alone; leave it out")
        tokenizer, tokens, own = self.tokenizer, prompt.tokens, self.settings.model
        limit, is_cut = own.max_prompt_tokens, params.enable_prompt_truncation
        if is_cut is None:
            is_cut = own.enable_prompt_truncation
        if not tokens:
            raise EngineError("a prompt needs at least one token, got none", code="E5602")
        if limit is not None and len(tokens) > limit and is_cut:
            side = own.prompt_truncation
            self._warn_truncated(len(tokens), limit)
            if side == "stop":
                return [self._truncated(tokens[: limit + 1]) for _ in range(params.n)]
            prompt = prompt.cut(limit, side=side)
            tokens = prompt.tokens
        allowed, ids, keys = self._resolve(tokens, params)
        prompt_text = decode_tokens(tokenizer, prompt.written())
        note_prompt(tokens, prompt_text, tokenizer=tokenizer, parser=self._parser)
        with self.gauge.request(params.n):
            samples = await self._sample(prompt, allowed, keys=keys, ids=ids)
        return [self._experience(prompt, sample, prompt_text=prompt_text) for sample in samples]

    async def chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        said: Said | None = None,
        template_args: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> list[Experience]:
        """Return `n` responses to a conversation; see `generate`.

        A response that is parsed as more than text has `info["message"]`. If `said` is given, its tokens are the
        beginning of the prompt, and the chat template renders only the messages that follow. If the template does not
        continue from them, the whole conversation is rendered, and the turn counts as split. A conversation with images
        is always rendered as a whole.

        Raises:
            EnvironmentProblem: no chat template, or it fails.
            EngineError: images for a model that reads none (E5613).
            DataError: an image cannot be used (E4031, E4032).
        """
        options = self._rendering(template_args)
        if said is not None:
            said = said._replace(tokens=self._known(said.tokens))
        prompt = await self._seen(messages, tools, said, options) if has_images(messages) else None
        if prompt is None:
            tokens = None if said is None else self._continued(messages, tools, said, options)
            prompt = SeenPrompt(tokens or render_chat(self.tokenizer, messages, tools=tools, **options)[0])
        experiences = await self.generate_seen(prompt, **arguments)
        for experience in experiences if self._parser is not None else ():
            self._parse(experience, tools)
        return experiences

    async def _seen(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        said: Said | None,
        options: Mapping[str, Any],
    ) -> SeenPrompt:
        """Return the prompt of a conversation with images."""
        self.turns["split_turns"] += said is not None
        images = required(self.images, self.settings.model.model_path)
        return await images.render(self.tokenizer, messages, tools=tools, **options)

    def _parse(self, experience: Experience, tools: list[dict[str, Any]] | None) -> None:
        """Store the message that a response holds, if it is more than text."""
        assert self._parser is not None, "only called with one"
        text, prompt = text_of(self.tokenizer, experience), experience.prompt_text or ""
        message = self._parser.message(text, prompt=prompt, tools=tools)
        if message.keys() - {"role", "content"}:
            experience.info["message"] = message

    def _continued(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        said: Said,
        options: Mapping[str, Any],
    ) -> list[int] | None:
        """Return the prompt that continues from `said`; None if none does."""
        try:
            tokens = self._renderer(options).after(messages, tools, said, parse=self._reader(tools))
        except EnvironmentProblem:
            tokens = None  # the template fails on a part of the conversation
        self.turns["split_turns" if tokens is None else "continued_turns"] += 1
        return tokens

    def _reader(self, tools: list[dict[str, Any]] | None) -> Callable[[str], dict[str, Any]] | None:
        """Return a function that parses a response, without ids of tool calls."""
        parser = self._parser
        if parser is None:
            return None

        def read(text: str) -> dict[str, Any]:
            message = parser.message(text, tools=tools)
            return message | {"tool_calls": [call["function"] for call in message.get("tool_calls", ())]}

        return read

    def _renderer(self, options: Mapping[str, Any]) -> AnswerRenderer:
        """Return the renderer of a chat template, with or without thinking."""
        key = options.get("chat_template"), options["enable_thinking"]
        if key not in self._renderers:
            stop_ids = stop_token_ids(self.settings.model.model_path, self.tokenizer)
            self._renderers[key] = AnswerRenderer(
                self.tokenizer, chat_template=key[0], enable_thinking=key[1], stop_ids=stop_ids
            )
        return self._renderers[key]

    async def logprobs(self, tokens: Sequence[int], *, temperature: float = 1.0) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first, float32.

        They are those of the current weights.

        Raises:
            EngineError: fewer than two tokens, more than `max_model_len`, or a temperature that is not positive.
        """
        if not 2 <= len(tokens) <= self._max_model_len or temperature <= 0:
            raise EngineError(
                f"logprobs takes 2 to {self._max_model_len} tokens (model.max_model_len) and a temperature above 0, "
                f"got {len(tokens)} tokens and temperature {temperature}",
                code="E5602",
            )
        return await self._score(self._known(tokens), temperature)

    async def convert_messages_to_experience(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        temperature: float | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> Experience:
        """Return a conversation as an experience whose actions are its responses.

        It ends with the last response. Tokens beyond `max_model_len` are cut and the experience is marked
        `response_truncated`.

        Raises:
            DataError: the chat template rewrites earlier turns, so that the conversation is not one sequence (E4021).
            EngineError: no assistant message within `max_model_len` tokens (E5602), or a message with an image (E5614).
        """
        if has_images(messages):
            raise EngineError(
                "a conversation with images cannot be made one experience; use the experiences that model.chat returns",
                code="E5614",
            )
        tokens, mask, start = masked_conversation(
            self.tokenizer,
            messages,
            tools=tools,
            **self._rendering(template_args),
            stop_ids=stop_token_ids(self.settings.model.model_path, self.tokenizer),
        )
        is_cut = len(tokens) > self._max_model_len
        tokens, mask = tokens[: self._max_model_len], mask[: self._max_model_len]
        if start == 0 or start >= len(tokens):
            raise EngineError(
                "a conversation becomes an experience if it has an assistant message after its first token and within "
                f"model.max_model_len ({self._max_model_len}) tokens, got {len(tokens)} tokens and the first "
                f"assistant token at {start}",
                code="E5602",
            )
        chosen = self.settings.params.temperature if temperature is None else temperature
        logprobs = await self.logprobs(tokens, temperature=chosen or 1.0)
        return Experience(
            tokens=torch.tensor(tokens),
            prompt_length=start,
            logprobs=logprobs[start - 1 :],
            action_mask=torch.tensor(mask[start:], dtype=torch.bool),
            truncate_status="response_truncated" if is_cut else None,
            info={"model_version": self.model_version},
            prompt_text=decode_tokens(self.tokenizer, tokens[:start]),
            response_text=decode_tokens(self.tokenizer, tokens[start:]),
            messages=[dict(message) for message in messages],
            tools=tools,
        )

    async def get_message_token_len(
        self, messages: Sequence[dict[str, Any]], template_args: Mapping[str, Any] | None = None
    ) -> int:
        """Return the number of tokens of a conversation as a prompt."""
        options = self._rendering(template_args)
        if has_images(messages):
            return len((await self._seen(messages, None, None, options)).tokens)
        return len(render_chat(self.tokenizer, messages, **options)[0])

    def _rendering(self, template_args: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return how to render a conversation: the call's way, else the model's."""
        return {"enable_thinking": self.settings.model.enable_thinking} | dict(template_args or {})

    def _warn_truncated(self, length: int, limit: int) -> None:
        """Log a cut prompt: the first as a warning, others at level DEBUG."""
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        get_logger("explorer").log(
            level,
            "prompt of %d tokens cut to %d (model.max_prompt_tokens), see model.prompt_truncation",
            length,
            limit,
        )

    def _resolve(self, tokens: list[int], params: GenerateParams) -> tuple[GenerateParams, tuple[str, ...], list[int]]:
        """Return `params` with `max_tokens` set, and the samples' ids and noise."""
        left = self._max_model_len - len(tokens)
        if left < 1:
            raise EngineError(
                f"a prompt of {len(tokens)} tokens leaves no room for a response within model.max_model_len "
                f"({self._max_model_len}); shorten it or raise model.max_model_len; model.enable_prompt_truncation: "
                "true cuts prompts of model.chat and model.generate",
                code="E5608",
            )
        seed = self.settings.seed if params.seed is None else params.seed
        ids = params.sample_ids
        if ids is None:
            # With the caller's own seed, the same call gives the same samples; without it, every call differs.
            call = "" if params.seed is not None else f"~{next(self._numbers):012d}/"
            ids = tuple(f"{call}{index:06d}" for index in range(params.n))
        allowed = GenerateParams(**{**params.__dict__, "max_tokens": min(params.max_tokens or left, left)})
        return allowed, ids, [noise_key(seed, sample_id) for sample_id in ids]

    def _experience(self, prompt: SeenPrompt, sample: Sample, *, prompt_text: str) -> Experience:
        text = decode_tokens(self.tokenizer, sample.tokens, skip_special=True)
        if sample.stop_text is not None:
            stop = stop_at_end(self.tokenizer, sample.tokens, [sample.stop_text])
            assert stop is not None, "the last token completed the stop string"
            text = text[: stop.start]
        info: dict[str, Any] = {"model_version": sample.model_version, "finish_reason": sample.finish_reason}
        if sample.stop_text is not None:
            info["stop_text"] = sample.stop_text
        if sample.top:
            info["top_logprobs"] = [[list(each) for each in top] for top in sample.top]
        if sample.model_versions is not None:
            info["model_versions"] = list(sample.model_versions)
        return Experience(
            tokens=torch.tensor(prompt.tokens + sample.tokens),
            prompt_length=len(prompt.tokens),
            multi_modal_inputs=as_inputs(prompt.keys, prompt.pictures) if prompt.pictures else None,
            logprobs=sample.logprobs,
            truncate_status="response_truncated" if sample.finish_reason == "length" else None,
            info=info,
            prompt_text=prompt_text,
            response_text=text,
        )

    def _truncated(self, tokens: list[int]) -> Experience:
        """Return a cut prompt's experience; its last token is a masked response."""
        return unanswered(tokens, decode_tokens(self.tokenizer, tokens[:-1]), model_version=self.model_version)
