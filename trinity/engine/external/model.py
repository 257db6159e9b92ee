"""An `InferenceModel` behind an OpenAI-compatible server.

The run never changes its weights.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from jaxtyping import Float
from torch import Tensor

from trinity.common.config import Config
from trinity.common.config.model import InferenceModelConfig, ModelConfig
from trinity.common.errors import EngineError, EnvironmentProblem, NotAvailableError
from trinity.common.experience import Experience
from trinity.common.models.call_timeout import call_timeout_s
from trinity.common.models.chat_template import encode_text, load_tokenizer, render_chat
from trinity.common.models.generate_params import GenerateParams
from trinity.common.models.said import Said
from trinity.common.weights import Ticket
from trinity.engine.external.answer import EndpointAnswer, read_answer
from trinity.engine.external.client import ExternalClient
from trinity.engine.settings import inherited
from trinity.utils.deadline import bounded
from trinity.utils.log import add_secret, get_logger

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = get_logger("explorer")


@dataclass(frozen=True)
class ExternalSettings:
    """Address, credentials and defaults of a server.

    Attributes:
        model: lengths, chat template and tokenizer (`model_path`) of the section.
        params: defaults of a call.
        name: name of the model at the server.
        base_url_env: environment variable of the address, up to and including `/v1`.
        api_key_env: environment variable of the key; if unset, no key is sent.
        timeout_s: longest wait of a call in seconds, retries included.
        key: the section in the configuration, for messages.
    """

    model: ModelConfig
    params: GenerateParams
    name: str
    base_url_env: str
    api_key_env: str
    timeout_s: float
    key: str


def external_settings(config: Config, section: InferenceModelConfig, *, key: str) -> ExternalSettings:
    """Return the engine settings of `section`, found at `key`."""
    model = inherited(config.model, section)
    server = section.external_model_config or config.model.external_model
    return ExternalSettings(
        model=model,
        params=GenerateParams.of(model, ignore_eos=section.ignore_eos),
        name=server.model_name or section.name or "",
        base_url_env=server.base_url_env,
        api_key_env=server.api_key_env,
        timeout_s=call_timeout_s(config),
        key=key,
    )


class ExternalModel:
    """Gets responses from a server; see `InferenceModel`.

    The token ids of a response are the server's if it returns them (vLLM's `return_token_ids`), else its text encoded
    by the tokenizer of `model_path`; `info["token_ids"]` says which: `server` or `tokenizer`. Log-probabilities are
    present if the section asks for them (`logprobs: 1`) and the server returns one for each token.

    Args:
        settings: address, credentials and defaults.
    """

    def __init__(self, settings: ExternalSettings) -> None:
        self.settings = settings
        self._client: ExternalClient | None = None
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._counts = {"samples": 0.0, "prompt_tokens": 0.0, "generated_tokens": 0.0}
        self._has_warned = False

    @property
    def model_version(self) -> int:
        """Always 0: the run does not change the server's weights."""
        return 0

    async def prepare(self) -> None:
        """Read address and key, and load the tokenizer; later calls do nothing.

        Raises:
            EnvironmentProblem: the address is missing or invalid (E5735), or no tokenizer can be loaded.
        """
        if self._client is not None:
            return
        self._tokenizer = await asyncio.to_thread(load_tokenizer, self.settings.model)
        own = self.settings
        url, api_key = os.environ.get(own.base_url_env, ""), os.environ.get(own.api_key_env, "")
        if not url.startswith(("http://", "https://")):
            raise EnvironmentProblem(
                f"{own.key}: the environment variable {own.base_url_env} must hold the address of an OpenAI-compatible "
                f"server, such as http://127.0.0.1:8000/v1, got {'nothing' if not url else 'no http address'}",
                code="E5735",
            )
        add_secret(api_key)
        self._client = ExternalClient(url, api_key=api_key, where=own.key, key_name=own.api_key_env)
        logger.info("external model %s at %s", own.name, url)

    async def generate(self, prompt: str | Sequence[int], **arguments: Any) -> list[Experience]:
        """Return `n` continuations of a text or of token ids.

        Raises:
            EngineError: bad argument, or the server refused, failed or answered in another form.
            DeadlineError: no answer within `explorer.max_timeout`.
        """
        params = self.settings.params.override(arguments)
        given = prompt if isinstance(prompt, str) else [int(token) for token in prompt]
        document = await self._ask("completions", {"prompt": given}, params)
        tokens = encode_text(self.tokenizer, prompt) if isinstance(prompt, str) else list(prompt)
        text = prompt if isinstance(prompt, str) else str(self.tokenizer.decode(tokens))
        return self._experiences(read_answer(document, where=self.settings.key), tokens, text, params=params)

    async def chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        said: Said | None = None,
        template_args: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> list[Experience]:
        """Return `n` responses to a conversation that the server renders.

        `template_args` are sent under vLLM's names; `said` is not sent, since the server takes messages.

        Raises:
            EngineError: bad argument, or the server refused, failed or answered in another form.
            DeadlineError: no answer within `explorer.max_timeout`.
        """
        params = self.settings.params.override(arguments)
        body: dict[str, Any] = {"messages": [dict(message) for message in messages]}
        if tools:
            body["tools"] = tools
        options = dict(template_args or {})
        if "chat_template" in options:
            body["chat_template"] = options.pop("chat_template")
        if options:
            body["chat_template_kwargs"] = options
        answer = read_answer(await self._ask("chat/completions", body, params), where=self.settings.key)
        text = "\n".join(str(message.get("content") or "") for message in messages)
        prompt = self._prompt_tokens(messages, text, tools, template_args)
        return self._experiences(answer, prompt, text, params=params)

    async def _ask(self, path: str, body: dict[str, Any], params: GenerateParams) -> Any:
        """Return the server's JSON answer; send only non-default parameters."""
        if params.top_logprobs:
            raise NotAvailableError("top_logprobs above 0 is served by the torch engine alone; leave it out")
        body |= {"model": self.settings.name, "n": params.n, "temperature": params.temperature, "top_p": params.top_p}
        longest, whole = params.max_tokens, self.settings.model.max_model_len
        optional: dict[str, tuple[bool, Any]] = {
            # A response that may fill the model has no limit of its own: servers refuse one that adds up to more.
            "max_tokens": (longest is not None and (whole is None or longest < whole), longest),
            "stop": (bool(params.stop), list(params.stop)),
            "seed": (params.seed is not None, params.seed),
            "top_k": (params.top_k > 0, params.top_k),
            "min_tokens": (params.min_tokens > 1, params.min_tokens),
            "ignore_eos": (params.ignore_eos, True),
            "logprobs": (bool(params.logprobs), True if path.startswith("chat") else 1),
            "return_token_ids": (bool(params.logprobs), True),
        }
        body |= {name: value for name, (is_sent, value) in optional.items() if is_sent}
        return await bounded(
            self._ready().post(path, body),
            self.settings.timeout_s,
            what=f"an answer of the external model {self.settings.name} ({self.settings.key})",
            setting="explorer.max_timeout",
        )

    def _prompt_tokens(
        self,
        messages: Sequence[dict[str, Any]],
        text: str,
        tools: list[dict[str, Any]] | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> list[int]:
        options = {"enable_thinking": self.settings.model.enable_thinking} | dict(template_args or {})
        if options.get("chat_template") or self.tokenizer.chat_template:
            return render_chat(self.tokenizer, messages, tools=tools, **options)[0]
        return encode_text(self.tokenizer, text)

    def _experiences(
        self, answer: EndpointAnswer, tokens: Sequence[int], text: str, *, params: GenerateParams
    ) -> list[Experience]:
        prompt = list(answer.prompt_ids or tokens)
        experiences = []
        for choice in answer.choices:
            ids = choice.token_ids
            if ids is None:
                ids = encode_text(self.tokenizer, choice.text, is_whole=False)
            logprobs = choice.logprobs if choice.logprobs is not None and len(choice.logprobs) == len(ids) else None
            if params.logprobs and logprobs is None and not self._has_warned:
                self._has_warned = True
                logger.warning("%s: the server gives no log-probability for each token", self.settings.key)
            info: dict[str, Any] = {
                "model_version": 0,
                "token_ids": "tokenizer" if choice.token_ids is None else "server",
            }
            if choice.tool_calls:
                info["tool_calls"] = choice.tool_calls
            experiences.append(
                Experience(
                    tokens=[*prompt, *ids],  # type: ignore[arg-type]
                    prompt_length=len(prompt),
                    logprobs=logprobs,  # type: ignore[arg-type]
                    truncate_status="response_truncated" if choice.is_cut else None,
                    info=info,
                    prompt_text=text,
                    response_text=choice.text,
                )
            )
        self._counts["samples"] += len(experiences)
        self._counts["prompt_tokens"] += len(prompt)
        self._counts["generated_tokens"] += sum(experience.response_length for experience in experiences)
        return experiences

    async def logprobs(self, tokens: Sequence[int], *, temperature: float = 1.0) -> Float[Tensor, "N"]:
        """Refuse: servers do not score given tokens.

        Raises:
            EngineError: always (E5731).
        """
        self._refuse("scores no given tokens; use engine_type torch or vllm for a teacher")

    async def convert_messages_to_experience(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        temperature: float | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> Experience:
        """Refuse: servers do not score given tokens.

        Raises:
            EngineError: always (E5731).
        """
        self._refuse("scores no given tokens; use engine_type torch or vllm")

    async def update_weights(self, weights: Mapping[str, Tensor], *, version: int) -> None:
        """Refuse: the run does not change the server's weights.

        Raises:
            EngineError: always (E5731).
        """
        self._refuse("takes no weights; use engine_type torch or vllm for the trained model")

    async def pull(self, ticket: Ticket) -> None:
        """Refuse: the run does not change the server's weights.

        Raises:
            EngineError: always (E5731).
        """
        self._refuse("takes no weights; use engine_type torch or vllm for the trained model")

    def _refuse(self, what: str) -> NoReturn:
        raise EngineError(f"{self.settings.key}: an external model {what}", code="E5731")

    async def get_message_token_len(
        self, messages: Sequence[dict[str, Any]], template_args: Mapping[str, Any] | None = None
    ) -> int:
        """Return a conversation's prompt tokens by the tokenizer of `model_path`."""
        text = "\n".join(str(one.get("content") or "") for one in messages)
        return len(self._prompt_tokens(messages, text, template_args=template_args))

    def vocabulary(self) -> Mapping[str, int]:
        """Return the ids of the tokenizer of `model_path` by token."""
        return self.tokenizer.get_vocab()

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of `model_path`; available after `prepare`."""
        self._ready()
        assert self._tokenizer is not None, "prepare() loads it before it makes the client"
        return self._tokenizer

    def _ready(self) -> ExternalClient:
        if self._client is None:
            raise EngineError("the external model is not prepared; await prepare() first", code="E5611")
        return self._client

    async def join_round(self, participant: str) -> None:
        """Do nothing: a server has no rounds."""

    async def leave_round(self, participant: str) -> None:
        """Do nothing: a server has no rounds."""

    async def waits_in_round(self, participant: str) -> bool:
        """Return false: a server has no rounds."""
        return False

    async def stats(self) -> dict[str, float]:
        """Return total samples, tokens, requests and retries since the start."""
        client = self._ready()
        return self._counts | {"requests": float(client.num_requests), "retries": float(client.num_retries)}

    async def shutdown(self) -> None:
        """Close the connections; calls in progress fail."""
        if self._client is not None:
            await self._client.close()
