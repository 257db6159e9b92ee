"""A policy that says what it is told to, with the tokens of a chat template: one character is one token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from trinity.common.experience import Experience
from trinity.common.workflows import WORKFLOWS, Task

END = 0  # the token that ends every answer
Policy = Callable[[list[dict[str, str]]], str]


def render(messages: Sequence[dict[str, str]]) -> list[int]:
    """Return the tokens of a conversation; an answer is followed by `END`."""
    tokens: list[int] = []
    for message in messages:
        tokens += [ord(character) for character in message["content"]]
        tokens += [END] * (message["role"] == "assistant")
    return tokens


class Script:
    """A model of a test's own.

    Args:
        answers: texts in order, or a function of the conversation.
        cut: numbers of the answers that are cut at their longest length.
        max_model_len: longest conversation in tokens.
        rewrites: the template leaves earlier answers out, so that no turn continues another.
    """

    def __init__(
        self, answers: Iterable[str] | Policy, *, cut: int = -1, max_model_len: int = 10**6, rewrites: bool = False
    ) -> None:
        script = iter(()) if callable(answers) else iter(answers)
        self.policy: Policy = answers if callable(answers) else (lambda _: next(script))
        self.cut, self.max_model_len, self.rewrites = cut, max_model_len, rewrites
        self.asked: list[list[dict[str, str]]] = []
        self.arguments: list[dict[str, Any]] = []
        self.answers: list[str] = []
        self.enable_history = False
        self.history: list[Experience] = []

    def chat(self, messages: list[dict[str, str]], **arguments: Any) -> list[Experience]:
        self.asked.append([dict(message) for message in messages])
        self.arguments.append(arguments)
        text, is_cut = self.policy(messages), len(self.answers) == self.cut
        self.answers.append(text)
        prompt = self._prompt(messages)
        response = [ord(character) for character in text] + [END] * (not is_cut)
        made = Experience(
            tokens=torch.tensor(prompt + response),
            prompt_length=len(prompt),
            logprobs=torch.full((len(response),), -0.25 * len(self.answers)),
            truncate_status="response_truncated" if is_cut else None,
            info={"model_version": len(self.answers)},
            response_text=text,
        )
        self.history.append(made)
        return [made]

    def get_message_token_len(self, messages: list[dict[str, str]]) -> int:
        return len(self._prompt(messages))

    def convert_messages_to_experience(self, messages: list[dict[str, str]]) -> Experience:
        tokens = render(messages)
        first = len(render(messages[: [m["role"] for m in messages].index("assistant")]))
        mask = [m["role"] == "assistant" for m in messages for _ in render([m])]
        return Experience(tokens=tokens, prompt_length=first, action_mask=mask[first:], logprobs=[-0.5] * len(mask))

    def extract_experience_from_history(self) -> list[Experience]:
        made, self.history = self.history, []
        return made

    def _prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return render([m for m in messages if not self.rewrites or m["role"] != "assistant"])


def attempt(
    name: str,
    model: Script,
    row: dict[str, Any] | None = None,
    *,
    auxiliary_models: Sequence[Any] = (),
    reward_fn_args: dict[str, Any] | None = None,
    **workflow_args: Any,
) -> list[Experience]:
    """Return the experiences of one attempt by a built-in workflow."""
    task = Task(
        workflow=WORKFLOWS.get(name),
        raw_task=row or {},
        workflow_args=workflow_args,
        reward_fn_args=reward_fn_args or {},
        rollout_args={"temperature": 0.7},
    )
    workflow = task.to_workflow(model, auxiliary_models=list(auxiliary_models))  # type: ignore[arg-type]
    return workflow.run()


def said(experience: Experience) -> str:
    """Return the characters that the action mask covers."""
    assert experience.action_mask is not None
    tokens = experience.tokens[experience.prompt_length :][experience.action_mask].tolist()
    return "".join("|" if token == END else chr(token) for token in tokens)
