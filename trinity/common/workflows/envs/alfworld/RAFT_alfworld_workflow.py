"""ALFWorld for learning from successes.

What failed is counted, and nothing is learned from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinity.common.workflows.envs.actions import parse_parts
from trinity.common.workflows.envs.alfworld.alfworld_workflow import game_file
from trinity.common.workflows.envs.alfworld.game import COMMANDS, Household
from trinity.common.workflows.envs.episode import DONE, ROUNDS, EpisodeWorkflow, Reply, need_package
from trinity.common.workflows.registry import WORKFLOWS

if TYPE_CHECKING:
    from trinity.common.experience import Experience

SYSTEM_PROMPT = f"""\
You do a task in a household that is told to you in words. In every turn write three parts, in this order: what you \
have learned so far, between <experience> and </experience>; what you think, between <think> and </think>; and one \
action, between <action> and </action>. The actions are: {COMMANDS}."""
MAX_SAME = 3


class Playthrough(Household):
    """A game whose replies have three parts.

    It ends with the third same action in a row.

    Args:
        path: the game file.
        max_same: same actions in a row that end it; None: any number.
    """

    def __init__(self, path: str, *, max_same: int | None) -> None:
        super().__init__(path, lost=0.0)
        self.max_same = max_same
        self.actions: list[str] = []
        self.has_form = True

    def answer(self, text: str) -> Reply:
        """Do the action of a reply."""
        reply = super().answer(text)
        last = self.actions[-self.max_same :] if self.max_same else []
        if not reply.is_done and len(last) == self.max_same and len(set(last)) == 1:
            return Reply(reply.text, is_done=True, is_valid=reply.is_valid)
        return reply

    def action_of(self, text: str) -> str:
        """Return the action of a reply with all three parts, or nothing."""
        parts = parse_parts(text)
        self.has_form = self.has_form and parts is not None
        self.actions.append(parts["action"] if parts else "")
        return self.actions[-1]


@WORKFLOWS.register_module("RAFT_alfworld_workflow")
class RAFTAlfworldWorkflow(EpisodeWorkflow):
    """A household task of ALFWorld; only successes are trained.

    A success is a game that was won with all replies in their form. Any other rollout is an experience whose tokens are
    masked, so that its metrics `success`, `reward` and `steps` count.
    """

    package = "alfworld"
    arguments = {"max_env_steps": 50}
    ranges = {"max_env_steps": "[1, inf]"}
    system_prompt = SYSTEM_PROMPT

    def open(self) -> Playthrough:
        """Return the game of the row."""
        need_package(self, self.package)
        return Playthrough(game_file(self), max_same=MAX_SAME)

    def run(self) -> list[Experience]:
        """Return the experiences of one rollout."""
        from trinity.common.workflows.envs.turns import finished, without_actions

        with self.opened() as game:
            assert isinstance(game, Playthrough), "made by open"
            turns, played = self.play(game)
        made = finished(turns, reward=game.reward, metrics=outcome(game, played))
        return made if is_success(game) else without_actions(made)


def is_success(game: Playthrough) -> bool:
    """Return whether a game was won with all replies in their form."""
    return game.reward >= 1 and game.has_form


def outcome(game: Playthrough, played: dict[str, float]) -> dict[str, float]:
    """Return the numbers of a game, under published names."""
    return {"success": float(played[DONE] and game.reward >= 1), "reward": game.reward, "steps": played[ROUNDS]}
