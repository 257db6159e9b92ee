"""The model wrapper of workflows.

Dimension key: N = tokens of a sequence but the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from jaxtyping import Float
from torch import Tensor

from trinity.common.config import Config
from trinity.common.config.model import InferenceModelConfig
from trinity.common.errors import DeadlineError, EngineError
from trinity.common.experience import Experience
from trinity.common.models.call_timeout import call_timeout_s
from trinity.common.models.clients import ClientSource
from trinity.common.models.conversation import with_answer
from trinity.common.models.history import History
from trinity.common.models.inference_model import InferenceModel, Messages
from trinity.common.models.names import served_names
from trinity.common.models.run_ids import RunIds
from trinity.common.models.sync_loop import running_loop, sync_loop
from trinity.common.models.trajectories import trajectories
from trinity.common.models.turns import Turns
from trinity.common.models.watching import accept, of_prompt
from trinity.common.models.whole import converted

R = TypeVar("R")
_DEFAULT_TIMEOUT_S = 1800.0


class ModelWrapper:
    """The engine as workflows see it, in `self.model`.

    It holds the engine, the sampling defaults and the identity of the rollout. Every asynchronous method has a
    synchronous form for workflows that run in a thread.

    Args:
        model: the engine.
        config: the run's configuration; None in scripts that have none.
        rollout_config: section of the engine; None: the rollout model's.
        generate_kwargs: arguments of every generation; those of a call have priority.
        enable_history: record the experiences of every call; None: as the configuration says.
        timeout_s: longest wait of a synchronous call in seconds; None: `call_timeout_s`.
        clients: where OpenAI clients come from; None: there is no endpoint.
    """

    def __init__(
        self,
        model: InferenceModel,
        *,
        config: Config | None = None,
        rollout_config: InferenceModelConfig | None = None,
        generate_kwargs: Mapping[str, Any] | None = None,
        enable_history: bool | None = None,
        timeout_s: float | None = None,
        clients: ClientSource | None = None,
    ) -> None:
        self.model = model
        self._clients = clients
        self.config = config
        self.model_config = rollout_config or (config.explorer.rollout_model if config else InferenceModelConfig())
        self.generate_kwargs: dict[str, Any] = dict(generate_kwargs or {})
        self.enable_history = self.model_config.enable_history if enable_history is None else enable_history
        self.timeout_s = timeout_s or (call_timeout_s(config) if config else _DEFAULT_TIMEOUT_S)
        self.history = History(self.model_config.history_limit)
        self.turns = Turns()
        self.workflow_state: dict[str, Any] = {}
        self._identity: RunIds | None = None
        self._participant: str | None = None
        self._turn, self._is_greedy = 0, False
        self._template_args: dict[str, Any] | None = None
        self._loop = running_loop()

    def for_run(
        self,
        batch: int | str,
        task: int | str,
        run_id_base: int = 0,
        participant: str | None = None,
        generate_kwargs: Mapping[str, Any] | None = None,
        *,
        is_greedy: bool = False,
        template_args: Mapping[str, Any] | None = None,
        num_runs: int = 1,
    ) -> ModelWrapper:
        """Return a clone for one rollout of a task, or for several in one call.

        The noise of a sample depends only on its identity, see `RunIds`, not on the order in which rollouts run.

        Args:
            batch: explore step, or `<step>/<taskset>`.
            task: index of the task in the batch.
            run_id_base: number of the first rollout.
            participant: name for deterministic rounds; two rollouts that wait independently need two names.
            generate_kwargs: added to the defaults.
            is_greedy: sample with temperature 0, whatever a call asks for.
            template_args: `chat_template` and `enable_thinking` of every conversation, if not those of the model.
            num_runs: rollouts that a call makes.
        """
        clone = self.clone_with_isolated_history()
        clone.generate_kwargs |= generate_kwargs or {}
        clone._identity = RunIds(batch, task, range(run_id_base, run_id_base + num_runs))
        clone._participant = participant
        clone._turn = 0
        clone._is_greedy = is_greedy
        clone._template_args = {name: value for name, value in (template_args or {}).items() if value is not None}
        return clone

    def clone_with_isolated_history(self) -> ModelWrapper:
        """Return a copy with its own history and workflow state."""
        clone = ModelWrapper(
            self.model,
            config=self.config,
            rollout_config=self.model_config,
            generate_kwargs=self.generate_kwargs,
            enable_history=self.enable_history,
            timeout_s=self.timeout_s,
            clients=self._clients,
        )
        clone._identity, clone._participant, clone._turn = self._identity, self._participant, self._turn
        clone._is_greedy, clone._template_args = self._is_greedy, self._template_args
        clone._loop = clone._loop or self._loop
        return clone

    async def prepare(self) -> None:
        """Load the engine's model and tokenizer."""
        await self.model.prepare()

    @property
    def model_path(self) -> str:
        """Folder or hub id of the model."""
        return self.model_config.model_path or (self.config.model.model_path if self.config else "")

    @property
    def model_name(self) -> str:
        """Name of the model: the configured one, else its path."""
        return self.model_config.name or self.model_path

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names by which clients may ask for it."""
        adapters = self.config.model.lora_configs if self.config else None
        return served_names(self.model_path, self.model_name, *(each.name for each in adapters or ()))

    @property
    def model_version(self) -> int:
        """Version of the weights that the next response will use."""
        return self.model.model_version

    @property
    async def model_version_async(self) -> int:
        """Version of the weights that the next response will use; awaitable."""
        return self.model.model_version

    @property
    def temperature(self) -> float:
        """Temperature of a call that sets none."""
        own = self.generate_kwargs.get("temperature", self.model_config.temperature)
        shared = self.config.model.temperature if self.config else 1.0
        return float(shared if own is None else own)

    @property
    def api_key(self) -> str:
        """Key of this model at the endpoint; without one, the configured key."""
        return self.model_config.api_key if self._clients is None else self._clients.token(self)

    @property
    def api_address(self) -> str:
        """`http://host:port` of the endpoint; its routes begin with `/v1`."""
        return self._endpoint.address

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and response."""
        own = self.model_config.max_model_len
        shared = self.config.model.max_model_len if self.config else None
        return int(own or shared or 2**31 - 1)

    def words(self) -> dict[int, str]:
        """Return the text of each token id, as the tokenizer holds it."""
        return {number: text for text, number in self.model.vocabulary().items()}

    async def generate_async(self, prompts: str | Sequence[str], **kwargs: Any) -> list[Experience]:
        """Return `n` responses to each prompt, in the order of the prompts."""
        record = self.history.recorder(self.enable_history)
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        asked = [self.model.generate(text, **self._arguments(kwargs)) for text in texts]
        calls = [of_prompt(number, call) for number, call in enumerate(asked)]
        found = [exp for experiences in await asyncio.gather(*calls) for exp in experiences]
        accept(found)
        return record(found)

    def generate(self, prompts: str | Sequence[str], **kwargs: Any) -> list[Experience]:
        """Return `n` responses to each prompt, in their order; blocks."""
        return self._wait(self.generate_async(prompts, **kwargs))

    async def chat_async(self, messages: Messages, **kwargs: Any) -> list[Experience]:
        """Return `n` responses to a conversation.

        Where it continues from an earlier response, its prompt begins with the tokens of that call, as far as the chat
        template allows. With a reward model, each experience also holds the conversation.
        """
        arguments, record = self._arguments(kwargs), self.history.recorder(self.enable_history)
        conversation = self.turns.conversation(messages, arguments.get("tools"))
        if conversation.said is not None:
            arguments["said"] = conversation.said
        experiences = await self.model.chat(messages, **self._rendering(), **arguments)
        accept(experiences)
        for experience in experiences:
            conversation.add(experience)
        if self.config is not None and self.config.trainer.trainer_config.reward_model.enable:
            for experience in experiences:
                experience.messages = with_answer(messages, experience.response_text or "")
                experience.tools = kwargs.get("tools")
        return record(experiences)

    def chat(self, messages: Messages, **kwargs: Any) -> list[Experience]:
        """Return `n` responses to a conversation; blocks."""
        return self._wait(self.chat_async(messages, **kwargs))

    async def logprobs_async(self, tokens: Sequence[int], temperature: float | None = None) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first."""
        return await self.model.logprobs(tokens, temperature=self._temperature(temperature) or 1.0)

    def logprobs(self, tokens: Sequence[int], temperature: float | None = None) -> Float[Tensor, "N"]:
        """Return the logprob of each token but the first; blocks."""
        return self._wait(self.logprobs_async(tokens, temperature))

    async def convert_messages_to_experience_async(
        self, messages: Messages, tools: list[dict[str, Any]] | None = None, temperature: float | None = None
    ) -> Experience:
        """Return a conversation as an experience whose actions are its responses.

        Responses of this rollout have the tokens that were sampled, and, at no other `temperature`, their
        log-probabilities. If they are not one sequence, this is the last of several; the others are trained with it.
        Other responses are tokenised from their text and scored; `info["retokenised_turns"]` is their number.
        """
        convert = partial(
            self.model.convert_messages_to_experience,
            tools=tools,
            temperature=self._temperature(temperature),
            **self._rendering(),
        )
        score = None if temperature is None else partial(self.logprobs_async, temperature=temperature)
        made = await converted(messages, self.turns.sampled(messages, tools), convert, score)
        made.tools = tools
        return made

    def convert_messages_to_experience(
        self, messages: Messages, tools: list[dict[str, Any]] | None = None, temperature: float | None = None
    ) -> Experience:
        """Return what `convert_messages_to_experience_async` returns; blocks."""
        return self._wait(self.convert_messages_to_experience_async(messages, tools, temperature))

    async def get_message_token_len_async(self, messages: Messages) -> int:
        """Return the number of tokens of a conversation as a prompt."""
        return await self.model.get_message_token_len(messages, **self._rendering())

    def get_message_token_len(self, messages: Messages) -> int:
        """Return the number of tokens of a conversation as a prompt; blocks."""
        return self._wait(self.get_message_token_len_async(messages))

    def extract_experience_from_history(self, clear_history: bool = True) -> list[Experience]:
        """Return the experiences of all calls so far.

        Raises:
            EngineError: the history is not recorded (E5609).
        """
        if not self.enable_history:
            raise EngineError(
                "the history of calls is not recorded; set explorer.rollout_model.enable_history: true", code="E5609"
            )
        experiences = list(self.history)
        if clear_history:
            self.history.clear()
        return experiences

    def extract_trajectories_from_history(self, clear_history: bool = True) -> list[Experience]:
        """Return the experiences of all conversations so far.

        Calls that continue from each other are one experience, in which every response is trained once.

        Raises:
            EngineError: the history is not recorded (E5609).
        """
        return trajectories(self.extract_experience_from_history(clear_history))

    def get_lora_request(self) -> None:
        """Return None: no call has to name an adapter, which engines merge."""

    async def set_workflow_state(self, state: Mapping[str, Any]) -> None:
        """Update the workflow state with the entries of `state`."""
        self.workflow_state |= state

    async def get_workflow_state(self) -> dict[str, Any]:
        """Return a copy of the workflow state."""
        return dict(self.workflow_state)

    async def clean_workflow_state(self) -> None:
        """Clear the workflow state."""
        self.workflow_state = {}

    def get_openai_client(self) -> Any:
        """Return an `openai.OpenAI` whose calls are this model's.

        They have its samples and are in its history.

        Raises:
            EngineError: there is no endpoint (E5612).
        """
        return self._endpoint.client(self)

    def get_openai_async_client(self) -> Any:
        """Return an `openai.AsyncOpenAI`; see `get_openai_client`."""
        return self._endpoint.async_client(self)

    @property
    def _endpoint(self) -> ClientSource:
        if self._clients is None:
            raise EngineError(
                "there is no OpenAI-compatible endpoint; set explorer.rollout_model.enable_openai_api: true, or use "
                "model.chat or model.chat_async",
                code="E5612",
            )
        return self._clients

    def close(self) -> None:
        """Stop the endpoint that clients of this model and its clones use."""
        if self._clients is not None:
            self._clients.close()

    def take_over(self, other: ModelWrapper) -> ModelWrapper:
        """Become `other`, with its rollout and its history.

        Clients of this model continue as clients of it.
        """
        self.__dict__.update(other.__dict__)
        return self

    def submit(self, call: Coroutine[Any, Any, R]) -> Future[R]:
        """Start a call on the engine's event loop."""
        loop = self._loop if self._loop is not None and self._loop.is_running() else sync_loop.get()
        return asyncio.run_coroutine_threadsafe(call, loop)

    def _rendering(self) -> dict[str, Any]:
        """Return `template_args` for the engine, if the task sets any."""
        return {"template_args": self._template_args} if self._template_args else {}

    def _temperature(self, temperature: float | None) -> float | None:
        return self.generate_kwargs.get("temperature") if temperature is None else temperature

    def _arguments(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the next engine call, sample ids included."""
        arguments = self.generate_kwargs | {name: value for name, value in kwargs.items() if value is not None}
        if self._is_greedy:
            arguments["temperature"] = 0.0
        arguments.setdefault("participant", self._participant)
        if self._identity is not None and "sample_ids" not in arguments:
            # With the call's own seed, the same call gives the same samples; without it, every call differs.
            turn = self._turn if kwargs.get("seed") is None else "seeded"
            arguments["sample_ids"] = self._identity.of_call(turn, int(arguments.get("n") or 1))
        self._turn += 1
        return arguments

    def _wait(self, call: Coroutine[Any, Any, R]) -> R:
        """Run `call` on the engine's event loop and wait for it in this thread."""
        if running_loop() is not None:
            call.close()
            raise EngineError(
                "a synchronous model call would block the event loop that it runs on; await the form with _async",
                code="E5610",
            )
        future = self.submit(call)
        try:
            return future.result(self.timeout_s)
        except TimeoutError as error:
            future.cancel()
            raise DeadlineError(
                f"timed out after {self.timeout_s:g} s waiting for the model; raise explorer.max_timeout if this wait "
                "may be longer",
                code="E5301",
            ) from error
