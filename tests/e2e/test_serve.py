"""Mode serve: programs outside of the run call, reward and commit; a run in mode train trains what they did."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import psutil
import pytest

from tests.e2e.serving import KEY, Serving
from tests.prepared import DEADLINE_S
from trinity.common.errors import DeadlineError, ExitCode
from trinity.explorer.proxy.client import ServeError, TrinityClient
from trinity.launch.samples import fates_of

pytestmark = pytest.mark.slow


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path / "run")
    yield made
    made.kill()


def test_what_outside_programs_reward_and_commit_is_trained_with_the_tokens_that_they_were_answered(serving: Serving):
    serving.start()
    answers = {}
    for task in ("a", "b"):
        for run in range(2):
            client = serving.client(task, run)
            answer = answers[task, run] = serving.ask(client, f"{run}+{run}=")
            assert client.feedback(float(run), [answer.id]) == {"status": "success", "updated": 1, "unchanged": 0}
    unrewarded = serving.ask(serving.client("a", 9))
    client = serving.client()
    done = client.commit()
    assert (done["step"], done["answers"], done["experiences"], done["waiting"]) == (1, 4, 4, 1)
    assert client.commit() == done | {"answers": 0, "experiences": 0}
    assert serving.stop() == ExitCode.INTERRUPTED
    stored = {(exp.eid.task, exp.eid.run): exp for exp in serving.stored()}
    assert stored.keys() == answers.keys()
    for key, answer in answers.items():
        exp, choice = stored[key], answer.choices[0]
        assert exp.tokens.tolist() == answer.prompt_token_ids + choice.token_ids
        assert exp.prompt_length == len(answer.prompt_token_ids)
        assert exp.logprobs is not None
        assert exp.logprobs.tolist() == pytest.approx([row.logprob for row in choice.logprobs.content], abs=1e-6)
        assert exp.reward == float(key[1]) and exp.info["model_version"] == 0
        assert answer.id.endswith(exp.info["message_id"]) and exp.eid.suffix == exp.info["message_id"]
        assert exp.eid.batch == "proxy/1"
    assert not any(unrewarded.id.endswith(exp.info["message_id"]) for exp in stored.values())
    weights = serving.folder / "model" / "model.safetensors"
    before = weights.read_bytes()
    status = serving.train("--set", "trainer.total_steps=1", "--set", "trainer.save_hf_checkpoint=always")
    assert status == ExitCode.DONE, serving.parts.output("trainer")
    assert serving.parts.query("select state, use_count, trained_step from experience") == [("trained", 1, 1)] * 4
    trained = serving.parts.job / "global_step_1" / "actor" / "huggingface" / "model.safetensors"
    assert trained.is_file() and trained.read_bytes() != before
    line = serving.parts.lines("proxy")[0]
    assert (line["rollout/reward/mean"], line["rollout/answer_count"], line["rollout/unrewarded_count"]) == (0.5, 4, 1)


def test_a_token_that_nobody_wrote_is_printed_once_and_the_service_may_move(serving: Serving):
    del serving.parts.trees["proxy"]["explorer"]["rollout_model"]["api_key"]
    client = serving.start()
    with pytest.raises(ServeError, match="token"):
        client.get_metrics()
    _until(lambda: "api_key: " in serving.parts.output("proxy"))
    token = serving.parts.output("proxy").split("api_key: ")[1].split()[0]
    own = TrinityClient(client.proxy_url, token)
    assert len(token) >= 32 and own.get_metrics()["model_version"] == 0
    assert own.feedback(1.0, [serving.ask(own).id])["updated"] == 1
    assert serving.stop() == ExitCode.INTERRUPTED
    assert serving.parts.output("proxy").count(token) == 1
    files = [path for path in serving.parts.job.rglob("*") if path.is_file()]
    assert len(files) > 4 and not [path for path in files if token.encode() in path.read_bytes()]
    moved = ("explorer.listen_address=localhost", f"explorer.rollout_model.api_key={KEY}")
    again = serving.start(*(word for value in moved for word in ("--set", value)), "--quiet")
    assert again.commit()["experiences"] == 1 and serving.stop() == ExitCode.INTERRUPTED


@pytest.mark.difference("Calls that continue each other")
def test_calls_of_a_run_that_go_on_are_one_experience_in_which_every_answer_is_trained_once(serving: Serving):
    serving.start()
    for seed in range(20):
        client = serving.client(f"chat{seed}")
        answers = _conversation(client, seed)
        # A special token that this model happens to say is not in the text, so that nothing continues from it exactly.
        if all(len(answer.choices[0].message.content) == 4 for answer in answers):
            break
    assert client.feedback(1.0)["updated"] == 3  # of the task and the run, without ids
    assert client.commit()["answers"] == 3
    serving.stop()
    (whole,) = serving.stored()
    last = answers[-1]
    assert whole.tokens.tolist() == last.prompt_token_ids + last.choices[0].token_ids
    assert whole.action_mask is not None
    trained = whole.tokens[whole.prompt_length :][whole.action_mask].tolist()
    assert trained == [token for answer in answers for token in answer.choices[0].token_ids]
    assert whole.info["message_ids"] == [answer.id.removeprefix("chatcmpl-") for answer in answers]


def test_a_plain_client_streams_and_asks_for_several_choices_and_each_is_rewarded(serving: Serving):
    serving.start()
    address = serving.address_file.read_text().strip()
    plain = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY)
    stream = plain.chat.completions.create(
        model="model", messages=[{"role": "user", "content": "1+1="}], n=2, max_tokens=4, stream=True
    )
    ids = {chunk.id for chunk in stream}
    (streamed,) = ids
    headers = {"Authorization": f"Bearer {KEY}"}
    for choice, reward in ((0, 0.25), (1, 0.75)):
        body = {"reward": reward, "msg_ids": [f"{streamed}#{choice}"]}
        assert httpx.post(f"{address}/feedback", json=body, headers=headers).json()["updated"] == 1
    text = plain.completions.create(model="model", prompt="1+1=", max_tokens=4)
    body = {"reward": 1.0, "msg_ids": [text.id], "task_id": "t", "run_id": 3}
    assert httpx.post(f"{address}/feedback", json=body, headers=headers).status_code == 200
    assert httpx.post(f"{address}/commit", headers=headers).json()["experiences"] == 3
    serving.stop()
    found = {(exp.eid.task, exp.eid.run): exp.reward for exp in serving.stored()}
    number = streamed.removeprefix("chatcmpl-")
    assert found == {(number, 0): 0.25, (number, 1): 0.75, ("t", 3): 1.0}


def test_the_asynchronous_forms_do_the_same_and_waits_end(serving: Serving):
    serving.start()

    async def use(client: TrinityClient) -> dict[str, object]:
        await client.wait_until_alive_async(10)
        assert await client.alive_async() and await client.models_async() == client.models()
        async with client.get_openai_async_client() as asking:
            answer = await asking.chat.completions.create(
                model="model", messages=[{"role": "user", "content": "2+2="}], max_tokens=4
            )
        assert (await client.feedback_async(0.5, [answer.id]))["updated"] == 1
        assert (await client.get_metrics_async())["rewarded_count"] == 1
        return await client.commit_async()

    assert asyncio.run(use(serving.client("async")))["experiences"] == 1
    wrong = TrinityClient(serving.address_file.read_text().strip(), "wrong")
    with pytest.raises(ServeError, match="token") as refused:
        wrong.commit()
    assert refused.value.status == 401
    client = serving.client()
    serving.stop()
    assert not client.alive()
    with pytest.raises(DeadlineError, match="no healthy service") as late:
        client.wait_until_alive(0.3)
    assert late.value.code == "E5305"
    with pytest.raises(ServeError, match="does not answer"):
        client.commit()


def test_a_trainer_beside_it_trains_what_is_committed_and_its_weights_are_served(serving: Serving):
    serving.parts.trees["proxy"]["synchronizer"]["sync_interval"] = 1
    serving.parts.trees["trainer"]["synchronizer"]["sync_interval"] = 1
    serving.start()
    trainer = serving.parts.start("trainer", "--set", "trainer.total_steps=2")
    for version in range(2):
        end = time.monotonic() + DEADLINE_S
        while serving.client().get_metrics()["model_version"] < version:
            assert time.monotonic() < end, serving.parts.output("trainer")
            time.sleep(0.1)
        for run in range(4):
            client = serving.client("task", run)
            client.feedback(float(run % 2), [serving.ask(client).id])
        assert client.commit()["step"] == version + 1
    assert trainer.wait(DEADLINE_S) == ExitCode.DONE, serving.parts.output("trainer")
    assert [str(found) for found in fates_of(serving.parts.job).values()] == ["8 issued = 8 trained + 0 waiting"]
    versions = serving.parts.query("select model_version, count(*) from experience group by 1 order by 1")
    assert versions == [(0, 4), (1, 4)]
    assert "responses come from model version 1" in serving.parts.output("proxy")
    assert serving.stop() == ExitCode.INTERRUPTED


PLACES = {
    "serve.after_feedback": ("feedback", 0),
    "serve.before_append": ("commit", 0),
    "store.append.before_commit": ("commit", 0),
    "serve.after_append": ("commit", 4),
    "serve.after_commit": ("commit", 4),
}


@pytest.mark.difference("`/commit`")
@pytest.mark.parametrize("place", PLACES)
def test_a_kill_loses_nothing_that_was_acknowledged_and_commits_nothing_twice(serving: Serving, place: str):
    # At the fourth feedback all four answers have their reward, and the last is not acknowledged.
    request, stored = PLACES[place]
    serving.start(failpoints=f"{place}=kill@{4 if request == 'feedback' else 1}")
    answers = [serving.ask(serving.client("task", run)) for run in range(4)]
    waiting = serving.ask(serving.client("task", 4))
    with pytest.raises(ServeError, match="does not answer"):
        for run, answer in enumerate(answers):
            serving.client("task", run).feedback(float(run), [answer.id])
        serving.client().commit()
    assert serving.ended() == -signal.SIGKILL
    assert serving.parts.query("select count(*) from experience") == [(stored,)]
    client = serving.start()
    again = [serving.client("task", run).feedback(float(run), [each.id]) for run, each in enumerate(answers)]
    assert [(each["updated"], each["unchanged"]) for each in again] == [(0, 1)] * 4
    assert client.get_metrics()["explore_step"] == (0 if request == "feedback" else 1)  # what was begun is ended
    assert client.commit()["step"] == 1
    assert serving.client("task", 4).feedback(9.0, [waiting.id])["updated"] == 1
    assert [client.commit()["answers"] for _ in range(2)] == [1, 0]
    serving.stop()
    found = serving.parts.query("select explore_step, reward, count(*) from experience group by 1, 2 order by 1, 2")
    assert found == [(1, float(run), 1) for run in range(4)] + [(2, 9.0, 1)]
    assert [str(found) for found in fates_of(serving.parts.job).values()] == ["5 issued = 0 trained + 5 waiting"]


def test_its_processes_listen_on_the_loopback_interface_alone(serving: Serving):
    """X05 of the list of hostile cases, with engines in processes of their own."""
    serving.parts.trees["proxy"]["explorer"]["rollout_model"]["engine_num"] = 2
    client = serving.start()
    assert serving.ask(client).choices and serving.process is not None
    service = psutil.Process(serving.process.pid)
    processes = [service, *service.children(recursive=True)]
    listeners = [c.laddr for each in processes for c in each.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert len(_engines(service.pid)) == 2 and urlsplit(client.proxy_url).port in {place.port for place in listeners}
    assert all(ipaddress.ip_address(place.ip.removeprefix("::ffff:")).is_loopback for place in listeners), listeners
    assert serving.stop() == ExitCode.INTERRUPTED


def test_without_enough_engines_calls_are_refused_until_they_are_back(serving: Serving):
    explorer = serving.parts.trees["proxy"]["explorer"]
    explorer |= {"min_running_model_num": 2, "service_status_check_interval": 0.1, "engine_probe_interval": 0.2}
    explorer["rollout_model"]["engine_num"] = 2
    client = serving.start()
    assert client.get_metrics()["engines_serving"] == 2
    assert serving.process is not None
    os.kill(_engines(serving.process.pid)[0], signal.SIGKILL)
    _until(lambda: not client.alive())
    with pytest.raises(openai.InternalServerError, match="min_running_model_num is 2") as refused:
        client.get_openai_client().with_options(max_retries=0).chat.completions.create(
            model="model", messages=[{"role": "user", "content": "1+1="}]
        )
    assert refused.value.status_code == 503
    client.wait_until_alive(60)
    assert serving.ask(client).choices and serving.stop() == ExitCode.INTERRUPTED


@pytest.mark.difference("`explorer.min_running_model_num`")
@pytest.mark.nightly
def test_too_few_engines_for_too_long_end_the_run(serving: Serving):
    explorer = serving.parts.trees["proxy"]["explorer"]
    explorer |= {"min_running_model_num": 2, "service_status_check_interval": 0.1, "engine_probe_interval": 0.2}
    explorer["engine_recovery_timeout"] = 0.2
    explorer["rollout_model"]["engine_num"] = 2
    client = serving.start()
    answer = serving.ask(client)
    client.feedback(1.0, [answer.id])
    assert serving.process is not None
    os.kill(_engines(serving.process.pid)[0], signal.SIGKILL)
    assert serving.ended() == ExitCode.RUNTIME
    assert "E5638" in serving.parts.output("proxy")
    explorer["rollout_model"]["engine_num"], explorer["min_running_model_num"] = 1, 1
    accepted = ("explorer.rollout_model.engine_num", "explorer.min_running_model_num")
    client = serving.start(*(word for key in accepted for word in ("--accept-change", key)))
    assert client.commit()["experiences"] == 1 and serving.stop() == ExitCode.INTERRUPTED


def test_a_name_that_has_explored_tasks_is_refused(serving: Serving):
    serving.parts.trees["explorer"]["buffer"]["total_steps"] = 1
    assert serving.parts.start("explorer").wait(DEADLINE_S) == ExitCode.DONE, serving.parts.output("explorer")
    process = serving.parts.start("explorer", "--set", "mode=serve")
    assert process.wait(DEADLINE_S) == ExitCode.USAGE
    assert "E1898" in serving.parts.output("explorer")


@pytest.mark.nightly
def test_on_ray_it_answers_from_processes_of_their_own(serving: Serving):
    serving.parts.trees["proxy"]["cluster"] = {"runtime": "ray"}
    client = serving.start()
    client.feedback(1.0, [serving.ask(client).id])
    assert client.commit()["experiences"] == 1
    assert serving.stop() == ExitCode.INTERRUPTED
    assert [exp.reward for exp in serving.stored()] == [1.0]


def _conversation(client: TrinityClient, seed: int) -> list[Any]:
    """Return the answers of three turns."""
    answers: list[Any] = []
    messages: list[dict[str, str]] = []
    with client.get_openai_client() as asking:
        for text in ("1+2=", "3+4=", "5+6="):
            messages.append({"role": "user", "content": text})
            answer: Any = asking.chat.completions.create(
                model="model", messages=messages, max_tokens=4, seed=seed, extra_body={"return_token_ids": True}
            )
            answers.append(answer)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    return answers


def _until(is_so: object, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    assert callable(is_so)
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def _engines(pid: int) -> list[int]:
    """Return the processes of engines below a run."""
    found = [each for each in psutil.Process(pid).children(recursive=True) if not each.children()]
    return [each.pid for each in found if "resource_tracker" not in " ".join(each.cmdline())]
