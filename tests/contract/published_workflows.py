"""Workflows as the author of a plugin writes them against the published interface; a plugin of `test_workflows`.

Each puts `<its name>` into the metrics of its experiences: 1 where it found what the interface promises.
"""

from dataclasses import asdict

from trinity.common.experience import Experience
from trinity.common.models.model import ModelWrapper
from trinity.common.rewards.math_reward import MathRewardFn
from trinity.common.workflows import WORKFLOWS, MathWorkflow, MultiTurnWorkflow, SimpleWorkflow, Task, Workflow
from trinity.common.workflows.step_wise_workflow import (
    AsyncRewardPropagationWorkflow,
    AsyncStepWiseRewardWorkflow,
    RewardPropagationWorkflow,
    StepWiseRewardWorkflow,
)
from trinity.common.workflows.workflow import BaseSimpleWorkflow


class Old(Workflow):
    """The older way to say what a workflow can do, and what it reads before its base is initialised."""

    def __init__(self, task: Task, model: ModelWrapper, auxiliary_models: list | None = None):
        self.reset(task)
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)

    def reset(self, task: Task):
        self.task = task
        self.question = task.raw_task[task.format_args.prompt_key]
        self.num_resets = getattr(self, "num_resets", 0) + 1

    @property
    def resettable(self):
        return True

    @property
    def repeatable(self):
        return True

    def set_repeat_times(self, repeat_times, run_id_base):
        self.repeat_times = repeat_times
        self.task.rollout_args.n = repeat_times
        self.run_id_base = run_id_base

    def finished(self, responses):
        for i, response in enumerate(responses):
            response.eid.run = i + self.run_id_base
            response.metrics = {self.name: float(len(responses) == self.repeat_times == 2)}
            response.reward = float(len(response.response_text))
        return responses


@WORKFLOWS.register_module("old_sync")
class OldSync(Old):
    name = "old_sync"

    @property
    def asynchronous(self):
        return False

    def run(self) -> list[Experience]:
        messages = [{"role": "user", "content": self.question}]
        return self.finished(self.model.chat(messages, **asdict(self.task.rollout_args)))


@WORKFLOWS.register_module("old_async")
class OldAsync(Old):
    name = "old_async"

    @property
    def asynchronous(self):
        return True

    async def run_async(self) -> list[Experience]:
        messages = [{"role": "user", "content": self.question}]
        return self.finished(await self.model.chat_async(messages, **asdict(self.task.rollout_args)))


@WORKFLOWS.register_module("once_sync")
class OnceSync(Workflow):
    can_reset = False
    can_repeat = False
    is_async = False

    def run(self) -> list[Experience]:
        args = asdict(self.task.rollout_args)
        args["n"] = 1
        (response,) = self.model.chat([{"role": "user", "content": self.task.task_desc}], **args)
        response.metrics = {"once_sync": float(self.task.truth == self.task.raw_task["answer"])}
        response.reward = float(len(response.response_text))
        return [response]


@WORKFLOWS.register_module("once_async")
class OnceAsync(Workflow):
    can_reset: bool = True
    is_async: bool = True

    def __init__(self, *, task, model, auxiliary_models=None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.reset(task)

    def reset(self, task):
        self.task = task
        self.is_second = bool(task.workflow_args.get("second", False))

    async def run_async(self) -> list[Experience]:
        responses = await self.model.chat_async([{"role": "user", "content": self.task.task_desc}], n=1)
        responses[0].metrics = {"once_async": float(self.is_second)}
        responses[0].reward = float(len(responses[0].response_text))
        return responses


@WORKFLOWS.register_module("turns_sync")
class Turns(MultiTurnWorkflow):
    can_reset = True
    can_repeat = True

    def __init__(self, *, task, model, auxiliary_models=None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.reset(task)

    def reset(self, task):
        self.task = task

    def set_repeat_times(self, repeat_times, run_id_base):
        self.repeat_times = repeat_times
        self.run_id_base = run_id_base

    def run(self) -> list[Experience]:
        made = []
        for i in range(self.repeat_times):
            messages = [{"role": "user", "content": self.task.task_desc}]
            for question in ("1+1=", None):
                (answer,) = self.model.chat(messages, n=1, max_tokens=3)
                messages.append({"role": "assistant", "content": answer.response_text})
                if question:
                    messages.append({"role": "user", "content": question})
            exp = self.process_messages_to_experience(messages, float(i), {"turns_sync": 1.0, "note": "kept"})
            assert exp.info["note"] == "kept" and exp.metrics == {"turns_sync": 1.0}
            exp.eid.run = self.run_id_base + i
            made.append(exp)
        return made


@WORKFLOWS.register_module("turns_async")
class TurnsAsync(MultiTurnWorkflow):
    is_async = True

    async def run_async(self) -> list[Experience]:
        messages = [{"role": "user", "content": self.task.task_desc}]
        (answer,) = await self.model.chat_async(messages, n=1, max_tokens=3)
        messages.append({"role": "assistant", "content": answer.response_text})
        exp = await self.process_messages_to_experience_async(
            messages=messages, reward=float(len(answer.response_text)), info={"turns_async": 1}
        )
        return [exp]


class Steps:
    """What the four workflows in steps have in common."""

    def __init__(self, *, task, model, auxiliary_models=None, use_openai_client=False):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models, use_openai_client=use_openai_client)
        self.done = []

    @property
    def max_step_num(self):
        return 3

    def asked(self, step_num):
        self.done.append(step_num)
        return [{"role": "user", "content": f"{step_num}+1="}], {"n": 1, "max_tokens": 8, "min_tokens": 1}

    def goes_on(self):
        return len(self.done) < 2

    def seen(self, exps):
        for exp in exps:
            exp.metrics[self.name] = float(self.done == list(range(len(self.done))))
        return float(len(exps))


@WORKFLOWS.register_module("steps_sync")
class StepsSync(Steps, StepWiseRewardWorkflow):
    name = "steps_sync"

    def step(self, step_num: int) -> bool:
        messages, args = self.asked(step_num)
        self.model.chat(messages, **args)
        return self.goes_on()

    def reward(self, exps: list[Experience], step_num: int) -> float:
        return self.seen(exps) + step_num


@WORKFLOWS.register_module("steps_async")
class StepsAsync(Steps, AsyncStepWiseRewardWorkflow):
    name = "steps_async"

    async def step_async(self, step_num: int) -> bool:
        messages, args = self.asked(step_num)
        await self.model.chat_async(messages, **args)
        return self.goes_on()

    async def reward_async(self, exps: list[Experience], step_num: int) -> float:
        return self.seen(exps) + step_num


@WORKFLOWS.register_module("whole_sync")
class WholeSync(Steps, RewardPropagationWorkflow):
    name = "whole_sync"

    def step(self, step_num: int) -> bool:
        messages, args = self.asked(step_num)
        self.model.chat(messages, **args)
        return self.goes_on()

    def reward(self, exps: list[Experience]) -> float:
        return self.seen(exps)


@WORKFLOWS.register_module("whole_async")
class WholeAsync(Steps, AsyncRewardPropagationWorkflow):
    name = "whole_async"

    async def step_async(self, step_num: int) -> bool:
        messages, args = self.asked(step_num)
        await self.model.chat_async(messages, **args)
        return self.goes_on()

    async def reward_async(self, exps: list[Experience]) -> float:
        return self.seen(exps)


@WORKFLOWS.register_module("own_prompt")
class OwnPrompt(SimpleWorkflow):
    """Changes the options of its task before its base reads them, and of no other task."""

    def reset(self, task: Task):
        is_first = task.format_args.system_prompt is None
        task.format_args.system_prompt = "Add."
        super().reset(task)
        self.is_first = is_first

    def run(self) -> list[Experience]:
        expected = [{"role": "system", "content": "Add."}, {"role": "user", "content": self.task_desc}]
        responses = super().run()
        for response in responses:
            response.metrics["own_prompt"] = float(self.is_first and self.format_messages() == expected)
        return responses


@WORKFLOWS.register_module("greedy")
class Greedy(SimpleWorkflow):
    """Changes how its task is sampled."""

    def run(self) -> list[Experience]:
        self.task.rollout_args.temperature = 0
        responses = super().run()
        is_one = len({tuple(response.tokens.tolist()) for response in responses}) == 1
        for response in responses:
            response.metrics["greedy"] = float(is_one and len(responses) == 2)
        return responses


@WORKFLOWS.register_module("own_math")
class OwnMath(MathWorkflow):
    def reset(self, task: Task):
        if task.reward_fn is None:
            task.reward_fn = MathRewardFn
        super().reset(task)

    def format_messages(self):
        return [{"role": "user", "content": self.raw_task["question"]}]

    def run(self) -> list[Experience]:
        responses = self.model.chat(self.format_messages(), **self.rollout_args)
        for i, response in enumerate(responses):
            scores = self.reward_fn(response=response.response_text, truth=self.truth)
            response.metrics.update(scores)
            response.metrics["own_math"] = float(isinstance(self.truth, str))
            response.reward = sum(scores.values())
            response.eid.run = i + self.run_id_base
        return responses


@WORKFLOWS.register_module("base_async")
class BaseAsync(BaseSimpleWorkflow):
    is_async: bool = True

    async def run_async(self):
        responses = await self.model.chat_async(self.format_messages(), **self.rollout_args)
        for response in responses:
            response.reward = sum(self.reward_fn(response=response.response_text, truth=self.truth).values())
            response.metrics["base_async"] = float(len(responses) == 1 and self.reward_fn_args == {})
        return responses


@WORKFLOWS.register_module("judged")
class Judged(SimpleWorkflow):
    def __init__(self, *, task, model, auxiliary_models=None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.judge = self.auxiliary_model_wrappers[0]

    def run(self) -> list[Experience]:
        responses = self.model.chat(self.format_messages(), **self.rollout_args)
        for i, response in enumerate(responses):
            question = [{"role": "user", "content": response.response_text or "1+1="}]
            verdict = self.judge.chat(question, n=1, temperature=0.0, max_tokens=2)[0]
            client = self.auxiliary_models[0]
            said = client.chat.completions.create(
                model=client.model_path, messages=question, temperature=0.0, max_tokens=2
            )
            assert said.choices[0].message.content == verdict.response_text
            response.metrics["judged"] = float(self.judge is not self.model and len(verdict.tokens) > 0)
            response.reward = float(len(verdict.response_text))
            response.eid.run = i + self.run_id_base
        return responses
