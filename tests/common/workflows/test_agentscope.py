"""Functions of AgentScope's users, as published, on a real endpoint and engine: what was sampled is trained.

The package is the installed one, else one of the tests' own that speaks its protocol over the real OpenAI client. The
environment of the tests has vLLM, which needs mcp 2, where AgentScope 1.0.21 cannot be imported: it asks mcp for
`streamablehttp_client`, which mcp 2 has no more. Its extra also brings litellm, which needs older versions of openai
and rich. So a test of `make nightly` installs the extra into an environment of its own and runs these tests there.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.common.workflows.own_environment import outcome_with
from tests.explorer.api.test_endpoint import Served
from trinity.common.config import Config
from trinity.common.errors import EnvironmentProblem, WorkflowError
from trinity.common.experience import Experience
from trinity.common.workflows import WORKFLOWS, Task
from trinity.explorer.wrappers import auxiliary_wrappers
from trinity.utils.packages import is_installed

STAND_INS = Path(__file__).parent / "stand_ins"
ROW = {"question": "12+34="}
SAID = [{"role": "user", "content": ROW["question"]}]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if is_installed("agentscope"):
        yield
        return
    with monkeypatch.context() as patch:
        patch.syspath_prepend(STAND_INS)
        importlib.invalidate_caches()
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "agentscope"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.close()


def made_workflow(name: str, model: Any = None, others: list[Any] | None = None, **args: Any) -> Any:
    rollout = {"temperature": 1.0, "max_tokens": 4}
    task = Task(workflow=WORKFLOWS.get(name), workflow_args=args, rollout_args=rollout, raw_task=ROW, batch_id=1)
    return task.to_workflow(model, others)


def text_of(answer: Any) -> str:
    return "".join(block["text"] for block in answer.content if block["type"] == "text")


async def two_turns(model: Any) -> str:
    first = text_of(await model(SAID))
    more = [{"role": "assistant", "content": first}, {"role": "user", "content": "?"}]
    return text_of(await model(SAID + more))


async def returns_number(task: Any, model: Any) -> float:
    await two_turns(model)
    return 0.5 if task == ROW else 0.0


async def returns_output(task: Any, model: Any, logger: Any) -> Any:
    from agentscope.tuner import WorkflowOutput

    logger.info("a turn")
    return WorkflowOutput(reward=0.5, response=await two_turns(model), metrics={"turns": 2.0})


async def returns_response(task: Any, model: Any) -> Any:
    from agentscope.tuner import WorkflowOutput

    return WorkflowOutput(response=await two_turns(model), metrics={"turns": 2.0})


async def judges(task: Any, response: Any, auxiliary_models: Any) -> Any:
    from agentscope.tuner import JudgeOutput

    assert task == ROW and auxiliary_models == {}
    return JudgeOutput(reward=float(len(response) > 0), metrics={"judged": 1.0})


def attempt(served: Served, name: str, **args: Any) -> list[Experience]:
    return asyncio.run(made_workflow(name, served.rollout(), **args).run_async())


def by_wrapper(served: Served) -> list[Experience]:
    model = served.rollout()
    options = {"temperature": 1.0, "max_tokens": 4}
    (first,) = model.chat(SAID, **options)
    more = [{"role": "assistant", "content": first.response_text}, {"role": "user", "content": "?"}]
    (second,) = model.chat(SAID + more, **options)
    return [first, second]


def sampled(experiences: list[Experience]) -> list[tuple[list[int], list[float]]]:
    return [(exp.tokens.tolist(), exp.logprobs.tolist()) for exp in experiences if exp.logprobs is not None]


@pytest.mark.parametrize(
    ("name", "args", "reward", "metrics"),
    [
        ("agentscope_workflow_adapter", {"workflow_func": returns_number}, 0.5, {}),
        ("agentscope_workflow_adapter", {"workflow_func": f"{__name__}:returns_number"}, 0.5, {}),
        ("agentscope_workflow_adapter_v1", {"workflow_func": returns_output}, 0.5, {"turns": 2.0}),
        (
            "agentscope_workflow_adapter_v1",
            {"workflow_func": returns_response, "judge_func": judges},
            1.0,
            {"turns": 2.0, "judged": 1.0},
        ),
    ],
)
def test_an_agent_trains_the_tokens_that_the_wrapper_samples(
    package: None, served: Served, name: str, args: dict[str, Any], reward: float, metrics: dict[str, float]
) -> None:
    made = attempt(served, name, **args)
    expected = sampled(by_wrapper(served))
    assert len(expected) == 2 and sampled(made) == expected
    assert [(exp.eid.step, exp.reward) for exp in made] == [(0, reward), (1, reward)]
    assert metrics.items() <= (made[-1].metrics or {}).items() and not made[0].metrics.keys() & metrics


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("agentscope_workflow_adapter", {}, "workflow_func must be an async function or its text .* got None"),
        ("agentscope_workflow_adapter", {"workflow_func": "json:absent"}, "module json has no function absent"),
        ("agentscope_workflow_adapter", {"workflow_func": returns_response}, "must return its reward, a number, got"),
        ("agentscope_workflow_adapter_v1", {"workflow_func": returns_number}, "must return a WorkflowOutput .* float"),
        ("agentscope_workflow_adapter_v1", {"workflow_func": returns_response}, "no reward and there is no judge_func"),
    ],
)  # fmt: skip
def test_what_a_function_must_return_is_said(
    package: None, served: Served, name: str, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkflowError, match=message):
        attempt(served, name, **args)


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("judge", "critic"), ["judge", "critic"]), (("judge", None), ["judge", "PATH"]), ((None, None), ["PATH", 1])],
)
def test_each_auxiliary_model_is_found_by_its_own_name(
    package: None, served: Served, names: tuple[str | None, ...], expected: list[str | int]
) -> None:
    """Two on one engine; each hears what is asked under its name."""
    path = served.wrapper.model_path
    sections = [{"model_path": path, "name": name} for name in names]
    config = Config.model_validate({"name": "job", "explorer": {"auxiliary_models": sections}})
    others = [other.for_run(1, 0) for other in auxiliary_wrappers(config, [served.engine] * 2, served.endpoint)]
    for other in others:
        other._loop, other.enable_history = None, True
    found: list[str | int] = []

    async def asks(task: Any, model: Any, auxiliary_models: Any) -> Any:
        from agentscope.tuner import WorkflowOutput

        for number, (name, other) in enumerate(auxiliary_models.items()):
            found.append(name)
            await other([{"role": "user", "content": f"{number}="}])
        return WorkflowOutput(reward=1.0, response=await two_turns(model))

    workflow = made_workflow("agentscope_workflow_adapter_v1", served.rollout(), others, workflow_func=asks)
    asyncio.run(workflow.run_async())
    assert found == [path if name == "PATH" else name for name in expected]
    heard = [[exp.prompt_text for exp in other.extract_experience_from_history()] for other in others]
    assert heard == [["0="], ["1="]], "each name leads to its own model"


@pytest.mark.skipif(is_installed("agentscope"), reason="agentscope is installed, so that nothing is missing")
def test_the_extra_is_named_where_the_package_is_missing(served: Served) -> None:
    with pytest.raises(EnvironmentProblem, match=r"pip install 'trinity-rft\[agentscope\]'"):
        made_workflow("agentscope_workflow_adapter_v1", served.rollout(), workflow_func=returns_output)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.skipif(is_installed("agentscope"), reason="the other tests have the package itself")
def test_the_package_itself_in_an_environment_of_its_own(tmp_path: Path) -> None:
    files = [Path(__file__).with_name(f"{name}.py") for name in ("test_agentscope", "test_agentscope_react")]
    said = outcome_with("agentscope", files, tmp_path / "env")
    assert " 1 skipped" in said and "nothing is missing" in said, "with the package itself"
