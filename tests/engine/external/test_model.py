"""External models against a real server: answers, log-probabilities, further attempts, deadlines, refusals, secrets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedModel

from tests.engine.engines import recomputed, response, run
from tests.engine.external.openai_server import Service, served, started
from trinity.common.config import Config
from trinity.common.config.model import ModelConfig
from trinity.common.errors import DeadlineError, EngineError, EnvironmentProblem
from trinity.common.experience import Experience
from trinity.common.models import ModelWrapper, create_auxiliary_models, load_tokenizer
from trinity.engine.external.model import ExternalModel
from trinity.engine.torch.engine import TorchEngine
from trinity.utils.log import redact

Made = tuple[Path, PreTrainedModel]
T = TypeVar("T")
KEY = "sk-canary-4711-of-the-server"
QUESTION = [{"role": "user", "content": "1+1="}]


@pytest.fixture(scope="module")
def running(llama: Made) -> Iterator[TorchEngine]:
    with started(llama[0]) as made:
        yield made


@pytest.fixture
def service(running: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A server of this test alone: what another gave up waiting for may be on its way still."""
    with served(running) as made:
        monkeypatch.setenv("JUDGE_URL", made.url)
        monkeypatch.setenv("JUDGE_KEY", KEY)
        yield made


def config(llama: Made, *, timeout_s: float = 30.0, **section: Any) -> Config:
    server = {"base_url_env": "JUDGE_URL", "api_key_env": "JUDGE_KEY", "model_name": "judge"}
    model = {"model_path": str(llama[0]), "max_model_len": 48, "max_response_tokens": 7, "temperature": 0.9}
    auxiliary = [{"engine_type": "external", "external_model_config": server} | section]
    return Config.model_validate(
        {"model": model, "explorer": {"auxiliary_models": auxiliary, "max_timeout": timeout_s}}
    )


def use(made: Config, work: Callable[[ExternalModel], Awaitable[T]]) -> T:
    """Return what `work` does with the prepared model, which is shut down in any case."""
    (model,) = create_auxiliary_models(made)
    assert isinstance(model, ExternalModel)

    async def whole() -> T:
        await model.prepare()
        try:
            return await work(model)
        finally:
            await model.shutdown()

    return run(whole())


def test_an_answer_has_the_servers_tokens_and_logprobs_and_they_are_those_of_its_model(llama: Made, service: Service):
    async def work(model: ExternalModel) -> Any:
        answers = await model.chat(QUESTION, n=2, seed=3, ignore_eos=True)
        return answers, await model.stats()

    answers, stats = use(config(llama, logprobs=1), work)
    assert len(answers) == 2
    for one in answers:
        assert one.info == {"model_version": 0, "token_ids": "server"} and one.truncate_status == "response_truncated"
        assert len(response(one)) == 7
        assert float((one.logprobs - recomputed(llama[1], one, temperature=0.9)).abs().max()) < 1e-4
    assert stats == {"samples": 2, "prompt_tokens": answers[0].prompt_length, "generated_tokens": 14} | {
        "requests": 1, "retries": 0,
    }  # fmt: skip
    ((path, headers, body),) = service.requests
    assert path == "/v1/chat/completions" and headers["authorization"] == f"Bearer {KEY}"
    assert body == {
        "messages": QUESTION, "model": "judge", "n": 2, "temperature": 0.9, "top_p": 1.0, "max_tokens": 7, "seed": 3,
        "ignore_eos": True, "logprobs": True, "return_token_ids": True,
    }  # fmt: skip


def test_a_response_that_may_fill_the_model_has_no_limit_at_the_server(llama: Made, service: Service):
    """A request to the endpoint without `max_tokens`: servers refuse prompt and limit above their own length."""

    async def work(model: ExternalModel) -> Any:
        return [(await model.chat(QUESTION, max_tokens=most, ignore_eos=True))[0] for most in (48, 3)]

    whole, short = use(config(llama), work)
    assert whole.response_length > 48 and short.response_length == 3
    assert [body.get("max_tokens") for _, _, body in service.requests] == [None, 3]


def test_a_server_that_tells_no_tokens_is_read_by_the_tokenizer_of_the_section(llama: Made, service: Service):
    service.is_plain = True

    async def work(model: ExternalModel) -> Any:
        chat = await model.chat(QUESTION, seed=3)
        text = await model.generate("2+2=", temperature=0.0, stop="=")
        return chat[0], text[0], await model.get_message_token_len(QUESTION), model.vocabulary()

    chat, text, length, vocabulary = use(config(llama), work)
    assert chat.info["token_ids"] == text.info["token_ids"] == "tokenizer" and chat.logprobs is None
    assert chat.prompt_length == length and len(vocabulary) > 10
    assert (text.prompt_text, text.prompt_length) == ("2+2=", 4)
    assert [path for path, _, _ in service.requests] == ["/v1/chat/completions", "/v1/completions"]
    assert "logprobs" not in service.requests[0][2] and service.requests[1][2]["stop"] == ["="]


def test_the_tokens_of_an_answer_hold_nothing_that_begins_a_text(llama: Made, service: Service, tmp_path: Path):
    service.is_plain = True
    tokenizer = load_tokenizer(ModelConfig(model_path=str(llama[0])))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<unk> $A", special_tokens=[("<unk>", 2)])
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(ModelConfig(model_path=str(tmp_path)))("1")["input_ids"][0] == 2
    chat, text = use(config((tmp_path, llama[1])), both)
    assert 2 not in chat.tokens.tolist() and chat.response_length == len(chat.response_text)
    assert text.tokens.tolist()[0] == 2 and 2 not in text.tokens.tolist()[1:], "the prompt is the whole text"


async def both(model: ExternalModel) -> tuple[Experience, Experience]:
    """Return an answer to a conversation and one to a text."""
    return (await model.chat(QUESTION, seed=3))[0], (await model.generate("2+2=", temperature=0.0))[0]


def test_a_busy_server_is_asked_again_when_it_says_and_a_lost_connection_at_once_more(llama: Made, service: Service):
    service.faults = [(429, {"retry-after": "0.2"}), "close", (503, {"retry-after": "0"})]
    started = time.monotonic()

    async def work(model: ExternalModel) -> Any:
        return await model.chat(QUESTION), await model.stats()

    answers, stats = use(config(llama), work)
    assert len(answers) == 1 and len(service.requests) == 4 and (stats["requests"], stats["retries"]) == (4, 3)
    assert 0.2 < time.monotonic() - started < 60


def test_attempts_end_with_the_last_cause(llama: Made, service: Service):
    service.faults = [(500, {"retry-after": "0"})] * 6
    with pytest.raises(EngineError, match=r"E5730.*auxiliary_models\[0\].*6 attempts.*status 500 not at this moment"):
        use(config(llama), lambda model: model.chat(QUESTION))
    assert len(service.requests) == 6


def test_the_deadline_bounds_the_call_whatever_the_server_does(llama: Made, service: Service):
    service.faults = ["wait"]
    started = time.monotonic()
    with pytest.raises(DeadlineError, match=r"after 0\.3 s .*judge.*explorer\.max_timeout"):
        use(config(llama, timeout_s=0.3), lambda model: model.chat(QUESTION))
    assert 0.25 < time.monotonic() - started < 30


def test_a_refusal_names_the_environment_variable_and_no_secret_reaches_message_log_or_configuration(
    llama: Made, service: Service, caplog: pytest.LogCaptureFixture
):
    service.api_key = "another"
    made = config(llama)
    with caplog.at_level(logging.DEBUG), pytest.raises(EngineError, match="E5732.*status 401.*JUDGE_KEY") as caught:
        use(made, lambda model: model.chat(QUESTION))
    assert len(service.requests) == 1, "a refusal is not tried again"
    assert KEY not in str(caught.value) and KEY not in made.model_dump_json()
    assert KEY not in caplog.text and redact(KEY) == "***"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("<html>hello</html>", "no JSON.*in /v1"),
        ("[]", "OpenAI's form"),
        ('{"choices": []}', "no choice"),
        ('{"choices": [{"message": {"content": null}}]}', "neither text nor tool calls"),
        ('{"choices": [{"message": {"content": "a"}, "logprobs": {"content": [{"logprob": NaN}]}}]}', "finite"),
    ],
)
def test_an_answer_in_another_form_is_an_error_that_says_what_is_wrong(
    llama: Made, service: Service, raw: str, words: str
):
    service.raw = raw
    with pytest.raises(EngineError, match=f"E5733.*{words}"):
        use(config(llama), lambda model: model.chat(QUESTION))


def test_tool_calls_are_kept_as_the_server_wrote_them(llama: Made, service: Service):
    service.raw = '{"choices": [{"message": {"content": null, "tool_calls": [{"id": "a"}]}, "finish_reason": "stop"}]}'
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    (answer,) = use(config(llama), lambda model: model.chat(QUESTION, tools=tools))
    assert answer.info["tool_calls"] == [{"id": "a"}] and answer.response_text == "" and answer.response_length == 0
    assert service.requests[0][2]["tools"] == tools


def test_the_template_of_a_task_is_sent_to_the_server(llama: Made, service: Service):
    given = {"chat_template": "{{ messages[0]['content'] }}", "enable_thinking": False}
    use(config(llama), lambda model: model.chat(QUESTION, template_args=given))
    body = service.requests[0][2]
    assert body["chat_template"] == given["chat_template"]
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_what_a_server_cannot_do_is_refused_by_name(llama: Made, service: Service):
    calls: list[Callable[[ExternalModel], Awaitable[Any]]] = [
        lambda model: model.update_weights({}, version=1),
        lambda model: model.logprobs([1, 2, 3]),
        lambda model: model.convert_messages_to_experience(QUESTION),
    ]
    for call in calls:
        with pytest.raises(EngineError, match=r"E5731.*explorer\.auxiliary_models\[0\]"):
            use(config(llama), call)
    assert service.requests == []


@pytest.mark.parametrize("url", [None, "127.0.0.1:8000"])
def test_an_address_that_is_missing_is_named_with_an_example(
    llama: Made, service: Service, monkeypatch: pytest.MonkeyPatch, url: str | None
):
    monkeypatch.delenv("JUDGE_URL") if url is None else monkeypatch.setenv("JUDGE_URL", url)
    with pytest.raises(EnvironmentProblem, match=r"E5735.*JUDGE_URL.*http://127\.0\.0\.1:8000/v1") as caught:
        use(config(llama), lambda model: model.chat(QUESTION))
    assert caught.value.exit_code == 3


def test_workflows_ask_it_from_their_threads_and_nothing_is_asked_after_the_end(llama: Made, service: Service):
    made = config(llama)
    (model,) = create_auxiliary_models(made)

    async def work() -> str | None:
        await model.prepare()
        wrapper = ModelWrapper(model, config=made, rollout_config=made.explorer.auxiliary_models[0])
        other = await asyncio.to_thread(lambda: asyncio.run(model.chat(QUESTION)))
        answers = await asyncio.to_thread(wrapper.chat, QUESTION)
        await model.shutdown()
        with pytest.raises(EngineError, match="E5730.*shut down"):
            await model.chat(QUESTION)
        assert len(other) == len(answers) == 1
        return answers[0].response_text

    assert run(work()) is not None
    assert len(service.requests) == 2
