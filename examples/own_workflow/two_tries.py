"""A workflow and a reward function of one's own, in one file."""

from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.common.workflows import WORKFLOWS, Workflow


@REWARD_FUNCTIONS.register_module("last_number")
class LastNumber(RewardFn):
    """1 where what stands after the last `####` is the truth's."""

    def __call__(self, response, prompt=None, truth=None, **kwargs):
        wanted, given = (text.rpartition("####")[2].strip() for text in (truth, response))
        return {"right": float(given == wanted)}


@WORKFLOWS.register_module("two_tries_workflow")
class TwoTriesWorkflow(Workflow):
    """Asks, and asks again after a wrong answer; a second try is worth `second_try`."""

    is_async = True
    can_reset = True

    async def run_async(self):
        question = [{"role": "user", "content": self.task.task_desc}]
        reward_fn = self.task.reward_fn(**self.task.reward_fn_args)
        experiences = []
        for worth in (1.0, self.task.workflow_args["second_try"]):
            (answer,) = await self.model.chat_async(question, **(self.rollout_args | {"n": 1}))
            right = reward_fn(response=answer.response_text, truth=self.task.truth)["right"]
            answer.eid.step = len(experiences)
            answer.reward = worth * right
            answer.metrics = {"success": right}
            experiences.append(answer)
            if right:
                break
        return experiences
