"""The workflows of ALFWorld: the conversation as a whole, or step by step."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from trinity.common.workflows.envs.alfworld.game import SYSTEM_PROMPT, Household
from trinity.common.workflows.envs.episode import (
    DONE,
    EpisodeWorkflow,
    Game,
    OfEnvironment,
    failures_named,
    need_package,
)
from trinity.common.workflows.registry import WORKFLOWS
from trinity.common.workflows.step_wise_workflow import STEP_REWARD_KEY, RewardPropagationWorkflow

if TYPE_CHECKING:
    from trinity.common.experience import Experience

LOST = -0.1


@WORKFLOWS.register_module("alfworld_workflow")
class AlfworldWorkflow(EpisodeWorkflow):
    """A household task of ALFWorld; the prompt column is the game file.

    The reward is the score of the game, and -0.1 where it does not end in `max_env_steps`.
    """

    package = "alfworld"
    arguments = {"max_env_steps": 30}
    ranges = {"max_env_steps": "[1, inf]"}
    system_prompt = SYSTEM_PROMPT

    def open(self) -> Game:
        """Return the game of the row."""
        need_package(self, self.package)
        return Household(game_file(self), lost=LOST)


@WORKFLOWS.register_module("step_wise_alfworld_workflow")
class StepWiseAlfworldWorkflow(OfEnvironment, RewardPropagationWorkflow):
    """`AlfworldWorkflow` with one experience per step, for `gigpo`.

    `info` has `env_state_hash`, the hash of what the step saw, and `step_reward`, the score that the step gave.
    """

    package = "alfworld"
    arguments = AlfworldWorkflow.arguments
    ranges = AlfworldWorkflow.ranges

    @property
    def max_step_num(self) -> int:
        """Most steps of a rollout."""
        return int(self.workflow_args["max_env_steps"])

    def run(self) -> list[Experience]:
        """Return the experiences of the steps, in order.

        Raises:
            EnvironmentProblem: ALFWorld is not installed (E3301).
            WorkflowError: the environment failed (E5132).
        """
        need_package(self, self.package)
        with failures_named(self):
            self.game = Household(game_file(self), lost=LOST)
        try:
            with failures_named(self):
                self.said = self.game.begin()
            self.messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM_PROMPT}]
            self.is_done = False
            experiences = super().run()
        finally:
            with failures_named(self):
                self.game.close()
        for experience in experiences:
            experience.metrics[DONE] = float(self.is_done)
        return experiences

    def step(self, step_num: int) -> bool:
        """Ask for an action and do it; return whether the rollout continues."""
        seen = self.said
        self.messages.append({"role": "user", "content": seen})
        (answer,) = self.model.chat(self.messages, **(self.rollout_args | {"n": 1}))
        answer.info |= {"env_state_hash": hashlib.sha256(seen.encode()).hexdigest(), STEP_REWARD_KEY: 0.0}
        if answer.truncate_status:
            return False
        self.messages.append({"role": "assistant", "content": answer.response_text or ""})
        with failures_named(self):
            reply = self.game.answer(answer.response_text or "")
        self.said, self.is_done = reply.text, reply.is_done
        if reply.is_done:
            answer.info[STEP_REWARD_KEY] = self.game.reward
        return not reply.is_done

    def reward(self, exps: list[Experience]) -> float:
        """Return the reward of the rollout."""
        return self.game.reward


def game_file(workflow: OfEnvironment) -> str:
    """Return the path of the row's game: the prompt column, or `game_file`."""
    return str(workflow.task.task_desc or workflow.raw_task.get("game_file", ""))
