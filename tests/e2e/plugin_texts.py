"""Plugins that runs of the tests load: a reward and a workflow that a random model gets something from."""

REWARD = '''
"""A reward that a random model earns, too."""

from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn


@REWARD_FUNCTIONS.register_module("share_of_digits")
class ShareOfDigits(RewardFn):
    """The share of digits in the response."""

    def __call__(self, response, prompt=None, truth=None, **kwargs):
        digits = sum(character.isdigit() for character in response) / max(len(response), 1)
        return {"digits": digits, "variety": 0.01 * len(set(response))}
'''
STEPWISE = '''
"""A rollout of one to three steps: it continues while the answer ends early."""

from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.step_wise_workflow import StepWiseRewardWorkflow


@WORKFLOWS.register_module("digits_step_by_step")
class DigitsStepByStep(StepWiseRewardWorkflow):
    """Asks for digits again and again; a step is rewarded for its share of them."""

    max_step_num = 3

    def step(self, step_num):
        question = self.task.task_desc + "?" * step_num
        (answer,) = self.model.chat([{"role": "user", "content": question}], n=1, stop=list("acegikmoqsuwy"))
        answer.info["env_state_hash"] = question
        return True

    def reward(self, exps, step_num):
        text = exps[0].response_text
        return sum(character.isdigit() for character in text) / max(len(text), 1)
'''
