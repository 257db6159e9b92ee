"""ALFWorld's workflow over the package, on a small game that is written here: the real ones are a download.

The environment of the tests has no ALFWorld, whose parts `jericho` and `fast_downward_textworld` need a C++ compiler,
so a test of `make nightly` installs the extra into an environment of its own. WebShop is no package of a registry.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.common.workflows.envs.policy import Script, attempt
from tests.common.workflows.own_environment import outcome_with
from trinity.utils.packages import is_installed

PROBLEM = """
(define (problem mug) (:domain alfred)
 (:objects agent1 - agent  loc_0 loc_1 loc_2 - location  Cabinet_bar_1 Desk_bar_1 - receptacle  Mug_bar_1 - object
  CabinetType DeskType - rtype  MugType - otype)
 (:init (= (total-cost) 0) (atLocation agent1 loc_0)
  (receptacleType Cabinet_bar_1 CabinetType) (receptacleType Desk_bar_1 DeskType)
  (receptacleAtLocation Cabinet_bar_1 loc_1) (receptacleAtLocation Desk_bar_1 loc_2)
  (objectType Mug_bar_1 MugType) (canContain DeskType MugType) (canContain CabinetType MugType)
  (pickupable Mug_bar_1) (objectAtLocation Mug_bar_1 loc_1) (inReceptacle Mug_bar_1 Cabinet_bar_1))
 (:goal (inReceptacle Mug_bar_1 Desk_bar_1)))
"""
ACTIONS = ["go to cabinet 1", "take mug 1 from cabinet 1", "fly", "go to desk 1", "move mug 1 to desk 1"]


@pytest.fixture
def game(tmp_path: Path) -> str:
    """Return a game file: a mug in a cabinet, which belongs on a desk."""
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    grammar = Path(ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", "put a mug on the desk")
    written = {"pddl_domain": Path(ALFRED_PDDL_PATH).read_text(), "grammar": grammar, "pddl_problem": PROBLEM}
    file = tmp_path / "game.tw-pddl"
    file.write_text(json.dumps(written))
    return str(file)


@pytest.mark.skipif(not is_installed("alfworld"), reason="alfworld is not installed")
@pytest.mark.parametrize("name", ["alfworld_workflow", "step_wise_alfworld_workflow"])
def test_a_game_of_the_package_is_played(game: str, name: str) -> None:
    model = Script([f"<think>so</think><action>{action}</action>" for action in ACTIONS])
    made = attempt(name, model, {"prompt": game}, max_env_steps=9)
    assert made[-1].reward == 1.0 and made[-1].metrics["env_done"] == 1
    seen = [messages[-1]["content"] for messages in model.asked]
    assert "put a mug on the desk" in seen[0] and "you see a mug 1" in seen[1] and "Nothing happens" in seen[3]
    (lost,) = attempt("alfworld_workflow", Script(["<action>look</action>"] * 2), {"prompt": game}, max_env_steps=2)
    assert lost.reward == -0.1


@pytest.mark.nightly
@pytest.mark.timeout(2400)
@pytest.mark.skipif(is_installed("alfworld"), reason="the other test has the package")
def test_the_package_in_an_environment_of_its_own(tmp_path: Path) -> None:
    assert "2 passed" in outcome_with("alfworld", [Path(__file__)], tmp_path / "env")
