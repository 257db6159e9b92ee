"""`math_rm_workflow`, `math_eval_workflow` and the reward functions that see the conversation."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_validate import app, runner
from tests.common.config.conftest import MINIMAL
from tests.common.workflows.test_judged_workflows import Spoken, made, run
from trinity.common.errors import EnvironmentProblem
from trinity.common.rewards import REWARD_FUNCTIONS, RewardError, RewardFn
from trinity.utils.registry import UnknownNameError

# The part of rm-gallery 0.1.7 that the adapter calls, by its own names; `plain_length` is a reward of a user.
GALLERY = {
    "__init__.py": "",
    "core/__init__.py": "",
    "core/data/__init__.py": "",
    "core/data/schema.py": """
        from typing import Any
        from pydantic import BaseModel, Field

        class Dimension(BaseModel):
            name: str
            reason: str = ""
            score: float

        class Reward(BaseModel):
            score: float = 0.0
            details: list[Dimension] = Field(default_factory=list)

        class ChatMessage(BaseModel):
            role: Any
            content: Any = ""

        class Step(ChatMessage):
            label: dict[str, Any] | None = Field(default_factory=dict)
            reward: Reward = Field(default_factory=Reward)

        class DataOutput(BaseModel):
            answer: Step

        class DataSample(BaseModel):
            unique_id: str
            input: list[ChatMessage]
            output: list[DataOutput]
    """,
    "core/reward/__init__.py": "",
    "core/reward/registry.py": """
        from rm_gallery.core.data.schema import Dimension, Reward

        class PlainLength:
            def __init__(self, what="details", scale=1.0):
                self.what, self.scale = what, scale

            def evaluate(self, sample):
                answer = sample.output[0].answer
                if self.what == "raise":
                    raise TimeoutError("no answer of the service")
                size = self.scale * len(answer.content) + len(sample.input) * 100 + len(answer.label["reference"]) * 1e4
                found = {"details": {"details": [Dimension(name="size", score=size)]}, "score": {"score": 3.5}}
                found["broken"] = {"details": [Dimension(name="size", score=0, reason="Exception occurred: alarm")]}
                found["infinite"] = {"details": [Dimension(name="size", score=float("inf"))]}
                answer.reward = Reward(**found.get(self.what, {}))
                return sample

        class RewardRegistry:
            _registry = {"plain_length": PlainLength}
    """,
}


@pytest.fixture
def gallery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package rm_gallery that can be imported."""
    for name, text in GALLERY.items():
        file = tmp_path / "packages" / "rm_gallery" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "rm_gallery"]:
        del sys.modules[name]


def gallery_reward(**args: Any) -> Any:
    return REWARD_FUNCTIONS.get("rm_gallery_reward")("plain_length", **args)


NAMES = ["math_rm_workflow", "async_math_rm_workflow"]


@pytest.mark.parametrize("name", NAMES)
def test_a_reward_model_of_the_gallery_sees_the_whole_conversation(gallery: None, name: str) -> None:
    reward = {"reward_fn": REWARD_FUNCTIONS.get("rm_gallery_reward")}
    args = {"reward_name": "plain_length", "scale": 2.0}
    system = {"system_prompt": "Be brief."}
    model = Spoken("four", "eight")
    first, second = run(made(name, model, **reward, reward_fn_args=args, workflow_args=system))
    assert len(model.asked[0][0]) == 2
    assert first.metrics == {"size": 2 * 4 + 2 * 100 + 1e4} and first.reward == first.metrics["size"]
    assert second.reward == 2 * 5 + 2 * 100 + 1e4 and [first.eid.run, second.eid.run] == [4, 5]


def test_other_workflows_give_it_the_prompt(gallery: None) -> None:
    reward = {"reward_fn": REWARD_FUNCTIONS.get("rm_gallery_reward"), "reward_fn_args": {"reward_name": "plain_length"}}
    (experience,) = run(made("simple_workflow", Spoken("four"), repeats=1, **reward))
    assert experience.reward == 4 + 100 + 1e4
    assert gallery_reward(what="score")("four", prompt="q") == {"reward": 3.5}


@pytest.mark.difference("A scorer that fails")
@pytest.mark.parametrize("what", ["raise", "nothing", "broken", "infinite"])
def test_a_reward_model_that_fails_gives_no_score(gallery: None, what: str) -> None:
    with pytest.raises(RewardError, match="E5110.*PlainLength of rm-gallery"):
        gallery_reward(what=what)("four", prompt="q", truth="7")


def test_an_unknown_reward_model_is_refused_with_the_known_ones(gallery: None) -> None:
    with pytest.raises(UnknownNameError, match="E1701.*'nope'; known: plain_length"):
        REWARD_FUNCTIONS.get("rm_gallery_reward")("nope")


def test_without_the_package_validate_and_the_reward_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rm_gallery", None)
    with pytest.raises(EnvironmentProblem, match=r"E3301.*trinity-rft\[rm_gallery\].*--no-deps 'rm-gallery"):
        gallery_reward()
    (tmp_path / "run.yaml").write_text(MINIMAL)
    taskset = "buffer.explorer_input.taskset"
    sets = [f"{taskset}.default_reward_fn_type=rm_gallery_reward", f"{taskset}.reward_fn_args.reward_name=f1_score"]
    command = ["validate", "-c", str(tmp_path / "run.yaml"), *(word for each in sets for word in ("--set", each))]
    shown = " ".join(runner.invoke(app, command).output.split())
    assert f"error[E3301]: `{taskset}.default_reward_fn_type` needs the package rm_gallery" in shown
    assert "trinity-rft[rm_gallery]' && pip install --no-deps" in shown
    assert "E3301" not in runner.invoke(app, [*command, "--schema-only"]).output


@pytest.mark.difference("Reward functions of `math_rm_workflow`")
@pytest.mark.parametrize("name", NAMES)
def test_a_reward_function_names_what_it_wants(name: str) -> None:
    class Own(RewardFn):
        def __call__(self, experience: Any, messages: Any, ground_truth: Any, response: str) -> float:
            assert experience.response_text == response == "four" and ground_truth == "7"
            return float(messages == [{"role": "user", "content": "3+4="}])

    (experience,) = run(made(name, Spoken("four"), repeats=1, reward_fn=Own))
    assert experience.reward == 1.0


@pytest.mark.difference("`math_eval_workflow`")
@pytest.mark.parametrize("name", ["math_eval_workflow", "async_math_eval_workflow"])
def test_an_evaluation_asks_for_a_box_and_samples_as_the_taskset_says(name: str) -> None:
    model = Spoken(r"so \boxed{7}", "8")
    right, wrong = run(made(name, model, is_eval=True))
    (system, user), args = model.asked[0]
    assert args == {"n": 2, "temperature": 0.5}
    assert system["content"] == "You are a helpful assistant."
    assert user["content"].startswith("3+4=\n") and user["content"].endswith(r"within \boxed{}.")
    assert (right.reward, wrong.reward) == (1.0, 0.0) == (right.metrics["accuracy"], wrong.metrics["accuracy"])
