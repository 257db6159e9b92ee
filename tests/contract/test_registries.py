"""Registries as authors of plugins use them: every published form of registering, importing and asking."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trinity.catalogue import builtin_catalogue
from trinity.utils.registry import Registry

HEAD = "from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn\n"
BODY = "    def __call__(self, response, truth=None, prompt=None, **kwargs):\n        return {'mine': 1.0}\n"
FORMS = {
    "decorator": f"{HEAD}@REWARD_FUNCTIONS.register_module('mine')\nclass Mine(RewardFn):\n{BODY}",
    "keyword": f"{HEAD}@REWARD_FUNCTIONS.register_module(module_name='mine')\nclass Mine(RewardFn):\n{BODY}",
    "lazy": f"{HEAD}@REWARD_FUNCTIONS.register_module('mine', lazy=True)\nclass Mine(RewardFn):\n{BODY}",
    "named by the class": f"{HEAD}@REWARD_FUNCTIONS.register_module()\nclass mine(RewardFn):\n{BODY}",
    "call": (
        f"{HEAD}class Mine(RewardFn):\n{BODY}REWARD_FUNCTIONS.register_module(module_name='mine', module_cls=Mine)\n"
    ),
    "call in order": f"{HEAD}class Mine(RewardFn):\n{BODY}REWARD_FUNCTIONS.register_module('mine', Mine, True)\n",
    "other name": (
        "from trinity.common.rewards import REWARD_FUNCTIONS as REWARDS\nfrom trinity.common.rewards import RewardFn\n"
        f"@REWARDS.register_module('mine')\nclass Mine(RewardFn):\n{BODY}"
    ),
    "of its module": (
        "from trinity.common import rewards\nfrom trinity.common.rewards.reward_fn import RewardFn\n"
        f"@rewards.REWARD_FUNCTIONS.register_module('mine')\nclass Mine(RewardFn):\n{BODY}"
    ),
}
ASK = """
import sys
from trinity.utils.plugin_loader import load_plugins
from trinity.common.rewards import REWARD_FUNCTIONS
load_plugins([sys.argv[1]])
print(REWARD_FUNCTIONS.get("mine")()(response="a"))
"""


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_every_form_of_registering_is_read_and_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    catalogue = builtin_catalogue([tmp_path])
    assert "mine" in catalogue.names("reward_fn") and not catalogue.has_unknown_plugins
    done = subprocess.run([sys.executable, "-c", ASK, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "{'mine': 1.0}\n", done.stderr


def test_a_registry_of_ones_own() -> None:
    colours = Registry("colour", {"red": "fractions.Fraction"})
    assert colours.get("red").__name__ == "Fraction" and colours.get(None) is None

    @colours.register_module("green")
    class Green: ...

    class Other: ...

    with pytest.raises(ValueError, match="unknown colour 'blue'"):
        colours.get("blue")
    with pytest.raises(Exception, match="already registered"):
        colours.register_module("green", Other)
    assert colours.register_module("green", Other, force=True) is Other
    assert (colours.get("green"), colours.modules) == (Other, ["green", "red"])
