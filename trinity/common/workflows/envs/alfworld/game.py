"""A game file of ALFWorld, played in TextWorld."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity.common.workflows.envs.actions import HINT, NO_ACTION, parse_action
from trinity.common.workflows.envs.episode import Game, Reply

COMMANDS = """\
look, inventory (you can carry one thing), go to PLACE, open PLACE, close PLACE, take THING from PLACE, \
move THING to PLACE, examine THING or PLACE, use THING, heat THING with PLACE, clean THING with PLACE, \
cool THING with PLACE, slice THING with THING"""
SYSTEM_PROMPT = f"""\
You do a task in a household that is told to you in words. {HINT} The actions are: {COMMANDS}. \
Example: <think>A mug may be in the cabinet.</think><action>go to cabinet 1</action>"""
NOTHING = "Nothing happens."


def start_game(path: str) -> Any:
    """Return the TextWorld environment of a game file, with readable names.

    ALFWorld's handcoded expert is left out: nothing reads its plan, and it may raise in the middle of a rollout.
    """
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no game file {path!r}")
    infos = textworld.EnvInfos(description=True, inventory=True, admissible_commands=True)
    return textworld.start(path, request_infos=infos, wrappers=[AlfredDemangler()])


class Household(Game):
    """One task; the reward is 1 when it is done.

    Args:
        path: the game file.
        lost: reward of a rollout that does not end.
    """

    def __init__(self, path: str, *, lost: float) -> None:
        self.reward = lost
        self.env = start_game(path)

    def begin(self) -> str:
        """Return what is to be seen, and the task."""
        return f"Observation: {self.env.reset().feedback}"

    def answer(self, text: str) -> Reply:
        """Do the action of a reply."""
        action = self.action_of(text)
        if not action:
            return Reply(f"Observation: {NOTHING} {NO_ACTION}", is_valid=False)
        state, score, is_done = self.env.step(action)
        if is_done:
            self.reward = float(score)
        is_valid = NOTHING not in state.feedback
        note = "" if is_valid else " Is the action one of the list, and are its things here?"
        return Reply(f"Observation: {state.feedback}{note}", is_done=bool(is_done), is_valid=is_valid)

    def action_of(self, text: str) -> str:
        """Return the action of a reply, or nothing."""
        return parse_action(text)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
