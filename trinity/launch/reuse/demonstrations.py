"""`trinity export sft` and `dpo`: datasets of what a run has stored.

A row holds messages, as the run's own prompts are made of, and says where it comes from:

    {"messages": [..., {"role": "assistant", ...}], "provenance": {...}}
    {"messages": [...], "chosen": [{...}], "rejected": [{...}], "provenance": {"chosen": {...}, "rejected": {...}}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinity.buffer.records import Records
from trinity.common.errors import DataError
from trinity.common.experience import Experience
from trinity.common.images.messages import with_data_uris
from trinity.common.schema.sql_schema import ExperienceModel
from trinity.launch.reuse.past_run import PastRun
from trinity.launch.reuse.past_tasks import PastTasks
from trinity.utils.disk import new_file
from trinity.utils.plugin_loader import load_plugins

Message = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A stored rollout as a response to a prompt.

    Attributes:
        prompt: what was sent.
        answer: what the model said, as a message.
        reward: of it.
        provenance: run, identity, reward, version of the weights, training step.
    """

    prompt: list[Message]
    answer: Message
    reward: float
    provenance: dict[str, Any]


@dataclass
class Written:
    """What happened to the rollouts of a run.

    Attributes:
        rows: written to the file.
        repeated: rows left out because the file has them.
        gone: rollouts whose payload was pruned.
        unfit: rollouts that are cut short, have no reward, or several turns without their messages.
    """

    rows: int = 0
    repeated: int = 0
    gone: int = 0
    unfit: int = 0


Choose = Callable[[list[Answer]], Iterator[dict[str, Any]]]


def best_answers(*, number: int, least_reward: float | None) -> Choose:
    """Return what chooses the best responses to a task.

    Args:
        number: of answers to a task, at most.
        least_reward: worse ones are left out; None: none is.
    """

    def choose(group: list[Answer]) -> Iterator[dict[str, Any]]:
        ordered = sorted(group, key=lambda each: each.reward, reverse=True)
        for each in ordered[:number]:
            if least_reward is None or each.reward >= least_reward:
                yield {"messages": [*each.prompt, each.answer], "provenance": each.provenance}

    return choose


def best_and_worst(*, least_gap: float) -> Choose:
    """Return what pairs the best response to a task with the worst.

    Args:
        least_gap: smallest difference of their rewards; equal ones are never paired.
    """

    def choose(group: list[Answer]) -> Iterator[dict[str, Any]]:
        chosen, rejected = (pick(group, key=lambda each: each.reward) for pick in (max, min))
        gap = chosen.reward - rejected.reward
        if gap > 0 and gap >= least_gap and chosen.prompt == rejected.prompt and chosen.answer != rejected.answer:
            made = {"messages": chosen.prompt, "chosen": [chosen.answer], "rejected": [rejected.answer]}
            yield made | {"provenance": {"chosen": chosen.provenance, "rejected": rejected.provenance}}

    return choose


def write_dataset(run: PastRun, output: Path, choose: Choose) -> Written:
    """Write what `choose` takes of each task as JSON lines, whole or not.

    Raises:
        DataError: nothing was chosen (E4070), or the taskset is not that of the run any more (E4073).
        ConfigError: the workflow makes its prompts itself (E1925).
        EnvironmentProblem: the file exists, or cannot be written (E3601).
    """
    config = run.config()
    load_plugins(run.all_plugin_dirs())
    with new_file(output) as temporary:
        with closing(Records(run.url)) as records, temporary.open("w", encoding="utf-8", errors="replace") as file:
            steps = run.explored(records, buffer=run.buffer_of(config))
            written = _write(file, steps, PastTasks(config, run.fingerprints()), choose)
        if not written.rows:
            raise DataError(
                f"nothing of {run.name} was chosen: {written.unfit} rollouts are cut short or without a reward, "
                f"{written.gone} have no payload any more, and the rest does not meet the bounds",
                code="E4070",
            )
    return written


def _write(file: Any, steps: Iterator[list[ExperienceModel]], tasks: PastTasks, choose: Choose) -> Written:
    written, seen = Written(), set[str]()
    for rows in steps:
        groups: dict[str, list[Answer]] = {}
        for each, answer in _answers(rows, tasks, written):
            groups.setdefault(each.group, []).append(answer)
        for row in (row for group in groups.values() for row in choose(group)):
            key = json.dumps({name: value for name, value in row.items() if name != "provenance"}, sort_keys=True)
            if key in seen:
                written.repeated += 1
                continue
            seen.add(key)
            written.rows += 1
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return written


def _answers(
    rows: Sequence[ExperienceModel], tasks: PastTasks, written: Written
) -> Iterator[tuple[Experience, Answer]]:
    turns: dict[str, int] = {}
    for row in rows:
        rollout = row.uid.rsplit("/", 2)[0]
        turns[rollout] = turns.get(rollout, 0) + 1
    for row in rows:
        if row.experience_bytes is None:
            written.gone += 1
            continue
        experience = row.to_experience()
        is_whole = experience.truncate_status is None and experience.reward is not None
        has_text = bool(experience.messages) or (turns[row.uid.rsplit("/", 2)[0]] == 1 and experience.response_text)
        if not (is_whole and has_text) or experience.experience_type == "dpo":
            written.unfit += 1
            continue
        prompt, answer = _conversation(experience, tasks)
        provenance = {"run": row.run, "uid": row.uid, "reward": experience.reward}
        provenance |= {"model_version": row.model_version, "trained_step": row.trained_step}
        yield experience, Answer(prompt, answer, float(experience.reward or 0.0), provenance)


def _conversation(experience: Experience, tasks: PastTasks) -> tuple[list[Message], Message]:
    """Return the messages that were sent, and the answer."""
    if experience.messages:
        return experience.messages[:-1], experience.messages[-1]
    prompt = with_data_uris(tasks.workflow(experience).format_messages())
    text = experience.response_text or ""
    if prompt and prompt[-1]["role"] == "assistant":  # the beginning of the response was given
        text = str(prompt.pop()["content"]) + text
    return prompt, {"role": "assistant", "content": text}
