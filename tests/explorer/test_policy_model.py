"""A policy in place of a model: its answers are those of an engine in every other way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.explorer.rollouts import Rollouts
from trinity.common.errors import EngineError
from trinity.common.experience import Experience
from trinity.engine.settings import engine_settings
from trinity.explorer.policy_model import LOGPROB, PolicyModel
from trinity.launch.env_check.policies import Broken, Long, Named, Random, Special, Textual, all_policies


def answered(rollouts: Rollouts, policy: Any, **arguments: Any) -> Experience:
    """Return the answer of a policy to one conversation."""
    settings = engine_settings(rollouts.config())

    async def scenario() -> Experience:
        model = PolicyModel(settings, policy)
        await model.prepare()
        (found,) = await model.chat([{"role": "user", "content": "1+1="}], sample_ids=["1/0/0/0"], **arguments)
        return found

    return asyncio.run(scenario())


def test_a_text_ends_with_the_end_of_sequence(rollouts: Rollouts) -> None:
    found = answered(rollouts, Textual(lambda sample: f"of {sample[0]}"))
    assert found.response_text == "of 1" and found.info["finish_reason"] == "stop"
    assert found.tokens.tolist()[-1] == 1 and found.logprobs.tolist() == [LOGPROB] * 5
    assert answered(rollouts, Textual(lambda _: "")).tokens.tolist()[found.prompt_length :] == [1]


def test_stop_strings_and_the_longest_length_end_it_too(rollouts: Rollouts) -> None:
    stopped = answered(rollouts, Textual(lambda _: "one, two"), stop=["e,"])
    assert stopped.response_text == "on" and stopped.info["finish_reason"] == "stop"
    cut = answered(rollouts, Long(), max_tokens=7)
    assert cut.response_length == 7 and cut.truncate_status == "response_truncated"
    assert answered(rollouts, Textual(lambda _: "123"), max_tokens=3).truncate_status == "response_truncated"


@pytest.mark.parametrize("policy", [Random(), Special(), Broken()])
def test_an_answer_ends_once_and_is_the_same_each_time(rollouts: Rollouts, policy: Any) -> None:
    first, second = (answered(rollouts, policy, max_tokens=60) for _ in range(2))
    assert first.tokens.tolist() == second.tokens.tolist()
    assert first.tokens.tolist()[first.prompt_length :].count(1) == 1


def test_weights_are_refused(rollouts: Rollouts) -> None:
    model = PolicyModel(engine_settings(rollouts.config()), Random())
    with pytest.raises(EngineError, match="no weights"):
        asyncio.run(model.update_weights({}, version=1))
    with pytest.raises(EngineError, match="not prepared"):
        asyncio.run(model.generate("1"))


def test_policies_have_different_names() -> None:
    names = [policy.name for policy in all_policies([])]
    assert len(set(names)) == len(names) and isinstance(all_policies([])[0], Named)
