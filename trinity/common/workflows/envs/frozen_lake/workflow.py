"""The workflow of the frozen lake.

An answer is one move, until the goal, a hole or the last step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trinity.common.workflows.envs.episode import EpisodeWorkflow, Game, Reply, need_package
from trinity.common.workflows.envs.frozen_lake.utils import checked_map, generate_random_map, render
from trinity.common.workflows.registry import WORKFLOWS

SYSTEM_PROMPT = """\
You are the player P on a frozen lake and want to stand on the goal G. A map has one character a tile: _ is ice, \
O is a hole, G is the goal and P is you. A hole ends the game without a reward, the goal ends it with 1.
{ice}
Think first. Then end your reply with one move between triple backticks: Up, Down, Left or Right, as in ```Up```"""
FIRM = "You go where you move."
SLIPPERY = "The ice is slippery: a move may take you to either side of where you wanted to go."
# The numbers are those of Gymnasium; a reply may also give them as published, counted from 1.
MOVES = {"left": 0, "down": 1, "right": 2, "up": 3, "1": 0, "2": 1, "3": 2, "4": 3}


class FrozenLake(Game):
    """One walk over a lake.

    Args:
        rows: the map.
        is_slippery: a move goes astray in two of three cases.
        seed: of the slips.
        max_steps: most moves, which the prompt tells.
    """

    def __init__(self, rows: Sequence[str], *, is_slippery: bool, seed: int, max_steps: int) -> None:
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

        self.rows, self.seed, self.max_steps = list(rows), seed, max_steps
        self.lake = FrozenLakeEnv(desc=self.rows, is_slippery=is_slippery)
        self.num_steps = 0

    def begin(self) -> str:
        """Stand at the start; return the map."""
        self.lake.reset(seed=self.seed)
        return self._said("")

    def answer(self, text: str) -> Reply:
        """Move; a reply without a move leaves the player in place."""
        fenced = re.findall(r"```(.*?)```", text, re.DOTALL)
        move = MOVES.get(fenced[-1].strip().lower()) if fenced else None
        self.num_steps += 1
        if move is None:
            return Reply(self._said("Your reply has no move between triple backticks. "), is_valid=False)
        before = self.place
        _, reward, is_done, _, _ = self.lake.step(move)
        self.reward += float(reward)
        return Reply(self._said("" if self.place != before else "You did not get anywhere. "), is_done=is_done)

    @property
    def place(self) -> tuple[int, int]:
        """Row and column of the player."""
        return divmod(int(self.lake.s), len(self.rows[0]))

    def metrics(self) -> dict[str, float]:
        """Return the number of moves and the score, under published names."""
        return {"env_steps": self.num_steps, "test_score": self.reward}

    def close(self) -> None:
        """Close the environment."""
        self.lake.close()

    def _said(self, note: str) -> str:
        left = self.max_steps - self.num_steps
        return f"{note}Map after {self.num_steps} moves, {left} left:\n{render(self.rows, self.place)}\nYour next move?"


@WORKFLOWS.register_module("frozen_lake_workflow")
class FrozenLakeWorkflow(EpisodeWorkflow):
    """A walk over the frozen lake of Gymnasium; the reward is 1 at the goal.

    The row's columns `size`, `p` and `seed` draw the map, which has a way of `env_max_steps` moves; `desc` of
    `workflow_args` is a map for all rows.
    """

    package = "gymnasium"
    arguments = {"env_max_steps": 8, "agent_max_steps": 10, "desc": None, "is_slippery": False}
    ranges = {"env_max_steps": "[1, inf]", "agent_max_steps": "[1, inf]"}
    steps_argument = "agent_max_steps"

    def open(self) -> Game:
        """Return the lake of the row."""
        need_package(self, self.package)
        given = self.workflow_args
        seed, is_slippery = int(self.value("seed", 42)), bool(given["is_slippery"])
        if given.get("desc"):
            rows = checked_map(given["desc"])
        else:
            size, p = int(self.value("size", 4)), float(self.value("p", 0.8))
            rows, _ = generate_random_map(size, p, seed, int(given["env_max_steps"]))
        self.system_prompt = SYSTEM_PROMPT.format(ice=SLIPPERY if is_slippery else FIRM)
        return FrozenLake(rows, is_slippery=is_slippery, seed=seed, max_steps=self.max_steps)
