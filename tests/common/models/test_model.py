"""The wrapper that workflows hold: identities, history, synchronous forms."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from transformers import PreTrainedModel

from tests.common.models.families import TEMPLATES
from tests.engine.engines import engine, recomputed, response, run
from tests.tiny import CHARACTERS, tiny_model
from trinity.common.config import Config
from trinity.common.config.model import InferenceModelConfig, ModelConfig
from trinity.common.errors import DataError, DeadlineError, EngineError
from trinity.common.experience import Experience
from trinity.common.models import ModelWrapper, load_tokenizer
from trinity.engine.settings import EngineSettings
from trinity.engine.torch.engine import TorchEngine

Made = tuple[Path, PreTrainedModel]
R = TypeVar("R")
ASK = [{"role": "user", "content": "12+34="}]


def with_wrapper(path: Path, work: Callable[[ModelWrapper], Awaitable[R]], **options: object) -> R:
    async def call() -> R:
        async with engine(path) as made:
            defaults = {"max_tokens": 8, "ignore_eos": True}
            return await work(ModelWrapper(made, generate_kwargs=defaults, **options))

    return run(call())


def test_chat_renders_the_conversation(llama: Made) -> None:
    (made,) = with_wrapper(llama[0], lambda wrapper: wrapper.chat_async(ASK))
    assert made.prompt_text == "12+34=" and made.response_length == 8


def test_arguments_of_a_call_win_over_the_defaults(llama: Made) -> None:
    made = with_wrapper(llama[0], lambda wrapper: wrapper.chat_async(ASK, n=3, max_tokens=2))
    assert [exp.response_length for exp in made] == [2, 2, 2]


@pytest.mark.difference("`ModelWrapper.get_lora_request`", "`ModelWrapper.get_current_load`")
def test_published_methods_for_an_engine_chosen_by_hand(llama: Made) -> None:
    async def work(wrapper: ModelWrapper) -> tuple[bool, dict[str, float]]:
        await wrapper.chat_async(ASK, n=2)
        return wrapper.get_lora_request() is None, await wrapper.model.stats()

    names_none, stats = with_wrapper(llama[0], work)
    assert names_none and stats["queue"] == 0.0 and not hasattr(ModelWrapper, "get_current_load")


def test_generate_returns_the_samples_of_all_prompts_in_order(llama: Made) -> None:
    made = with_wrapper(llama[0], lambda wrapper: wrapper.generate_async(["1=", "2+2="], n=2))
    assert [exp.prompt_text for exp in made] == ["1=", "1=", "2+2=", "2+2="]
    assert len(with_wrapper(llama[0], lambda wrapper: wrapper.generate_async("1="))) == 1


def test_samples_derive_from_the_identity_of_the_rollout(llama: Made) -> None:
    async def work(wrapper: ModelWrapper) -> list[list[int]]:
        group = await wrapper.for_run(3, 1, 0, num_runs=4).chat_async(ASK, n=4)
        alone = [(await wrapper.for_run(3, 1, run_id).chat_async(ASK))[0] for run_id in (3, 2, 1, 0)]
        assert [response(exp) for exp in group] == [response(exp) for exp in reversed(alone)]
        one = wrapper.for_run(3, 1, 0)
        turns = [(await one.chat_async(ASK))[0] for _ in range(2)]
        other_task = await wrapper.for_run(3, 2, 0).chat_async(ASK)
        other_step = await wrapper.for_run(4, 1, 0).chat_async(ASK)
        return [response(exp) for exp in (*turns, *other_task, *other_step)]

    first, second, task, step = with_wrapper(llama[0], work)
    assert len({tuple(tokens) for tokens in (first, second, task, step)}) == 4


def test_a_seed_of_a_call_repeats_its_samples_within_a_rollout_alone(llama: Made) -> None:
    async def work(wrapper: ModelWrapper) -> dict[str, list[list[int]]]:
        one, other = wrapper.for_run(3, 1, 0), wrapper.for_run(3, 1, 1)
        plain = wrapper.for_run(3, 1, 0)
        asked = {
            "first": await one.chat_async(ASK, seed=7, n=3),
            "again": await one.chat_async(ASK, seed=7, n=3),
            "other seed": await one.chat_async(ASK, seed=8, n=3),
            "as text": await one.generate_async("12+34=", seed=7, n=3),
            "other rollout": await other.chat_async(ASK, seed=7, n=3),
            "fifth": await one.chat_async(ASK, n=3),
        }
        for _ in range(5):
            asked["fifth without seeds"] = await plain.chat_async(ASK, n=3)
        return {name: [response(exp) for exp in made] for name, made in asked.items()}

    got = with_wrapper(llama[0], work)
    assert got["first"] == got["again"] == got["as text"]
    assert got["fifth"] == got["fifth without seeds"], "without a seed the number of the call decides"
    different = [*got["first"], *got["other seed"], *got["other rollout"], *got["fifth"]]
    assert len({tuple(tokens) for tokens in different}) == 12


def test_seeds_repeat_in_deterministic_rounds_also_for_calls_at_once(llama: Made) -> None:
    async def work() -> list[list[int]]:
        async with engine(llama[0], is_deterministic=True) as made:
            model = ModelWrapper(made, generate_kwargs={"max_tokens": 8, "ignore_eos": True}).for_run(3, 1, 0)
            texts = ["1+1=", "12+34=", "1+1="]
            one = await model.generate_async(texts, seed=7)
            other = await model.generate_async(texts[::-1], seed=7)
            return [response(exp) for exp in (*one, *other)]

    first, second, third, *reverse = run(work())
    assert first == third and reverse == [first, second, first]


def test_further_samples_of_a_rollout_are_not_those_of_the_next(llama: Made) -> None:
    """Of the best of several: each rollout asks for three, and the group has no sample twice."""

    async def work(wrapper: ModelWrapper) -> list[list[int]]:
        asked = [wrapper.for_run(3, 1, run_id).chat_async(ASK, n=3, max_tokens=12) for run_id in range(4)]
        together = await wrapper.for_run(3, 1, 0, num_runs=4).chat_async(ASK, n=12, max_tokens=12)
        groups = await asyncio.gather(*asked)
        # Sample by sample: all rollouts' first one, then all rollouts' second one.
        in_turn = [group[number] for number in range(3) for group in groups]
        assert [response(exp) for exp in together] == [response(exp) for exp in in_turn]
        return [response(exp) for exp in together]

    assert len({tuple(tokens) for tokens in with_wrapper(llama[0], work)}) == 12


def test_a_late_call_is_recorded_where_it_began(llama: Made) -> None:
    """A workflow that is reset takes the next rollout; a call that it has left behind is not of that one."""

    async def work(wrapper: ModelWrapper) -> tuple[list[int], list[int]]:
        model = wrapper.for_run(0, 1, 0)
        first = model.history
        late = asyncio.ensure_future(model.chat_async(ASK))
        await asyncio.sleep(0)
        model.take_over(wrapper.for_run(0, 2, 0))
        own = await model.chat_async(ASK)
        assert model.history == own and first == await late
        return response(own[0]), response(first[0])

    own, other = with_wrapper(llama[0], work, enable_history=True)
    assert own != other


def test_history_holds_what_was_said(llama: Made) -> None:
    async def work(wrapper: ModelWrapper) -> None:
        clone = wrapper.clone_with_isolated_history()
        first = await wrapper.chat_async(ASK, n=2)
        second = await wrapper.generate_async("1=")
        assert wrapper.extract_experience_from_history(clear_history=False) == [*first, *second]
        assert wrapper.extract_experience_from_history() == [*first, *second]
        assert wrapper.extract_experience_from_history() == []
        assert clone.extract_experience_from_history() == []

    with_wrapper(llama[0], work, enable_history=True)


def test_a_history_that_nobody_extracts_keeps_the_newest_and_counts_the_others(
    llama: Made, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(wrapper: ModelWrapper) -> None:
        said = [await wrapper.chat_async(ASK) for _ in range(4)]
        assert wrapper.extract_experience_from_history(clear_history=False) == [*said[2], *said[3]]
        assert wrapper.history.dropped == 2
        said.append(await wrapper.chat_async(ASK))
        assert wrapper.extract_experience_from_history() == [*said[3], *said[4]] and wrapper.history.dropped == 3

    with_wrapper(llama[0], work, enable_history=True, rollout_config=InferenceModelConfig(history_limit=2))
    warnings = [record.getMessage() for record in caplog.records if "nobody extracts" in record.getMessage()]
    # The first time, and for every further two of them.
    assert ["oldest 1 " in warnings[0], "oldest 2 " in warnings[1], len(warnings)] == [True, True, 2]


def test_a_history_that_is_not_recorded_says_which_key_turns_it_on(llama: Made) -> None:
    async def work(wrapper: ModelWrapper) -> None:
        await wrapper.chat_async(ASK)
        with pytest.raises(EngineError, match="explorer.rollout_model.enable_history"):
            wrapper.extract_experience_from_history()

    with_wrapper(llama[0], work)


def test_synchronous_forms_work_from_a_thread(llama: Made) -> None:
    async def work(wrapper: ModelWrapper) -> None:
        one, same = wrapper.for_run(1, 0, 0), wrapper.for_run(1, 0, 0)
        blocking = await asyncio.to_thread(lambda: one.chat(ASK))
        awaited = await same.chat_async(ASK)
        assert response(blocking[0]) == response(awaited[0])
        tokens = awaited[0].tokens.tolist()
        assert torch.equal(await asyncio.to_thread(wrapper.logprobs, tokens), await wrapper.logprobs_async(tokens))
        assert await asyncio.to_thread(wrapper.get_message_token_len, ASK) == 6
        assert len(await asyncio.to_thread(lambda: wrapper.generate(["1=", "2="]))) == 2

    with_wrapper(llama[0], work)


def test_synchronous_forms_work_without_any_event_loop(llama: Made) -> None:
    """As in a script: nothing but the wrapper and the engine's thread."""

    config = ModelConfig(model_path=str(llama[0]), max_model_len=64)
    made = TorchEngine(EngineSettings(model=config, dtype="float32", device="cpu"))
    run(made.prepare())
    wrapper = ModelWrapper(made, generate_kwargs={"max_tokens": 3, "ignore_eos": True})
    try:
        assert wrapper.chat(ASK)[0].response_length == 3
    finally:
        run(made.shutdown())


def test_a_synchronous_call_on_the_event_loop_is_refused(llama: Made) -> None:
    async def work(wrapper: ModelWrapper) -> None:
        with pytest.raises(EngineError, match="_async"):
            wrapper.chat(ASK)

    with_wrapper(llama[0], work)


def test_a_synchronous_wait_ends_at_its_deadline(llama: Made) -> None:
    async def call() -> None:
        async with engine(llama[0], is_deterministic=True) as made:
            await made.join_round("never asks")
            wrapper = ModelWrapper(made, timeout_s=0.2)
            with pytest.raises(DeadlineError, match="explorer.max_timeout"):
                await asyncio.to_thread(wrapper.chat, ASK)

    run(call())


def test_a_conversation_becomes_an_experience(llama: Made) -> None:
    talk = [*ASK, {"role": "assistant", "content": "46"}, {"role": "user", "content": ";1+1="}]
    talk.append({"role": "assistant", "content": "2"})

    async def work(wrapper: ModelWrapper) -> Experience:
        blocking = await asyncio.to_thread(wrapper.convert_messages_to_experience, talk)
        made = await wrapper.convert_messages_to_experience_async(talk, temperature=0.5)
        assert torch.equal(made.tokens, blocking.tokens)
        with pytest.raises(EngineError, match="assistant message"):
            await wrapper.convert_messages_to_experience_async(ASK)
        return made

    made = with_wrapper(llama[0], work)
    assert made.prompt_text == "12+34=" and made.messages == talk
    assert made.action_mask.tolist() == [True] * 3 + [False] * 5 + [True] * 2
    assert (made.logprobs - recomputed(llama[1], made, temperature=0.5)).abs().max() <= 1e-5


@pytest.mark.difference("A conversation as one experience")
def test_a_template_that_rewrites_what_was_said_is_refused(tmp_path: Path) -> None:
    """Qwen3 leaves the thoughts of earlier turns out: they were said, but are not in later prompts."""
    template = (TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8")
    tiny_model(tmp_path, "qwen3", chat_template=template, characters=CHARACTERS + "|_")
    thought = {"role": "assistant", "content": "<think>\na\n</think>\n\nb"}
    more = [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]

    async def work(wrapper: ModelWrapper) -> Experience:
        with pytest.raises(DataError, match=r"E4021.*prompt of messages\[3\].*response messages\[1\]") as caught:
            await wrapper.convert_messages_to_experience_async([*ASK, thought, *more])
        assert caught.value.code == "E4021"
        return await wrapper.convert_messages_to_experience_async([{"role": "user", "content": "1"}, more[1]])

    made = with_wrapper(tmp_path, work)
    tokenizer = load_tokenizer(ModelConfig(model_path=str(tmp_path)))
    said = made.tokens[made.prompt_length :][made.action_mask]
    assert tokenizer.decode(said.tolist()) == "d<|im_end|>", "without the empty thought that the template adds"


def test_a_conversation_that_is_too_long_is_cut_and_marked(llama: Made) -> None:
    talk = [*ASK, {"role": "assistant", "content": "7" * 100}]
    made = with_wrapper(llama[0], lambda wrapper: wrapper.convert_messages_to_experience_async(talk))
    assert len(made.tokens) == 64 and made.truncate_status == "response_truncated"


def test_a_workflow_keeps_state(llama: Made) -> None:
    async def work(wrapper: ModelWrapper) -> None:
        await wrapper.set_workflow_state({"a": 1})
        await wrapper.set_workflow_state({"b": 2})
        assert await wrapper.get_workflow_state() == {"a": 1, "b": 2}
        await wrapper.clean_workflow_state()
        assert await wrapper.get_workflow_state() == {}

    with_wrapper(llama[0], work)


def test_names_and_versions_are_at_hand(llama: Made) -> None:
    path, model = llama
    config = Config.model_validate({"model": {"model_path": str(path)}, "explorer": {"max_timeout": 7}})

    async def work(wrapper: ModelWrapper) -> None:
        assert wrapper.model_path == wrapper.model_name == str(path)
        assert wrapper.timeout_s == 7 and wrapper.api_key == "EMPTY"
        await wrapper.model.update_weights(dict(model.named_parameters()), version=4)
        assert wrapper.model_version == 4 and await wrapper.model_version_async == 4
        assert wrapper.generate_kwargs["max_tokens"] == 8

    with_wrapper(path, work, config=config)


def test_without_an_endpoint_there_is_no_openai_client(llama: Made) -> None:
    async def work(wrapper: ModelWrapper) -> None:
        for method in (wrapper.get_openai_client, wrapper.get_openai_async_client):
            with pytest.raises(EngineError, match="enable_openai_api: true") as refused:
                method()
            assert refused.value.code == "E5612"

    with_wrapper(llama[0], work)


def test_the_template_of_a_task_is_that_of_all_its_calls(llama: Made) -> None:
    template = "A{% if enable_thinking %}+{% endif %}{{ messages[0]['content'] }}"
    given = {"chat_template": template, "enable_thinking": True}

    async def work(wrapper: ModelWrapper) -> tuple[Experience, int, int]:
        own = wrapper.for_run(1, 1, template_args=given).clone_with_isolated_history()
        plain = wrapper.for_run(1, 1, template_args={"chat_template": None, "enable_thinking": None})
        (said,) = await own.chat_async(ASK)
        return said, await own.get_message_token_len_async(ASK), await plain.get_message_token_len_async(ASK)

    said, length, plain = with_wrapper(llama[0], work)
    assert said.prompt_text == "A+12+34=" and (length, plain) == (8, 6)


def test_a_conversation_becomes_an_experience_by_the_template_of_its_task(llama: Made) -> None:
    template = (
        "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{% if m['role'] == 'assistant' %};{% endif %}"
    )
    given = {"chat_template": template + "{% endfor %}{% if add_generation_prompt %}a{% endif %}"}
    talk = [*ASK, {"role": "assistant", "content": "46"}]

    async def work(wrapper: ModelWrapper) -> Experience:
        return await wrapper.for_run(1, 1, template_args=given).convert_messages_to_experience_async(talk)

    made = with_wrapper(llama[0], work)
    assert (made.prompt_text, made.response_text) == ("u12+34=a", "46;")
