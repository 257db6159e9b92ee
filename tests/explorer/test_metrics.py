"""Metrics of a batch of rollouts, by numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.explorer.rollouts import Rollouts
from tests.explorer.scripted import experience, make
from trinity.common.experience import Experience
from trinity.common.workflows import MultiTurnWorkflow, Workflow
from trinity.explorer.metrics import rollout_metrics, taskset_metrics
from trinity.explorer.outcome import BatchResult, Completed, RolloutResult


def test_detailed_metrics_have_the_distribution_over_the_tasks() -> None:
    """Rewards 0, 1, 2 and 3: the tenth percentile lies three tenths of the way from the first to the second."""
    result = BatchResult(
        4,
        [
            RolloutResult(
                task, 0, Completed([experience(reward=float(task), info={"task_index": {"taskset_id": 0}})]), 0.5
            )
            for task in range(4)
        ],
    )
    plain, detailed = rollout_metrics(result), rollout_metrics(result, is_detailed=True)
    assert plain == {name: detailed[name] for name in plain}
    expected = {"std": math.sqrt(1.25), "p10": 0.3, "p50": 1.5, "p90": 2.7}
    assert {what: detailed[f"rollout/reward/{what}"] for what in expected} == pytest.approx(expected)
    assert {name.rpartition("/")[0] for name in detailed.keys() - plain.keys()} == {
        "rollout/reward", "response_length", "prompt_length",
    }  # fmt: skip
    of_tasksets = taskset_metrics(result, {0: "sums"}, is_detailed=True)
    assert {what: of_tasksets[f"rollout/sums/reward/{what}"] for what in expected} == pytest.approx(expected)
    assert rollout_metrics(BatchResult(4), is_detailed=True).keys() == rollout_metrics(BatchResult(4)).keys()


class Rewriting(Workflow):
    """Sends the first response back as it was said, and the second one in other words; keeps one call."""

    def run(self) -> list[Experience]:
        messages = [{"role": "user", "content": "1+1="}]
        self.model.enable_history, self.model.history.limit = True, 1
        for other in (None, "2"):
            (said,) = self.model.chat(messages, max_tokens=2)
            text = said.response_text if other is None else other
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "2+2="}]
        (last,) = self.model.chat(messages, max_tokens=2)
        last.reward = 1.0
        return [last]


def test_responses_in_other_words_and_calls_that_a_history_dropped_are_counted(rollouts: Rollouts) -> None:
    metrics = rollout_metrics(rollouts.run([make(Rewriting, 2, act="ok")], max_retry_times=0))
    assert metrics["rollout/finished_task_count"] == 1
    assert (metrics["rollout/foreign_turn_count"], metrics["rollout/dropped_call_count"]) == (2, 4)


class Restarted(MultiTurnWorkflow):
    """Hides the first response from the model, and learns the conversation with both; rewrites a third one."""

    can_repeat = True

    def run(self) -> list[Experience]:
        """Return each conversation as one experience, as is published."""
        made = []
        for run in range(self.repeat_times):
            ask = {"role": "user", "content": f"{run}+1="}
            (first,) = self.model.chat([ask], max_tokens=2)
            messages = [ask, {"role": "assistant", "content": first.response_text}, ask]
            messages += [{"role": "assistant", "content": "2"}, ask]
            (last,) = self.model.chat(messages, max_tokens=2)
            messages.append({"role": "assistant", "content": last.response_text})
            made.append(self.process_messages_to_experience(messages, float(run), {"turns": 3}))
            made[-1].eid.run = self.run_id_base + run
        return made


def test_turns_of_a_conversation_that_were_not_sampled_are_counted(rollouts: Rollouts) -> None:
    result = rollouts.run([make(Restarted, 2, act="ok")], max_retry_times=0)
    metrics = rollout_metrics(result)
    assert (metrics["rollout/finished_task_count"], metrics["rollout/retokenised_turn_count"]) == (1, 2)
    assert metrics["rollout/turns/mean"] == 3 and metrics["rollout/reward/mean"] == 0.5
