"""A conversation as one experience: no response that was sampled is tokenised again, and no other one unnoticed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.engines import engine, run
from tests.tiny import tiny_model
from trinity.common.constants import RETOKENISED
from trinity.common.experience import Experience
from trinity.common.models import ModelWrapper
from trinity.common.models import whole as whole_of
from trinity.common.models.whole import Whole, unfolded

ASK = {"role": "user", "content": "1+2="}
MORE = {"role": "user", "content": "3+4="}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose second stop token is not the one that its template writes, as with Qwen."""
    folder = tmp_path_factory.mktemp("llama")
    tiny_model(folder, "llama", seed=3, scale=3.0)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}))
    return folder


def with_rollout(folder: Path, work: Callable[[ModelWrapper], Awaitable[Any]]) -> Any:
    async def call() -> Any:
        async with engine(folder) as made:
            return await work(ModelWrapper(made, generate_kwargs={"max_tokens": 5, "ignore_eos": True}).for_run(1, 0))

    return run(call())


def said(text: str | None) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def actions(exp: Experience) -> tuple[list[int], list[float]]:
    """Return the tokens that are trained, with their log-probabilities."""
    assert exp.action_mask is not None and exp.logprobs is not None
    return exp.tokens[exp.prompt_length :][exp.action_mask].tolist(), exp.logprobs[exp.action_mask].tolist()


def stopped(wrapper: ModelWrapper, prompt: list[int], text: list[int]) -> Experience:
    """Give the rollout a response that ended with the second stop token."""
    values = -torch.arange(1.0, len(text) + 2)
    exp = Experience(tokens=torch.tensor([*prompt, *text, 0]), prompt_length=len(prompt), logprobs=values)
    exp.response_text, exp.info = "ab", {"model_version": 0, "finish_reason": "stop"}
    wrapper.turns.conversation([ASK]).add(exp)
    return exp


def test_a_conversation_that_is_not_one_sequence_has_the_sampled_tokens_of_each(llama: Path) -> None:
    async def work(wrapper: ModelWrapper) -> None:
        tokens = wrapper.words()
        ids = {text: number for number, text in tokens.items()}
        first = stopped(wrapper, [ids[each] for each in "1+2="], [ids["a"], ids["b"]])
        (second,) = await wrapper.chat_async([ASK, said("ab"), MORE])
        talk = [ASK, said("ab"), MORE, said(second.response_text)]
        made = await wrapper.convert_messages_to_experience_async(talk)
        assert isinstance(made, Whole) and actions(made) == actions(second) and RETOKENISED not in made.info
        made.reward, made.info = 0.5, made.info | {"advantage_group": "x"}
        one, two = unfolded([made])
        assert [actions(one), actions(two)] == [actions(first), actions(second)]
        assert type(two) is Experience and [exp.reward for exp in (one, two)] == [0.5, 0.5]
        assert one.info["trajectory"] == 0 and (two.info["trajectory"], two.info["follows"]) == (1, 0)
        assert one.info["advantage_group"] == "x" and one.info["finish_reason"] == "stop"
        numbers = [exp.info["trajectory"] for exp in unfolded([made, made])]
        assert numbers == [0, 1, 2, 3], "unique in a rollout with several conversations"
        made.reward, made.token_level_reward = None, torch.full((5,), 0.25)
        assert unfolded([made])[0].reward == 1.25
        assert made.to_dict().keys() == first.to_dict().keys()

    with_rollout(llama, work)


@pytest.mark.parametrize("other", [0, 1, 2])
def test_a_response_in_other_words_is_tokenised_and_counted_and_no_other_one(
    llama: Path, other: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The workflow rewrites one of three responses; both others keep what was sampled."""

    async def work(wrapper: ModelWrapper) -> None:
        whole_of._tell_of_retokenised.cache_clear()
        talk, sampled, tokens = [ASK], [], {text: number for number, text in wrapper.words().items()}
        for place in range(3):
            (answer,) = await wrapper.chat_async(talk)
            sampled.append(answer)
            talk += [said("7" if place == other else answer.response_text), MORE]
        made = [await wrapper.convert_messages_to_experience_async(talk) for _ in range(2)][0]
        assert made.info[RETOKENISED] == 1 and caplog.text.count("rollout/retokenised_turn_count") == 1
        trained = [actions(exp) for exp in unfolded([made])]
        ids, values = [i for one, _ in trained for i in one], [v for _, every in trained for v in every]
        for place, answer in enumerate(sampled):
            if place != other:
                own, probs = actions(answer)
                found = next(n for n in range(len(ids)) if ids[n : n + len(own)] == own)
                assert values[found : found + len(own)] == probs
                del ids[found : found + len(own)], values[found : found + len(own)]
        assert ids == [tokens["7"], 1], "the rewritten response with the end of its turn"
        last = unfolded([made])[-1].response_text or ""
        assert last.endswith("7<eos>" if other == 2 else sampled[2].response_text or "")

    with caplog.at_level("WARNING", "trinity"):
        with_rollout(llama, work)


def test_a_demonstration_is_one_sequence_and_counted(llama: Path) -> None:
    """Nothing of it was sampled; its log-probabilities are those of the current weights."""

    async def work(wrapper: ModelWrapper) -> None:
        made = await wrapper.convert_messages_to_experience_async([ASK, said("3"), MORE, said("7"), ASK])
        assert not isinstance(made, Whole) and made.info == {"model_version": 0, RETOKENISED: 2}
        scores = await wrapper.logprobs_async(made.tokens.tolist())
        assert torch.equal(made.logprobs, scores[made.prompt_length - 1 :])

    with_rollout(llama, work)


def test_a_rewritten_conversation_that_is_too_long_is_cut_and_all_of_it_counted(llama: Path) -> None:
    async def work(wrapper: ModelWrapper) -> None:
        (answer,) = await wrapper.chat_async([ASK])
        talk = [ASK, said(answer.response_text), MORE, said("7" * 100)]
        made = await wrapper.convert_messages_to_experience_async(talk)
        assert made.truncate_status == "response_truncated" and made.info[RETOKENISED] == 2

    with_rollout(llama, work)
