"""The model as callers of outside see it; every answer is recorded."""

from __future__ import annotations

import re
import secrets
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from trinity.common.errors import TrinityError
from trinity.common.experience import EID, Experience
from trinity.common.models.model import ModelWrapper
from trinity.common.models.watching import call_id
from trinity.explorer.api.errors import BadRequestError
from trinity.explorer.proxy.record import Caller, CallRecord, RecordedChoice
from trinity.runtime.worker_thread import WorkerThread
from trinity.utils.failpoints import failpoint
from trinity.utils.log import get_logger
from trinity.utils.token import is_token

logger = get_logger("explorer")

TASK_HEADER = "x-trinity-task-id"
RUN_HEADER = "x-trinity-run-id"
MESSAGE_ID = "message_id"  # of `Experience.info`
MAX_RUN = 2**31 - 1
NO_CALLER = Caller()
TASK_PATTERN = "^[A-Za-z0-9._:@=+-]{1,64}$"
_TASK = re.compile(TASK_PATTERN)


def caller_of(task: object, run: object) -> Caller:
    """Return what a caller says that its calls belong to.

    Raises:
        BadRequestError: no name of a task, no number of a run, or a run without a task.
    """
    number = int(run) if isinstance(run, str) and run.isdecimal() and len(run) < 11 else run
    if number is None:
        number = 0
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_RUN:
        raise BadRequestError(f"run_id must be an integer from 0 to {MAX_RUN}, got {run!r}", param="run_id")
    if task is None:
        if run is not None:
            raise BadRequestError("run_id needs a task_id; give both", param="task_id")
        return NO_CALLER
    if not isinstance(task, str) or _TASK.fullmatch(task) is None:
        raise BadRequestError(
            f"task_id must have 1 to 64 letters, digits or characters of . _ : @ = + -, got {str(task)[:80]!r}",
            param="task_id",
        )
    return Caller(task, number)


@dataclass
class _Entry:
    choices: Sequence[RecordedChoice]
    error: TrinityError | None = None


class RecordWriter:
    """Writes answers to the record, as many as wait in one transaction.

    Args:
        record: where they are kept.
        io: the thread that writes.
    """

    def __init__(self, record: CallRecord, io: WorkerThread) -> None:
        self._record, self._io = record, io
        self._lock = threading.Lock()
        self._entries: list[_Entry] = []

    async def add(self, choices: Sequence[RecordedChoice]) -> None:
        """Return once the choices are recorded.

        Raises:
            StoreError: they are not.
        """
        entry = _Entry(choices)
        with self._lock:
            self._entries.append(entry)
        await self._io.call(self._write)
        if entry.error is not None:
            raise entry.error

    def _write(self) -> None:
        with self._lock:
            taken, self._entries = self._entries, []
        if not taken:  # they went with an earlier call
            return
        try:
            self._record.add([choice for entry in taken for choice in entry.choices])
        except TrinityError as error:
            for entry in taken:
                entry.error = error


class CallerModel:
    """The model of one caller; see `Served`.

    Args:
        model: with the conversations of the caller.
        caller: what its calls belong to.
        owner: records the answers.

    Attributes:
        answer_count: choices that it received, plus one for the caller itself.
    """

    def __init__(self, model: ModelWrapper, caller: Caller, owner: CallerModels) -> None:
        self.answer_count = 1  # a caller costs about as much as an answer
        self._model, self._caller, self._owner = model, caller, owner

    @property
    def model_name(self) -> str:
        """Name of the model."""
        return self._model.model_name

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names by which callers may ask for it."""
        return self._model.model_names

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and response."""
        return self._model.max_model_len

    @property
    def foreign_turns(self) -> int:
        """Conversations with a response that was not sampled in them."""
        return self._model.turns.foreign

    def submit(self, call: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start a call on the engine's event loop."""
        return self._model.submit(call)

    def words(self) -> dict[int, str]:
        """Return the text of each token id."""
        return self._model.words()

    async def chat_async(self, messages: list[dict[str, Any]], **kwargs: Any) -> list[Experience]:
        """Return `n` recorded responses to a conversation."""
        return await self._recorded(self._model.chat_async(messages, **self._owner.arguments(kwargs)))

    async def generate_async(self, prompts: Any, **kwargs: Any) -> list[Experience]:
        """Return `n` recorded samples of each prompt."""
        return await self._recorded(self._model.generate_async(prompts, **self._owner.arguments(kwargs)))

    async def _recorded(self, call: Coroutine[Any, Any, list[Experience]]) -> list[Experience]:
        experiences = await self._owner.recorded(await call, self._caller)
        self._owner.remember(self, self._caller, len(experiences))
        return experiences


class CallerModels:
    """Gives callers the model, each with its own conversations.

    A continued conversation begins with the tokens that were sampled, as far as it is one of the same caller. Callers
    that name no task share one memory of conversations.

    Args:
        model: the rollout model.
        writer: keeps the answers.
        token: what a caller has to send.
        refuse: raises why no call can be taken now.
        limit: answers whose tokens are remembered, by all callers; beyond it those that called longest ago are
            forgotten, and their conversations are tokenised again.

    Attributes:
        answer_count: answers so far, of which an answer with several choices is one.
        temperature_count: calls that asked for another temperature than the run's, and had that of the run.
        forgotten_count: callers whose conversations are remembered no longer.
    """

    def __init__(
        self,
        model: ModelWrapper,
        writer: RecordWriter,
        *,
        token: str,
        refuse: Callable[[], None],
        limit: int,
    ) -> None:
        self.answer_count = self.temperature_count = self.forgotten_count = 0
        self._forgotten_foreign = 0
        self._model, self._writer, self._token = model, writer, token
        self._refuse, self._limit = refuse, limit
        self._life = secrets.token_hex(4)  # samples of another process have other identities, so other noise
        self._lock = threading.Lock()
        self._callers: OrderedDict[Caller, CallerModel] = OrderedDict()
        self._remembered = 0

    def is_token(self, token: str) -> bool:
        """Return whether a caller has sent the token."""
        return is_token(token, self._token)

    def model_of(self, token: str, headers: Mapping[str, str]) -> CallerModel | None:
        """Return the model of who sent these headers; None: a wrong token.

        Raises:
            BadRequestError: the headers name no task.
        """
        if not self.is_token(token):
            return None
        caller = caller_of(headers.get(TASK_HEADER), headers.get(RUN_HEADER))
        with self._lock:
            found = self._callers.get(caller)
            if found is None:
                task = "calls" if caller.task is None else f"task_{caller.task}"
                own = self._model.for_run(f"serve_{self._life}", task, caller.run)
                found = self._callers[caller] = CallerModel(own, caller, self)
                self._remembered += found.answer_count
            self._callers.move_to_end(caller)
        return found

    def remember(self, model: CallerModel, caller: Caller, count: int) -> None:
        """Count answers of a caller; forget others above the limit."""
        with self._lock:
            if self._callers.get(caller) is not model:  # it was forgotten meanwhile
                return
            model.answer_count += count
            self._remembered += count
            while self._remembered > self._limit and len(self._callers) > 1:
                _, oldest = self._callers.popitem(last=False)
                self._remembered -= oldest.answer_count
                self._forgotten_foreign += oldest.foreign_turns
                self.forgotten_count += 1
                if self.forgotten_count == 1:
                    logger.warning(
                        "the conversations of a caller are remembered no longer, for those of newer ones: %d answers "
                        "are (explorer.rollout_model.history_limit); a conversation that continues is then tokenised "
                        "again, see forgotten_caller_count and foreign_turn_count of /status",
                        self._limit,
                    )

    @property
    def foreign_turns(self) -> int:
        """Conversations with a response that was not sampled in them."""
        with self._lock:
            return self._forgotten_foreign + sum(model.foreign_turns for model in self._callers.values())

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call, at the temperature of the run.

        Raises:
            EngineError: no call can be taken now.
        """
        self._refuse()
        temperature = self._model.temperature
        if given.get("temperature") not in (None, temperature):
            self.temperature_count += 1
            if self.temperature_count == 1:
                logger.warning(
                    "a call asks for temperature %g and gets %g (model.temperature), like every call: the "
                    "trainer computes "
                    "log-probabilities at that temperature",
                    given["temperature"],
                    temperature,
                )
        arguments = {**given, "temperature": temperature}
        if given.get("seed") is not None:
            # With the caller's own seed, the same call gives the same samples.
            arguments["sample_ids"] = [f"{number:06d}" for number in range(int(given.get("n") or 1))]
        return arguments

    async def recorded(self, experiences: list[Experience], caller: Caller) -> list[Experience]:
        """Return the experiences of one answer, which are recorded then.

        `eid.suffix` and `info["message_id"]` are the answer's id.

        Raises:
            StoreError: they cannot be recorded.
        """
        message_id = call_id() or uuid.uuid4().hex
        for experience in experiences:
            experience.eid = EID(suffix=message_id)
            experience.info[MESSAGE_ID] = message_id
        choices = [
            RecordedChoice(message_id, number, caller, experience.serialize())
            for number, experience in enumerate(experiences)
        ]
        await self._writer.add(choices)
        failpoint("serve.after_record")
        self.answer_count += 1
        return experiences
