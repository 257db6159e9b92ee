"""Workflows whose responses a judge rates by the criteria of the row.

One rating for the whole rubric: the implicit form of "Rubrics as Rewards" (arXiv:2507.17746).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trinity.common.errors import EnvironmentProblem, WorkflowError
from trinity.common.rewards.reward_fn import RewardError
from trinity.common.workflows.judge import MAX_RATING, ask, judge_of, question_of, rating, rubric_messages, rubric_of
from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.workflow import SimpleWorkflow
from trinity.utils.log import add_secret

if TYPE_CHECKING:
    from trinity.common.experience import Experience
    from trinity.common.workflows.task import Task

BASE_URL_ENV, API_KEY_ENV = "OPENAI_BASE_URL", "OPENAI_API_KEY"


@WORKFLOWS.register_module("rubric_judge_workflow")
class RubricJudgeWorkflow(SimpleWorkflow):
    """One chat, rated by a judge from 1 to 10; the reward is rating / 10.

    The judge is the first auxiliary model, asked greedily for each response. The column `rubric` holds a list of
    criteria, each with `description` and `weight` (1 without one); without any, the judge rates the quality. A reward
    function of the taskset gives metrics only, and their sum `gold_reward`.
    """

    needs = frozenset({"prompt", "auxiliary_model"})
    arguments = {}
    default_system_prompt = "You are a helpful assistant. Think a request through step by step, then answer it."

    def _build_reward_fn(self) -> Any:
        return None if self.task.reward_fn is None else super()._build_reward_fn()

    def _build_judge(self) -> Any:
        """Return who rates: a model wrapper or an OpenAI client.

        Subclasses may choose another.

        Raises:
            WorkflowError: there is no auxiliary model (E5124).
        """
        return judge_of(self.auxiliary_model_wrappers, type(self))

    def reset(self, task: Task) -> None:
        """Prepare for another task; see `SimpleWorkflow.reset`.

        Raises:
            WorkflowError: the column `rubric` is no list of criteria (E5127).
        """
        super().reset(task)
        self.rubric = rubric_of(task)

    def scores(self, experience: Experience) -> dict[str, float]:
        """Return the judge's rating of a response as a score up to 1.

        Raises:
            RewardError: the verdict cannot be read (E5125).
            WorkflowError: there is no judge (E5124), or its service failed (E5126).
        """
        question = question_of(self.format_messages()[: -1 if self.reply_prefix else None])
        messages = rubric_messages(question, experience.response_text or "", self.rubric)
        return {"rating": rating(ask(self._build_judge(), messages, temperature=0.0)) / MAX_RATING}

    def score(self, responses: list[Experience]) -> list[Experience]:
        """Return the responses that the judge could rate.

        `judge_success` is their share.

        Raises:
            RewardError: it could rate none of them.
        """
        rated = super().score(responses)
        for response in rated:
            response.metrics |= self.gold(response) | {"judge_success": len(rated) / len(responses)}
        return rated

    def gold(self, response: Experience) -> dict[str, float]:
        """Return the scores of the reward function; empty where it fails."""
        if self.reward_fn is None:
            return {}
        try:
            scores = super().scores(response)
        except RewardError as error:
            self.logger.warning("no gold reward: %s", error)
            return {}
        return scores | {"gold_reward": float(sum(scores.values()))}


@WORKFLOWS.register_module("rubric_judge_openai_workflow")
class RubricJudgeWorkflowWithAPI(RubricJudgeWorkflow):
    """`RubricJudgeWorkflow` whose judge is an OpenAI-compatible service.

    Arguments of the taskset's `workflow_args`: `judge_model_name`, the model at the service;
    `judge_api_base_url_env` and `judge_api_key_env`, names of the environment variables of its address, up to and
    including `/v1`, and of its key.
    """

    needs = frozenset({"prompt"})
    required_arguments = frozenset({"judge_model_name"})
    arguments = {"judge_api_base_url_env": BASE_URL_ENV, "judge_api_key_env": API_KEY_ENV}
    ranges = {"judge_model_name": "text"}

    def reset(self, task: Task) -> None:
        """Prepare for another task.

        Raises:
            WorkflowError: the model of the judge is not named (E5124).
            EnvironmentProblem: the address of the judge is not known (E5735).
        """
        super().reset(task)
        name = self.workflow_args.get("judge_model_name")
        if not name:
            raise WorkflowError(
                f"{type(self).__name__} needs a judge, its model is not named; set workflow_args.judge_model_name of "
                "the taskset",
                code="E5124",
            )
        url_env = self.workflow_args.get("judge_api_base_url_env", BASE_URL_ENV)
        url = os.environ.get(url_env, "")
        if not url.startswith(("http://", "https://")):
            raise EnvironmentProblem(
                f"workflow_args.judge_api_base_url_env: the environment variable {url_env} must hold the address of an "
                "OpenAI-compatible server, such as http://127.0.0.1:8000/v1, got "
                f"{'no http address' if url else 'nothing'}",
                code="E5735",
            )
        key = os.environ.get(self.workflow_args.get("judge_api_key_env", API_KEY_ENV), "")
        add_secret(key)
        self._judge_place = str(name), url, key

    def _build_judge(self) -> Any:
        """Return a client of the service; calls end with `max_timeout`."""
        import openai

        name, url, key = self._judge_place
        held = vars(self).get("_judge")
        if held is None or held[0] != self._judge_place:
            client = openai.OpenAI(base_url=url, api_key=key or "none", timeout=self.model.timeout_s)
            client.model_path = name  # type: ignore[attr-defined]  # as of the clients in `auxiliary_models`
            held = self._judge = self._judge_place, client
        return held[1]
