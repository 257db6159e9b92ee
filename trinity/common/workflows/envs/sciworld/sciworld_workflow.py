"""The workflow of ScienceWorld."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity.common.workflows.envs.actions import HINT, NO_ACTION, parse_action
from trinity.common.workflows.envs.episode import EpisodeWorkflow, Game, Reply, need_package
from trinity.common.workflows.registry import WORKFLOWS
from trinity.utils.nested import as_written

SYSTEM_PROMPT = f"""\
You do a science experiment in a house that is told to you in words. {HINT} The actions, in which OBJ is a thing \
and LOC a room, are: look around, look at OBJ, look in OBJ, examine OBJ, read OBJ, open OBJ, close OBJ, activate OBJ, \
deactivate OBJ, connect OBJ to OBJ, disconnect OBJ, use OBJ, use OBJ on OBJ, move OBJ to OBJ, \
pick up OBJ, pour OBJ into OBJ, mix OBJ, focus on OBJ (what the task is about), teleport to LOC, \
wait (ten steps), wait1 (one step). Example: <think>I need heat.</think><action>teleport to kitchen</action>"""
SIMPLIFICATION = "easy"
STEP_LIMIT = 100
FULL_SCORE = 100.0


class Experiment(Game):
    """One variation of a task; the reward is the highest score, from 0 to 1.

    Args:
        task: `task_name`, `var_num` and, if it is not the package's own, `jar_path`.
    """

    def __init__(self, task: Mapping[str, Any]) -> None:
        from scienceworld import ScienceWorldEnv

        self.env = ScienceWorldEnv("", task.get("jar_path") or None, envStepLimit=STEP_LIMIT)
        try:
            self.env.load(task["task_name"], int(task["var_num"]), SIMPLIFICATION, generateGoldPath=True)
            self.num_golden = len(self.env.get_gold_action_sequence())
        except BaseException:
            self.env.close()  # a Java process
            raise
        self.score = 0.0

    def begin(self) -> str:
        """Return the task, and what is to be seen."""
        seen, _ = self.env.reset()
        return f"Task: {self.env.get_task_description()}\nObservation: {seen}"

    def answer(self, text: str) -> Reply:
        """Do the action of a reply."""
        action = parse_action(text)
        if not action:
            return Reply(f"Observation: {NO_ACTION}", is_valid=False)
        seen, reward, is_done, _ = self.env.step(action)
        self.score += float(reward)
        self.reward = max(self.reward, self.score / FULL_SCORE)
        return Reply(f"Observation: {seen}", is_done=bool(is_done), is_valid="No known action" not in seen)

    def metrics(self) -> dict[str, float]:
        """Return the number of steps of a known solution.

        It has its published name.
        """
        return {"golden_rounds": self.num_golden}

    def close(self) -> None:
        """End the Java process."""
        self.env.close()


@WORKFLOWS.register_module("sciworld_workflow")
class SciWorldWorkflow(EpisodeWorkflow):
    """An experiment of ScienceWorld.

    The reward is its highest score, from 0 to 1.

    The prompt column is JSON with `task_name`, `var_num` and, if it is not that of the package, `jar_path`. Java has to
    be installed, too.
    """

    package = "scienceworld"
    arguments = {"max_env_steps": 30}
    ranges = {"max_env_steps": "[1, 100]"}
    needs = frozenset({"prompt"})
    system_prompt = SYSTEM_PROMPT

    def open(self) -> Game:
        """Return the experiment of the row."""
        need_package(self, self.package)
        task = as_written(self.task.task_desc)
        if not isinstance(task, Mapping) or not {"task_name", "var_num"} <= task.keys():
            raise ValueError(f"the prompt must be JSON with task_name and var_num, got {self.task.task_desc!r}")
        return Experiment(task)
