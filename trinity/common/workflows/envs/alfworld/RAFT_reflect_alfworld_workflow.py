"""ALFWorld with a second try that sees the first conversation.

A success of the second try is trained without the first conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trinity.common.workflows.envs.alfworld.alfworld_workflow import game_file
from trinity.common.workflows.envs.alfworld.RAFT_alfworld_workflow import (
    Playthrough,
    RAFTAlfworldWorkflow,
    is_success,
    outcome,
)
from trinity.common.workflows.envs.episode import failures_named
from trinity.common.workflows.registry import WORKFLOWS

if TYPE_CHECKING:
    from trinity.common.experience import Experience

AGAIN = (
    "That attempt ended after {steps} steps with a reward of {reward:g}; 1 is a success. The same task begins again. "
    "Use what you have learned, and reply in the same form."
)


@WORKFLOWS.register_module("RAFT_reflect_alfworld_workflow")
class RAFTReflectAlfworldWorkflow(RAFTAlfworldWorkflow):
    """`RAFTAlfworldWorkflow` with a second try that sees the first.

    The second try is learned as a conversation without the first, if all its replies have their form and it got
    more reward, or won in fewer steps. A first success is learned as it is; a first win without the form is not.
    """

    arguments = {}  # it reads those of its base

    def run(self) -> list[Experience]:
        """Return the experiences of the try from which something is learned."""
        from trinity.common.workflows.envs.turns import finished, without_actions

        with self.opened() as game:
            assert isinstance(game, Playthrough), "made by open"
            turns, played = self.play(game)
        numbers = outcome(game, played)
        if self.task.is_eval or game.reward >= 1:
            made = finished(turns, reward=game.reward, metrics=numbers)
            return made if is_success(game) else without_actions(made)
        second, messages, num_steps = self._second(numbers)
        is_better = second.reward > game.reward or (second.reward >= 1 and num_steps < numbers["steps"])
        numbers |= {
            "second_reward": second.reward, "second_steps": num_steps,
            "improvement": float(second.reward > game.reward), "trajectory_length": num_steps,
        }  # fmt: skip
        if not (is_better and second.has_form):
            return without_actions(finished(turns, reward=game.reward, metrics=numbers))
        return [self.process_messages_to_experience(messages, reward=second.reward, info=numbers)]

    def _second(self, first: dict[str, float]) -> tuple[Playthrough, list[dict[str, Any]], int]:
        """Play again after the first conversation.

        Returns:
            The game, its conversation without the first, and its number of steps.
        """
        seen = [*self.messages, {"role": "user", "content": AGAIN.format(steps=first["steps"], reward=first["reward"])}]
        own: list[dict[str, Any]] = [{"role": "system", "content": self.system_prompt}]
        with failures_named(self):
            game = Playthrough(game_file(self), max_same=None)
        try:
            with failures_named(self):
                said = game.begin()
            num_steps, is_done = 0, False
            while num_steps < self.max_steps and not is_done:
                own.append({"role": "user", "content": said})
                if self.model.get_message_token_len([*seen, *own[1:]]) >= self.model.max_model_len:
                    own.pop()
                    break
                (turn,) = self.model.chat([*seen, *own[1:]], **(self.rollout_args | {"n": 1}))
                if turn.truncate_status:
                    game.has_form = False
                    break
                own.append({"role": "assistant", "content": turn.response_text or ""})
                with failures_named(self):
                    reply = game.answer(turn.response_text or "")
                said, is_done, num_steps = reply.text, reply.is_done, num_steps + 1
        finally:
            with failures_named(self):
                game.close()
        return game, own, num_steps
