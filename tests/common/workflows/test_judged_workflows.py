"""Workflows whose rewards a judge gives, on models that say what they are told to; the runs are in `tests/e2e`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.engine.external.openai_server import Service, answering
from trinity.common.errors import EnvironmentProblem, WorkflowError
from trinity.common.experience import Experience
from trinity.common.rewards import REWARD_FUNCTIONS, RewardError
from trinity.common.workflows import WORKFLOWS, Task, Workflow, describe
from trinity.common.workflows.judge import listed_scores, rating
from trinity.explorer.acceptance import accept
from trinity.explorer.outcome import Completed, Rejected

RIGHT, WRONG = "<think>a</think>\n<answer>7</answer>", "8"
RULERS = ["math_ruler_workflow", "async_math_ruler_workflow"]


class Spoken:
    """A model that says the given texts in turn, one a sample, and keeps what it was asked."""

    def __init__(self, *texts: str, truncate_status: Any = None) -> None:
        self.texts, self.status = list(texts), truncate_status
        self.asked: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []
        self.config, self.timeout_s = None, 5.0

    def chat(self, messages: list[dict[str, Any]], **args: Any) -> list[Experience]:
        self.asked.append((messages, args))
        said = [self.texts.pop(0) for _ in range(args["n"])]
        one = {"tokens": [1, 2], "prompt_length": 1, "truncate_status": self.status}
        return [Experience(**one, response_text=text) for text in said]

    async def chat_async(self, messages: list[dict[str, Any]], **args: Any) -> list[Experience]:
        return self.chat(messages, **args)


def made(name: str, model: Spoken, *judges: Any, repeats: int = 2, **changes: Any) -> Workflow:
    given: dict[str, Any] = {
        "workflow": WORKFLOWS.get(name),
        "format_args": {"prompt_key": "question", "response_key": "answer"},
        "rollout_args": {"temperature": 0.5},
        "raw_task": {"question": "3+4=", "answer": "7"},
        "batch_id": 3,
        "task_id": 1,
    }
    workflow: Workflow = Task(**{**given, **changes}).to_workflow(model, list(judges))  # type: ignore[arg-type]
    workflow.set_repeat_times(repeats, run_id_base=4)
    return workflow


def run(workflow: Workflow) -> list[Experience]:
    return asyncio.run(workflow.run_async()) if describe(workflow).is_async else workflow.run()


@pytest.mark.parametrize("name", RULERS)
def test_a_judge_compares_the_responses_without_the_truth(name: str) -> None:
    judge = Spoken("The first is right. [0, 0] would be harsh.\n[0.9, 0.25]")
    first, second = run(made(name, Spoken(RIGHT, WRONG), judge))
    assert (first.reward, second.reward) == (0.9, 0.25)
    assert (first.eid.run, second.eid.run) == (4, 5)
    assert first.metrics["gold_reward"] == pytest.approx(1.1) and second.metrics["gold_reward"] == pytest.approx(-0.1)
    assert first.metrics["accuracy"] == first.metrics["judge_success"] == 1.0
    ((system, user), args) = judge.asked[0]
    assert args == {"n": 1} and "2 solutions" in system["content"]
    assert [part in user["content"] for part in ("3+4=", RIGHT, f"2\n{WRONG}", "list of 2", "truth")] == [True] * 4 + [
        False
    ]


UNREADABLE = {
    "no list": "Both are fine.", "too many": "[1, 0, 1]", "too few": "[1]", "above 1": "[1.5, 0]", "below 0": "[-1, 0]",
    "no numbers": "[a, b]", "nothing": " ", "not closed": "[0.5, 0.5", "in its thought": "<think>[1, 0]</think> Done.",
    "code": "[__import__('os'), 1]", "not finite": "[nan, 1e999]", "long": "[" * 100_000,
}  # fmt: skip


@pytest.mark.difference("A judge's verdict that cannot be read")
@pytest.mark.parametrize("verdict", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("name", RULERS)
def test_a_verdict_that_cannot_be_read_is_no_reward(name: str, verdict: str) -> None:
    with pytest.raises(RewardError) as caught:
        run(made(name, Spoken(RIGHT, WRONG), Spoken(verdict)))
    assert caught.value.code == "E5125" and len(str(caught.value)) < 500


def test_the_last_list_of_numbers_after_the_thought_counts() -> None:
    assert listed_scores("<think>[0, 0]</think> [1, 0] but see [2] no: [.5, 1.]\n[as said]", 2) == [0.5, 1.0]
    assert listed_scores("[[1, 0]", 2) == [1.0, 0.0]


def test_a_judge_who_saw_a_part_only_gives_no_reward() -> None:
    cut = Spoken("[1, 1]", truncate_status="prompt_truncated")
    with pytest.raises(RewardError, match="E5125.*first tokens.*max_prompt_tokens"):
        run(made("math_ruler_workflow", Spoken(RIGHT, WRONG), cut))


@pytest.mark.parametrize("name", [*RULERS, "rubric_judge_workflow"])
def test_a_workflow_without_its_judge_says_which_key_names_it(name: str) -> None:
    with pytest.raises(WorkflowError, match=r"E5124.*auxiliary_models: \[\{model_path"):
        run(made(name, Spoken(RIGHT, WRONG)))


RUBRIC = [{"description": "is brief", "weight": 0.5}, {"description": "is right"}]


def rated(*verdicts: str, **changes: Any) -> tuple[Workflow, Spoken, list[Experience]]:
    judge = Spoken(*verdicts)
    row = {"question": "3+4=", "answer": "7", "rubric": RUBRIC}
    workflow = made("rubric_judge_workflow", Spoken(RIGHT, WRONG), judge, **{"raw_task": row, **changes})
    return workflow, judge, run(workflow)


@pytest.mark.parametrize("rubric", [RUBRIC, json.dumps(RUBRIC)], ids=["list", "text"])
def test_a_judge_rates_each_response_by_the_rubric_of_the_row(rubric: Any) -> None:
    verdicts = ('{"rating": 10}', '```json\n{"why": "no", "rating": 2}\n```')
    row = {"question": "3+4=", "answer": "7", "rubric": rubric}
    _, judge, experiences = rated(*verdicts, raw_task=row)
    assert [e.reward for e in experiences] == [1.0, 0.2]
    assert [e.metrics for e in experiences] == [{"rating": e.reward, "judge_success": 1.0} for e in experiences]
    (_, user), args = judge.asked[0]
    assert args == {"n": 1, "temperature": 0.0}
    asked = ("3+4=", RIGHT, "1. (weight 0.5) is brief", "2. (weight 1) is right")
    assert all(part in user["content"] for part in asked)


@pytest.mark.difference("A judge's verdict that cannot be read")
@pytest.mark.parametrize(
    "verdict",
    ["fine", '{"rating": 11}', '{"rating": 0}', '{"rating": "7"}', '{"rating": true}', '{"rating": 3} {"rating": 9}']
    + ['{"rating": 1e1}', "<think>{'rating': 3}</think>"],
)
def test_a_response_whose_rating_cannot_be_read_is_left_out(verdict: str) -> None:
    workflow, _, experiences = rated(verdict, '{"rating": 5}')
    assert [(e.eid.run, e.reward, e.metrics["judge_success"]) for e in experiences] == [(5, 0.5, 0.5)]
    outcomes = accept(
        experiences, workflow.task, runs=range(4, 6), can_repeat=True, model_version=0, dropped=workflow.dropped
    )
    assert isinstance(outcomes[0], Rejected) and "E5125" in outcomes[0].reason and isinstance(outcomes[1], Completed)


def test_a_rating_is_read_after_the_thought_however_it_is_wrapped() -> None:
    assert rating('<think>{"rating": 1}</think>{ "rating" : 7.5 , "why": {"a": 1}}') == 7.5
    assert rating('{"rating": 7} I say again: {"rating": 7}') == 7


def test_a_reward_function_beside_a_rubric_gives_metrics_only() -> None:
    _, _, (first, second) = rated('{"rating": 1}', '{"rating": 1}', reward_fn=REWARD_FUNCTIONS.get("accuracy_reward"))
    assert (first.reward, second.reward) == (0.1, 0.1)
    assert (first.metrics["gold_reward"], second.metrics["gold_reward"]) == (1.0, 0.0)


@pytest.mark.parametrize("rubric", [["is brief"], [{"weight": 1}], "is brief", [{"description": "a", "weight": "b"}]])
def test_a_rubric_of_another_form_is_refused_by_its_column(rubric: Any) -> None:
    with pytest.raises(WorkflowError, match="E5127.*'rubric'.*description"):
        rated(raw_task={"question": "3+4=", "rubric": rubric})


# A judge that is a service.


def api(model: Spoken, **args: Any) -> Workflow:
    args = {"judge_model_name": "grader", **args}
    return made("rubric_judge_openai_workflow", model, workflow_args={k: v for k, v in args.items() if v})


def test_a_service_rates_with_the_key_and_address_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering('{"rating": 4}') as service:
        service.api_key = "sk-judge"
        monkeypatch.setenv("JUDGE_URL", service.url)
        monkeypatch.setenv("JUDGE_KEY", "sk-judge")
        names = {"judge_api_base_url_env": "JUDGE_URL", "judge_api_key_env": "JUDGE_KEY"}
        experiences = run(api(Spoken(RIGHT, WRONG), **names))
    assert [e.reward for e in experiences] == [0.4, 0.4]
    assert [(body["model"], body["temperature"]) for _, _, body in service.requests] == [("grader", 0.0)] * 2


@pytest.mark.difference("A judge that fails")
@pytest.mark.parametrize("fault", ["refused", "gone", "empty"])
def test_a_service_that_fails_is_a_failure_that_tells_no_key(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    with answering("" if fault == "empty" else '{"rating": 4}') as service:
        _judged_by(service, monkeypatch, key="sk-canary-4711")
        service.api_key = "another" if fault == "refused" else None
        workflow = api(Spoken(RIGHT, WRONG))
        if fault != "gone":
            _fails(workflow, "E5126" if fault == "refused" else "E5125")
    if fault == "gone":
        _fails(workflow, "E5126")


def _judged_by(service: Service, monkeypatch: pytest.MonkeyPatch, *, key: str) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", service.url)
    monkeypatch.setenv("OPENAI_API_KEY", key)


def _fails(workflow: Workflow, code: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        run(workflow)
    assert code in str(caught.value) and "canary" not in str(caught.value)
    assert isinstance(caught.value, RewardError) == (code == "E5125"), "a failed service is tried again"


def test_a_service_without_address_or_name_is_refused_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(EnvironmentProblem, match="E5735.*OPENAI_BASE_URL"):
        api(Spoken())
    with pytest.raises(WorkflowError, match="E5124.*judge_model_name"):
        api(Spoken(), judge_model_name="")


# The policy as its own judge.


def own(probability: float, *verdicts: str, **changes: Any) -> list[Experience]:
    args = {"ground_truth_probability": probability, **changes.pop("workflow_args", {})}
    return run(made("math_trainable_ruler_workflow", Spoken(RIGHT, WRONG, *verdicts), workflow_args=args, **changes))


def test_where_the_truth_is_known_the_policy_is_rewarded_for_its_verdicts() -> None:
    first, second, exact, useless = own(1.0, "[1, 0]", "none")
    assert (first.reward, second.reward) == (pytest.approx(1.1), pytest.approx(-0.1))
    assert (exact.reward, useless.reward) == (1.0, 0.0)
    assert exact.metrics == {"judge_success": 0.5, "reward_for_judge": 1.0}
    assert [(e.eid.run, e.eid.step) for e in (first, second, exact, useless)] == [(4, 0), (5, 0), (4, 1), (5, 1)]


@pytest.mark.difference("Verdicts that are trained")
def test_the_verdicts_are_compared_apart_from_the_responses() -> None:
    from trinity.algorithm.advantage_fn.grpo import GRPOGroupedAdvantage

    experiences = own(1.0, "[1, 0]", "none")
    task = Task(workflow=WORKFLOWS.get("math_trainable_ruler_workflow"), batch_id=3, task_id=1)
    outcomes = accept(experiences, task, runs=range(4, 6), can_repeat=True, model_version=0)
    completed = [e for outcome in outcomes for e in outcome.experiences]  # type: ignore[union-attr]
    advantages = {e.eid.uid: e for e in GRPOGroupedAdvantage().process(completed)[0]}
    signs = {uid: float(e.advantages[0]) for uid, e in advantages.items() if e.advantages is not None}
    assert signs == {
        "3/1/4/0/": pytest.approx(0.7071, abs=1e-3), "3/1/5/0/": pytest.approx(-0.7071, abs=1e-3),
        "3/1/4/1/": pytest.approx(0.7071, abs=1e-3), "3/1/5/1/": pytest.approx(-0.7071, abs=1e-3),
    }  # fmt: skip


def test_where_the_truth_is_not_known_the_verdict_gives_the_rewards() -> None:
    assert [e.reward for e in own(0.0, "[0.25, 1]")] == [0.25, 1.0]
    with pytest.raises(RewardError, match="E5125"):
        own(0.0, "none")


@pytest.mark.difference("`math_trainable_ruler_workflow`")
def test_an_evaluation_has_the_reward_of_the_reward_function() -> None:
    assert [e.reward for e in own(1.0, is_eval=True)] == [pytest.approx(1.1), pytest.approx(-0.1)]


@pytest.mark.difference("`math_trainable_ruler_workflow`")
def test_which_tasks_count_as_known_follows_from_the_seed_alone() -> None:
    def known(task_id: int) -> bool:
        return made("math_trainable_ruler_workflow", Spoken(), task_id=task_id).knows_truth  # type: ignore[attr-defined]

    drawn = [known(number) for number in range(400)]
    assert drawn == [known(number) for number in range(400)]
    assert 50 < sum(drawn) < 110


def test_a_reward_outside_of_its_range_names_the_arguments() -> None:
    with pytest.raises(RewardError, match=r"E5128.*1\.1.*gold_max"):
        own(1.0, workflow_args={"gold_max": 1.0})
