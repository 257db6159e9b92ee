"""Rollouts as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trinity.utils.printable import printable

if TYPE_CHECKING:
    from trinity.common.experience import Experience
    from trinity.launch.trial.rollouts import Rollout

INDENT = "    "
TRUNCATED = {
    "prompt_truncated": "the prompt was cut, so that the rollout is not trained",
    "response_truncated": "the response was cut at its length limit",
}


def show(rollouts: Sequence[Rollout], *, words: Mapping[int, str] | None = None) -> None:
    """Print rollouts, and a line about all of them.

    Args:
        rollouts: in the order in which they are printed.
        words: text of each token id, to print the tokens; None: they are not printed.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for rollout in rollouts:
        console.rule(_title(rollout), style="bold green" if rollout.is_completed else "bold red")
        for line in _lines(rollout, words):
            console.print(line)
    console.rule()
    console.print(summary(rollouts))


def summary(rollouts: Sequence[Rollout]) -> str:
    """Return one line about all rollouts."""
    completed = [rollout for rollout in rollouts if rollout.is_completed]
    parts = [f"{len(rollouts)} rollouts of {len({rollout.task for rollout in rollouts})} tasks"]
    for outcome in dict.fromkeys(rollout.outcome for rollout in rollouts):
        parts.append(f"{sum(rollout.outcome == outcome for rollout in rollouts)} {outcome}")
    rewards = [rollout.reward for rollout in completed if rollout.reward is not None]
    if rewards:
        mean = sum(rewards) / len(rewards)
        parts.append(f"reward {mean:.4g} on average ({min(rewards):.4g} to {max(rewards):.4g})")
    cut = sum(any(exp.truncate_status for exp in rollout.experiences) for rollout in completed)
    return ", ".join([*parts, f"{cut} truncated"] if cut else parts)


def _title(rollout: Rollout) -> str:
    reward = "" if rollout.reward is None else f", reward {rollout.reward:.6g}"
    return f"task {rollout.task} (row {rollout.row}), rollout {rollout.run}: {rollout.outcome}{reward}"


def _lines(rollout: Rollout, words: Mapping[int, str] | None) -> Iterator[str]:
    if rollout.reason:
        yield f"{rollout.outcome}: {rollout.reason}"
        if rollout.experiences:
            yield "what the model said before that, which is not trained:"
    for number, experience in enumerate(rollout.experiences):
        if len(rollout.experiences) > 1:
            yield f"turn {number}"
        yield from _turn(experience, words, is_scored=rollout.is_completed)
    calls = f"{rollout.call_count} call{'' if rollout.call_count == 1 else 's'}"
    yield f"time {rollout.seconds:.3f} s, the models {rollout.model_seconds:.3f} s in {calls}"


def _turn(experience: Experience, words: Mapping[int, str] | None, *, is_scored: bool) -> Iterator[str]:
    yield f"prompt, {experience.prompt_length} tokens"
    yield indented(experience.prompt_text or "")
    mask = experience.action_mask
    trained = experience.response_length if mask is None else int(mask.sum())
    of_policy = "" if trained == experience.response_length else f", {trained} of them the model's"
    reason = experience.info.get("finish_reason")
    yield f"response, {experience.response_length} tokens{of_policy}" + (f", ended by {reason}" if reason else "")
    yield indented(experience.response_text or "")
    if experience.truncate_status:
        yield f"truncated: {TRUNCATED[experience.truncate_status]}"
    if is_scored and experience.reward is not None:
        parts = ", ".join(f"{name} {value:.6g}" for name, value in experience.metrics.items())
        yield f"reward {experience.reward:.6g}" + (f" ({parts})" if parts else "")
    if words is not None:
        yield from _tokens(experience, words)


def _tokens(experience: Experience, words: Mapping[int, str]) -> Iterator[str]:
    yield f"{INDENT}{'place':>6} {'token':>8}  {'trained':7}  {'logprob':>9}  text"
    for place, token in enumerate(experience.tokens.tolist()):
        index = place - experience.prompt_length
        is_trained = index >= 0 and (experience.action_mask is None or bool(experience.action_mask[index]))
        logprob = "" if index < 0 or experience.logprobs is None else f"{float(experience.logprobs[index]):.5f}"
        said = "prompt" if index < 0 else "yes" if is_trained else "no"
        yield f"{INDENT}{place:>6} {token:>8}  {said:7}  {logprob:>9}  {words.get(token, '?')!r}"


def indented(text: str) -> str:
    """Return a text below its title; what a terminal would obey is escaped."""
    return "\n".join(INDENT + line for line in printable(text).split("\n"))
