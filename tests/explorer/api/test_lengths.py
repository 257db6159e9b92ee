"""Lengths of requests: `max_model_len` alone holds, whatever the keys of `model.chat` and `model.generate` say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.explorer.api.test_endpoint import Served
from tests.tiny import CHARACTERS
from trinity.common.models.model import ModelWrapper
from trinity.common.workflows.envs.episode import EpisodeWorkflow, Game, Reply
from trinity.common.workflows.task import Task

LENGTHS = {"max_model_len": 48, "max_prompt_tokens": 24, "max_response_tokens": 8, "min_response_tokens": 6}
FORMS = ("chat/completions", "completions", "responses", "messages")
STOPS = list(CHARACTERS)
WAYS = ("stop", "left")


@pytest.fixture(scope="module", params=WAYS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    made = Served(folder, model=LENGTHS | {"prompt_truncation": request.param})
    assert (made.config.model.max_prompt_tokens, made.config.model.enable_prompt_truncation) == (24, True)
    yield made
    made.close()


def asked(wrapper: ModelWrapper, form: str, text: str, **given: Any) -> httpx.Response:
    """Return the answer to a text, in one of the interfaces."""
    body = given | {
        "chat/completions": {"messages": [{"role": "user", "content": text}]},
        "completions": {"prompt": text},
        "responses": {"input": text},
        "messages": {"messages": [{"role": "user", "content": text}]},
    }[form]  # fmt: skip
    if form == "messages":
        body.setdefault("max_tokens", LENGTHS["max_model_len"])  # it has to be given in this interface
    elif form == "responses" and "max_tokens" in body:
        body["max_output_tokens"] = body.pop("max_tokens")
    headers = {"Authorization": f"Bearer {wrapper.api_key}"}
    return httpx.post(f"{wrapper.api_address}/v1/{form}", json=body, headers=headers, timeout=60, trust_env=False)


def text_of(model: ModelWrapper, form: str, tokens: int) -> str:
    """Return a text whose prompt has so many tokens."""
    text = "1"
    is_plain = form == "completions"
    while True:
        messages = [{"role": "user", "content": text}]
        found = len(text) if is_plain else model.get_message_token_len(messages)
        if found == tokens:
            return text
        text += "1"


@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_below_the_length_of_the_model_is_answered_as_it_is(served: Served, form: str) -> None:
    model = served.rollout()
    answer = asked(model, form, text_of(model, form, 30))
    assert answer.status_code == 200, answer.text
    (recorded,) = model.history
    assert recorded.prompt_length == 30 and recorded.truncate_status != "prompt_truncated"
    assert recorded.action_mask is None or recorded.action_mask.any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [48, 60])
def test_a_prompt_that_leaves_no_room_is_a_400(served: Served, form: str, tokens: int) -> None:
    model = served.rollout()
    answer = asked(model, form, text_of(model, form, tokens))
    assert answer.status_code == 400 and "max_model_len" in answer.text and not model.history


def test_without_max_tokens_a_response_may_fill_the_model_and_a_token_may_end_it(served: Served) -> None:
    model = served.rollout()
    text = text_of(model, "completions", 47)
    assert asked(model, "completions", text, ignore_eos=True).status_code == 200
    assert asked(model, "completions", text[:30], ignore_eos=True).status_code == 200
    assert [len(each.tokens) for each in model.history] == [48, 48]


def test_the_shortest_response_is_what_a_request_says(served: Served) -> None:
    """Each response is one of the first token that the model says, which is made an end by a stop string."""
    model = served.rollout()
    first = asked(model, "completions", "1", temperature=0, max_tokens=1).json()["choices"][0]["text"]
    assert first, "a token with a text"
    for given, is_short in (({}, True), ({"min_tokens": 3}, False)):
        assert asked(model, "completions", "1", temperature=0, max_tokens=8, stop=first, **given).status_code == 200
        assert (model.history[-1].response_length == 1) is is_short


def test_the_calls_of_a_workflow_keep_their_keys(served: Served) -> None:
    model = served.rollout()
    (cut,) = model.generate("1" * 30)
    way = served.config.model.prompt_truncation
    assert (cut.truncate_status == "prompt_truncated") == (way == "stop")
    assert cut.prompt_length == 24 and cut.response_length == (1 if way == "stop" else cut.response_length) <= 8


class Talk(EpisodeWorkflow):
    """An environment that never ends."""

    max_steps = 20  # type: ignore[assignment]

    def open(self) -> Game:
        return _Talking()


class _Talking(Game):
    def begin(self) -> str:
        return "1"

    def answer(self, text: str) -> Reply:
        return Reply("2+2=")

    def close(self) -> None:
        pass


def test_an_episode_ends_when_its_conversation_is_longer_than_a_prompt(tmp_path: Path) -> None:
    """Each response ends with its first character, so that none is cut."""
    for is_cut, longest in ((True, 24), (False, 47)):
        made = Served(tmp_path / str(is_cut), model=LENGTHS | {"enable_prompt_truncation": is_cut})
        try:
            model = made.rollout()
            task = Task(workflow=Talk, raw_task={}, workflow_args={}, rollout_args={"min_tokens": 0, "stop": STOPS})
            workflow = Talk(task=task, model=model)
            turns, _ = workflow.play(_Talking())
            following = model.get_message_token_len(workflow.messages)
        finally:
            made.close()
        assert len(turns) > 1 and turns[-1].prompt_length <= longest < following, (turns[-1].prompt_length, following)
