"""Lengths in tokens, and sampling settings that are handed down from section `model`."""

from __future__ import annotations

from trinity.common.config.draft import Draft
from trinity.common.config.following import fill_defaults
from trinity.common.config.rules.tasksets import tasksets


def resolve_lengths(draft: Draft) -> None:
    """Fill max_model_len, max_prompt_tokens, max_response_tokens and min_response_tokens."""
    total = draft.get("model.max_model_len")
    prompt = draft.get("model.max_prompt_tokens")
    response = draft.get("model.max_response_tokens")
    if total is None:
        if prompt is None or response is None:
            draft.problem(
                "E1820",
                "model.max_model_len",
                "`model.max_model_len` is missing",
                rule="given, or max_prompt_tokens and max_response_tokens are",
                involves=("model.max_prompt_tokens", "model.max_response_tokens"),
                suggestion="write `max_model_len: 2048` under `model`",
            )
            return
        total = prompt + response
        draft.derive("model.max_model_len", total, "max_prompt_tokens + max_response_tokens")
    if not _fits(draft, total, prompt=prompt, response=response):
        return
    if prompt is None and response is None:
        prompt = max(1, total // 2)
        draft.derive("model.max_prompt_tokens", prompt, "half of max_model_len")
    if prompt is None:
        prompt = total - response
        draft.derive("model.max_prompt_tokens", prompt, "max_model_len - max_response_tokens")
    if response is None:
        response = total - prompt
        draft.derive("model.max_response_tokens", response, "max_model_len - max_prompt_tokens")
    _resolve_minimum(draft, response)


def _fits(draft: Draft, total: int, *, prompt: int | None, response: int | None) -> bool:
    """Note a problem and return false if the parts are longer than the whole."""
    asked = (prompt or 1) + (response or 1)
    if asked <= total:
        return True
    key = (
        "model.max_response_tokens"
        if response is not None and (response >= total or prompt is None)
        else ("model.max_prompt_tokens")
    )
    parts = " + ".join(
        f"{name} ({value})"
        for name, value in (("max_prompt_tokens", prompt), ("max_response_tokens", response))
        if value is not None
    )
    left = "" if prompt is not None and response is not None else ", which leaves no token for the rest"
    draft.problem(
        "E1802",
        key,
        f"`{key}`: {parts} does not fit into max_model_len ({total}){left}",
        rule="max_prompt_tokens + max_response_tokens <= max_model_len",
        involves=("model.max_model_len",),
        suggestion=f"write `max_model_len: {asked}` or less tokens",
    )
    return False


def _resolve_minimum(draft: Draft, response: int) -> None:
    minimum = draft.get("model.min_response_tokens")
    if minimum < response:
        return
    if draft.is_given("model.min_response_tokens"):
        draft.problem(
            "W1823",
            "model.min_response_tokens",
            f"`model.min_response_tokens` ({minimum}) is lowered to "
            f"{response - 1}: it must be below max_response_tokens ({response})",
        )
    draft.derive("model.min_response_tokens", response - 1, "below max_response_tokens")


def hand_down(draft: Draft) -> None:
    """Fill what engines and tasksets inherit from section `model`."""
    if not draft.explores:
        return
    engines = ["explorer.rollout_model"]
    engines += [f"explorer.auxiliary_models[{i}]" for i in range(len(draft.get("explorer.auxiliary_models")))]
    for engine in engines:
        fill_defaults(draft, engine)
    for taskset in tasksets(draft):
        _hand_to_taskset(draft, f"{taskset}.rollout_args")


def _hand_to_taskset(draft: Draft, key: str) -> None:
    fill_defaults(draft, key)
    longest = draft.get("model.max_response_tokens")
    asked = draft.get(f"{key}.max_tokens")
    if asked is None:
        draft.derive(f"{key}.max_tokens", longest, "model.max_response_tokens")
    elif longest is not None and asked > longest:
        draft.problem(
            "E1802",
            f"{key}.max_tokens",
            f"`{key}.max_tokens` ({asked}) is more than model.max_response_tokens ({longest})",
            rule="<= model.max_response_tokens",
            involves=("model.max_response_tokens",),
            suggestion=f"write {longest} or less",
        )
