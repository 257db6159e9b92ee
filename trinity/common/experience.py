"""One experience (what a policy saw and wrote, its reward), and batches.

Dimension key: T = tokens of prompt and response, P = prompt_length, R = T - P response tokens, B = rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from trinity.common.errors import DataError
from trinity.common.experience_id import DTYPES, EID, CustomField, tensor_of
from trinity.common.payload import MAX_EXPERIENCE_BYTES, decode, encode, parts
from trinity.utils.nested import without_null

if TYPE_CHECKING:
    from datasets import Dataset

TruncateStatus = Literal["prompt_truncated", "response_truncated"]

_RESPONSE_TENSORS = ("logprobs", "token_level_reward", "advantages", "returns", "teacher_logprobs")
_LOGPROBS = ("logprobs", "teacher_logprobs")
_TENSORS = ("tokens", *_RESPONSE_TENSORS, "action_mask", "chosen", "rejected", "routed_experts")
_PLAIN = (
    "prompt_length",
    "reward",
    "truncate_status",
    "info",
    "metrics",
    "prompt_text",
    "response_text",
    "messages",
    "tools",
    "chosen_messages",
    "rejected_messages",
)
_MULTI_MODAL = "multi_modal_inputs."


@dataclass(eq=False)
class Experience:
    """Tokens of a prompt and a response with what is known about them.

    Attributes:
        eid: identity; a mapping of its parts is converted.
        tokens: token ids [T], int64; a list is converted.
        prompt_length: P, the number of prompt tokens, 1 <= P <= T; all T of a pair (DPO).
        logprobs: log-probabilities [R] (nats) of the response tokens under the policy that sampled them; of T values
            the last R are taken, here and for `teacher_logprobs` and `action_mask`.
        reward: scalar reward of the response.
        token_level_reward: reward per response token [R]. All of them count: their sum is the reward of the response,
            and one on a token that the policy did not produce (what a tool said) is credited to the policy's token
            before it, or else to its first.
        advantages: [R]; a number is spread over the response.
        returns: [R]; a number is spread over the response.
        action_mask: [R], true where the policy produced the token; all true if not given, all false of a prompt that
            was truncated.
        truncate_status: `prompt_truncated`, `response_truncated` or None.
        info: JSON-able facts; `model_version` is the version of the weights that sampled; experiences of a task with
            another `advantage_group` are compared apart; `trajectory` is its number of several in a rollout.
        metrics: name -> number, aggregated into `rollout/...`.
        prompt_text: the prompt as text.
        response_text: the response as text.
        messages: the conversation, for SFT and viewers.
        tools: tool descriptions given to the chat template.
        chosen: token ids of the preferred response (DPO).
        rejected: token ids of the rejected response (DPO).
        chosen_messages: the preferred conversation (DPO).
        rejected_messages: the rejected conversation (DPO).
        teacher_logprobs: log-probabilities [R] of a teacher (distillation).
        routed_experts: chosen experts [T-1, layers, k] of a mixture of experts.
        multi_modal_inputs: name -> tensor for vision-language models.
        custom_fields: entries of `info` that the batch carries as tensors.

    Raises:
        DataError: a length does not fit (E5102).
    """

    eid: EID = field(default_factory=EID)
    tokens: Tensor = None  # type: ignore[assignment]
    prompt_length: int = 1
    logprobs: Tensor | None = None
    reward: float | None = None
    token_level_reward: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None
    action_mask: Tensor | None = None
    truncate_status: TruncateStatus | None = None
    info: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    prompt_text: str | None = None
    response_text: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chosen: Tensor | None = None
    rejected: Tensor | None = None
    chosen_messages: list[dict[str, Any]] | None = None
    rejected_messages: list[dict[str, Any]] | None = None
    teacher_logprobs: Tensor | None = None
    routed_experts: Tensor | None = None
    multi_modal_inputs: dict[str, Tensor] | None = None
    custom_fields: list[CustomField] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.tokens is None:
            raise DataError("an experience needs tokens, got None", code="E5102")
        self.tokens = tensor_of(self.tokens, torch.long)
        self._convert()
        if self.chosen is not None and self.rejected is not None and self.action_mask is None:
            self.prompt_length = self.tokens.numel()  # the responses are apart
        for name in ("chosen", "rejected"):
            if (value := getattr(self, name)) is not None:
                setattr(self, name, torch.as_tensor(value, dtype=torch.long))
        for name in _RESPONSE_TENSORS:
            if (value := getattr(self, name)) is not None:
                spread = self._spread(value)
                setattr(self, name, self._of_response(spread) if name in _LOGPROBS else spread)
        if self.action_mask is None:
            is_masked = self.truncate_status == "prompt_truncated"  # the response answers a cut prompt
            self.action_mask = torch.full((max(self.response_length, 0),), not is_masked)
        self.action_mask = self._of_response(tensor_of(self.action_mask, torch.bool))
        self.check()

    def _convert(self) -> None:
        """Accept None for what may be empty, and what `to_dict` returns."""
        self.eid = EID(**self.eid) if isinstance(self.eid, Mapping) else self.eid or EID()
        self.info, self.metrics = self.info or {}, self.metrics or {}
        self.custom_fields = [CustomField.of(each) for each in self.custom_fields or ()]
        if self.routed_experts is not None:
            self.routed_experts = torch.as_tensor(self.routed_experts)
        if self.multi_modal_inputs is not None:
            self.multi_modal_inputs = {name: torch.as_tensor(each) for name, each in self.multi_modal_inputs.items()}

    def _spread(self, value: Any) -> Tensor:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float32)
        return tensor.expand(self.response_length).clone() if tensor.ndim == 0 else tensor

    def _of_response(self, value: Tensor) -> Tensor:
        """Return the response's part [R] of values for all T tokens."""
        return value[self.prompt_length :] if value.shape == self.tokens.shape else value

    @property
    def response_length(self) -> int:
        """R, the number of response tokens."""
        return self.tokens.numel() - self.prompt_length

    @property
    def group(self) -> str:
        """`eid.tid`; of experiences with an `info["advantage_group"]` that, too."""
        own = self.info.get("advantage_group")
        return self.eid.tid if own is None else f"{self.eid.tid}#{own}"

    @property
    def experience_type(self) -> Literal["single_turn", "multi_turn", "dpo"]:
        """`dpo` for a pair, `multi_turn` if not all tokens are the policy's."""
        if self.chosen is not None or self.rejected is not None:
            return "dpo"
        return "single_turn" if self.action_mask is None or bool(self.action_mask.all()) else "multi_turn"

    def check(self) -> None:
        """Verify the lengths of all tensors.

        Raises:
            DataError: the message names the field, its length and the length it must have (E5102).
        """
        if self.tokens.ndim != 1 or not 1 <= self.prompt_length <= self.tokens.numel():
            raise DataError(
                f"experience {self.eid.uid}: tokens must be one list and prompt_length between 1 and its length, "
                f"got tokens of shape {list(self.tokens.shape)} and prompt_length {self.prompt_length}",
                code="E5102",
            )
        length, values = self.response_length, vars(self)  # by `getattr` it takes twice as long
        for name in (*_RESPONSE_TENSORS, "action_mask"):
            value = values[name]
            if value is not None and value.shape != (length,):
                raise DataError(
                    f"experience {self.eid.uid}: {name} must have {length} entries, one a response token, got shape "
                    f"{list(value.shape)}",
                    code="E5102",
                )
        if (self.chosen is None) != (self.rejected is None):
            raise DataError(
                f"experience {self.eid.uid}: chosen and rejected must both be given or neither", code="E5102"
            )

    def serialize(self) -> bytes:
        """Return the experience as bytes with a checksum; see `payload`.

        Raises:
            DataError: `info` or `metrics` is not JSON-able, or a length does not fit (E5102).
        """
        self.check()
        values = vars(self)
        header: dict[str, Any] = {name: values[name] for name in _PLAIN}
        header["eid"] = [self.eid.batch, self.eid.task, self.eid.run, self.eid.step, self.eid.suffix]
        header["custom_fields"] = [list(each.to_dict().values()) for each in self.custom_fields]
        header["has_multi_modal"] = self.multi_modal_inputs is not None
        tensors = {name: value for name in _TENSORS if (value := values[name]) is not None}
        tensors.update({_MULTI_MODAL + name: value for name, value in (self.multi_modal_inputs or {}).items()})
        return encode(header, tensors)

    @classmethod
    def deserialize(cls, data: bytes, *, max_bytes: int = MAX_EXPERIENCE_BYTES) -> Experience:
        """Return the experience of `data`, after verifying all of it.

        Raises:
            DataError: wrong magic, other version, torn, oversize or damaged (E5101).
        """
        header, tensors = decode(data, max_bytes=max_bytes)
        extra = {k.removeprefix(_MULTI_MODAL): v for k, v in tensors.items() if k.startswith(_MULTI_MODAL)}
        try:
            values: dict[str, Any] = {name: header[name] for name in _PLAIN}
            values |= {name: tensors[name] for name in _TENSORS if name in tensors}
            return cls(
                eid=EID(*header["eid"]),
                custom_fields=[CustomField(a, b, DTYPES[dtype]) for a, b, dtype in header["custom_fields"]],
                multi_modal_inputs=extra if header["has_multi_modal"] else None,
                **values,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"cannot read the experience payload: field {error}", code="E5101") from error

    @classmethod
    def serialize_many(cls, experiences: Sequence[Experience]) -> bytes:
        """Return experiences as bytes: what `serialize` returns, in order."""
        return b"".join(experience.serialize() for experience in experiences)

    @classmethod
    def deserialize_many(cls, data: bytes) -> list[Experience]:
        """Return the experiences of `serialize_many`.

        Raises:
            DataError: one is damaged, or the last is torn (E5101).
        """
        return [cls.deserialize(part) for part in parts(data)]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, tensors as lists; `Experience(**...)` reads it."""
        named: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(Experience)}
        named |= {name: value.tolist() for name, value in named.items() if isinstance(value, Tensor)}
        named["custom_fields"] = [each.to_dict() for each in self.custom_fields]
        inputs = self.multi_modal_inputs
        named["multi_modal_inputs"] = None if inputs is None else {name: inputs[name].tolist() for name in inputs}
        return named | {"eid": self.eid.to_dict()}


def to_hf_datasets(experiences: Sequence[Experience]) -> Dataset:
    """Return a Hugging Face dataset, an experience a row."""
    from datasets import Dataset

    return Dataset.from_list([experience.to_dict() for experience in experiences])


def from_hf_datasets(dataset: Dataset) -> list[Experience]:
    """Return the experiences of `to_hf_datasets`.

    Entries of `info` and the like that are null are left out: Arrow fills them in.
    """
    return [Experience(**without_null(row)) for row in dataset]


def group_by(
    experiences: Sequence[Experience], id_type: Literal["task", "run", "step"] = "task"
) -> dict[str, list[Experience]]:
    """Group experiences by `group`, `rid` or `sid`, in order of appearance.

    Raises:
        ValueError: another `id_type`.
    """
    keys: dict[str, Callable[[Experience], str]] = {
        "task": lambda e: e.group,
        "run": lambda e: e.eid.rid,
        "step": lambda e: e.eid.sid,
    }
    if id_type not in keys:
        raise ValueError(f"id_type must be task, run or step, got {id_type!r}")
    groups: dict[str, list[Experience]] = {}
    for experience in experiences:
        groups.setdefault(keys[id_type](experience), []).append(experience)
    return groups


@dataclass(frozen=True)
class Experiences:
    """Experiences as tensors: prompts padded left, responses right.

    Attributes:
        eids: identities of the rows; a DPO pair is two rows, chosen then rejected.
        tokens: [B, P + R], int64.
        attention_masks: [B, P + R], true on real tokens.
        action_masks: [B, R], true where the policy produced the token.
        prompt_length: P, the longest prompt; column P is the first of the responses.
        rewards: [B], float32, NaN where there is none.
        token_level_rewards: [B, R]; without any, the scalar reward on the last response token.
        logprobs: [B, R] or None if an experience has none; likewise the next three.
        advantages: [B, R] or None.
        returns: [B, R] or None.
        teacher_logprobs: [B, R] or None.
        custom_tensors: name -> [B] (or [B, ...]) of the custom fields.
    """

    eids: list[EID]
    tokens: Tensor
    attention_masks: Tensor
    action_masks: Tensor
    prompt_length: int
    rewards: Tensor
    token_level_rewards: Tensor
    logprobs: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None
    teacher_logprobs: Tensor | None = None
    custom_tensors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        """B, the number of rows."""
        return len(self.eids)

    @classmethod
    def gather(cls, experiences: Sequence[Experience], *, pad_token_id: int = 0) -> Experiences:
        """Return the padded batch of at least one experience.

        Raises:
            ValueError: no experience.
        """
        rows = [row for experience in experiences for row in rows_of(experience)]
        if not rows:
            raise ValueError("cannot gather an empty list of experiences")
        prompt = max(row.prompt_length for row in rows)
        response = max(row.response_length for row in rows)
        tokens = torch.full((len(rows), prompt + response), pad_token_id, dtype=torch.long)
        attention = torch.zeros_like(tokens, dtype=torch.bool)
        for i, row in enumerate(rows):
            begin = prompt - row.prompt_length
            tokens[i, begin : begin + len(row.tokens)] = row.tokens
            attention[i, begin : begin + len(row.tokens)] = True
        rewards = torch.tensor([float("nan") if row.reward is None else row.reward for row in rows])
        return cls(
            eids=[row.eid for row in rows],
            tokens=tokens,
            attention_masks=attention,
            action_masks=_pad([row.action_mask for row in rows], response),
            prompt_length=prompt,
            rewards=rewards,
            token_level_rewards=_pad([_token_rewards(row) for row in rows], response),
            logprobs=_pad_all([row.logprobs for row in rows], response),
            advantages=_pad_all([row.advantages for row in rows], response),
            returns=_pad_all([row.returns for row in rows], response),
            teacher_logprobs=_pad_all([row.teacher_logprobs for row in rows], response),
            custom_tensors={
                f.destination_field: torch.tensor([row.info[f.source_field] for row in rows], dtype=f.data_type)
                for f in rows[0].custom_fields
            },
        )


def rows_of(experience: Experience) -> list[Experience]:
    """Return the experience itself, or a pair's chosen and rejected rows."""
    if experience.chosen is None or experience.rejected is None:
        return [experience]
    prompt = experience.tokens[: experience.prompt_length]
    return [
        Experience(
            eid=experience.eid,
            tokens=torch.cat([prompt, side]),
            prompt_length=len(prompt),
            reward=experience.reward,
            truncate_status=experience.truncate_status,
            info=experience.info,
            custom_fields=experience.custom_fields,
        )
        for side in (experience.chosen, experience.rejected)
    ]


def _token_rewards(row: Experience) -> Tensor:
    if row.token_level_reward is not None:
        return row.token_level_reward.float()
    values = torch.zeros(row.response_length)
    if row.reward is not None and row.response_length:
        values[-1] = row.reward
    return values


def _pad(values: Sequence[Tensor | None], width: int) -> Tensor:
    present = [value for value in values if value is not None]
    out = torch.zeros((len(present), width), dtype=present[0].dtype)
    for i, value in enumerate(present):
        out[i, : len(value)] = value
    return out


def _pad_all(values: Sequence[Tensor | None], width: int) -> Tensor | None:
    return None if any(value is None for value in values) else _pad(values, width)
