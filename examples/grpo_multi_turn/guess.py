"""A game of several turns: a number is to be found, and each wrong guess is answered by the direction."""

import re

from trinity.common.workflows import WORKFLOWS, Workflow

SYSTEM = """\
Find the secret number, from 00 to 31. Reply with two digits and nothing else. You are told < where the secret is \
lower than your guess, > where it is higher, and have five guesses."""


@WORKFLOWS.register_module("guess_workflow")
class GuessWorkflow(Workflow):
    """One conversation; the reward is 1 if a guess hits, and all answers of the model are trained."""

    is_async = True
    can_reset = True

    async def run_async(self):
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self.task.task_desc}]
        secret, reward = self.task.truth, 0.0
        for _ in range(self.task.workflow_args["max_turns"]):
            (said,) = await self.model.chat_async(messages, **(self.rollout_args | {"n": 1}))
            guess = said.response_text
            if guess == secret:
                reward = 1.0
            if guess == secret or not re.fullmatch(r"\d\d", guess):
                break
            direction = "<" if secret < guess else ">"
            messages += [{"role": "assistant", "content": guess}, {"role": "user", "content": direction}]
        experiences = self.model.extract_trajectories_from_history()
        for experience in experiences:
            experience.reward = reward
            experience.metrics = {"success": reward, "turns": len(messages) / 2}
        return experiences
