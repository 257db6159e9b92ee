"""Runs that a program starts: what it hears, what it gets, and that its process stays its own."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import trinity
from tests.e2e.tiny_run import TinyRun
from trinity.common.errors import ExitCode
from trinity.launch.ending import job_summary
from trinity.launch.guest import CHANGED
from trinity.launch.job import read_record
from trinity.quickstart.summary import StageRun, summarize
from trinity.summary.facts import JobSummary

FORMAT = {"prompt_key": "question", "response_key": "answer"}
GREEDY: dict[str, Any] = {"format": FORMAT, "rollout_args": {"temperature": 0.0}}
ROWS = [{"question": "1+1=", "answer": "2"}, {"question": "1+2=", "answer": "3"}]
Event = trinity.StepEvent | trinity.EvalEvent | trinity.CheckpointEvent


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, as in a program; workers of the suite ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def made(folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int = 2) -> TinyRun:
    """Return a run in `folder`, which is the working directory."""
    monkeypatch.chdir(folder)
    run = TinyRun(folder).change(buffer__total_steps=steps)
    run.write_rows(ROWS, "held.jsonl")
    held = {"name": "held", "path": "held.jsonl"} | GREEDY
    return run.change(buffer__explorer_input__eval_tasksets=[held], explorer__eval_interval=1)


def _process() -> dict[str, Any]:
    """Return what a run must leave as it is."""
    logger = logging.getLogger("trinity")
    return {
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "variables": {name: os.environ.get(name) for name in CHANGED},
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "log": (logger.level, logger.propagate, list(logger.handlers), list(logging.getLogger().handlers)),
        "folder": os.getcwd(),
    }


def test_a_run_tells_its_events_in_this_thread_and_leaves_the_process_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, events, threads = made(tmp_path, monkeypatch), list[Event](), set[int]()

    def hear(event: Event) -> None:
        events.append(event)
        threads.add(threading.get_ident())

    before = _process()
    report = trinity.run(run.tree, {"log.level": "debug", "seed": 7}, on_step=hear, on_eval=hear, on_checkpoint=hear)
    assert _process() == before and threads == {threading.get_ident()}
    (stage,) = report.stages
    assert (stage.training_step, stage.explore_step, stage.is_resumed, stage.was_complete) == (2, 2, False, False)
    steps = [(each.actor, each.step) for each in events if isinstance(each, trinity.StepEvent)]
    assert sorted(steps) == [("explorer", 1), ("explorer", 2), ("trainer", 1), ("trainer", 2)]
    evaluated = {each.step: dict(each.metrics) for each in events if isinstance(each, trinity.EvalEvent)}
    assert evaluated == stage.evaluations and set(evaluated) == {0, 1, 2}
    saved = [each.path for each in events if isinstance(each, trinity.CheckpointEvent)]
    assert [path.resolve() for path in saved] == [path.resolve() for path in report.checkpoints]
    assert [path.name for path in saved] == ["global_step_1", "global_step_2"]
    last = run.lines("trainer")[-1]
    assert report.metrics["actor/final_loss"] == last["actor/final_loss"]
    assert report.model_path is not None and (report.model_path / "model.safetensors").is_file()
    seconds = read_record(run.job)["seconds"]
    assert report.summary == summarize([StageRun("", stage.job_dir, seconds)], seed=7)
    assert json.loads(json.dumps(asdict(report.summary)))["stages"][0]["num_steps"] == 2
    _summary(run, report)
    again = trinity.run(run.tree, {"seed": 7})
    assert again.stages[0].was_complete and again.stages[0].training_step == 2
    assert again.metrics == report.metrics and again.summary == report.summary
    _evaluations(report)


def _summary(run: TinyRun, report: trinity.RunReport) -> None:
    """Compare what the run left at its end with what it returned."""
    (stage,), found = report.stages, json.loads((run.job / "summary.json").read_text())
    scores = [stage.evaluations[step]["eval/held/accuracy/mean@1"] for step in (0, 1, 2)]
    main = {"metric": "eval/held/accuracy/mean@1", "before": scores[0], "after": scores[2], "of": "evaluation"}
    assert found["metrics"][0] == main | {"first_step": 0, "last_step": 2}
    assert found["best"]["value"] == max(scores) and found["best"]["step"] == scores.index(max(scores))
    assert [each["path"] for each in found["checkpoints"]] == [str(path.resolve()) for path in report.checkpoints]
    assert found["rollouts"] == {"experience_buffer": {"issued": 8, "trained": 8, "waiting": 0}} and not found["notes"]
    assert (found["status"], found["training_step"], found["seconds"]) == ("done", 2, read_record(run.job)["seconds"])
    assert found["tokens"]["trained"] == sum(line["perf/total_num_tokens"] for line in run.lines("trainer"))
    assert job_summary(run.job).text() == (run.job / "summary.json").read_text()
    said = json.loads((run.job / "eval/held/explorer_step_2.jsonl").read_text().splitlines()[0])["response"]
    assert f"<pre>{html.escape(said)}</pre>" in (run.job / "report.html").read_text()
    assert (run.job / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def _evaluations(report: trinity.RunReport) -> None:
    assert report.model_path is not None
    how: dict[str, Any] = {"overrides": {"model.max_model_len": 48}, "taskset": GREEDY}
    folder, job = report.stages[0].job_dir, [{"question": "1+1=", "answer": "2"}]
    found = [trinity.evaluate(model, ROWS, **how) for model in (report.model_path, folder / "global_step_2", folder)]
    assert len({json.dumps(each.scores) for each in found}) == 1 and set(found[0].scores) == {"tasks"}
    held = report.stages[0].evaluations[2]
    of_file = trinity.evaluate(folder, "held.jsonl", **how)
    assert of_file.scores["held"]["accuracy"] == held["eval/held/accuracy/mean@1"]
    named = trinity.evaluate(folder, {"name": "own", "path": "held.jsonl"} | GREEDY, how["overrides"])
    assert named.scores == {"own": of_file.scores["held"]}
    with pytest.raises(trinity.CheckpointError, match="global_step_1 has no Hugging Face weights") as refused:
        trinity.evaluate(folder / "global_step_1", job)
    assert refused.value.code == "E7045"
    with pytest.raises(trinity.ConfigError, match="no task to evaluate on"):
        trinity.evaluate(folder, [])


def test_a_callback_that_raises_ends_the_run_by_its_name_and_the_run_goes_on_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path, monkeypatch, steps=6)

    def fail(event: trinity.StepEvent) -> None:
        if event.actor == "trainer":
            raise ZeroDivisionError("of my own")

    with pytest.raises(
        trinity.CallbackError, match=r"callback on_step raised ZeroDivisionError: of my own \(.*in fail"
    ) as e:
        trinity.run(run.tree, on_step=fail)
    assert (e.value.code, e.value.exit_code) == ("E5143", ExitCode.RUNTIME)
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    record = read_record(run.job)
    assert record["status"] == "failed" and "callback on_step" in record["error"] and record["seconds"] > 0
    left = job_summary(run.job)
    assert (left.status, left.error) == ("failed", record["error"]) and left.training_step < 6 and left.rollouts
    report = trinity.run(run.tree)
    assert report.stages[0].is_resumed and report.stages[0].training_step == 6
    resumed = job_summary(run.job)
    assert (resumed.status, resumed.error, resumed.training_step) == ("done", "", 6)
    assert resumed.metrics[0].last_step == 6 and resumed.seconds > left.seconds == record["seconds"]


def test_ctrl_c_stops_after_the_step_and_the_run_goes_on_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, before = made(tmp_path, monkeypatch, steps=6), _process()

    def interrupt(event: trinity.CheckpointEvent) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trinity.run(run.tree, on_checkpoint=interrupt)
    record = read_record(run.job)
    assert (record["status"], record["exit_code"]) == ("stopped", int(ExitCode.INTERRUPTED))
    assert record["training_step"] < 6 and _process() == before
    stopped = JobSummary.of_text((run.job / "summary.json").read_text())
    assert (stopped.status, stopped.training_step) == ("stopped", record["training_step"])
    assert trinity.run(run.tree).stages[0].is_resumed


def test_errors_are_raised_with_their_codes_and_end_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path, monkeypatch)
    with pytest.raises(trinity.ConfigErrors, match="repat_times"):
        trinity.run(run.tree, {"algorithm.repat_times": 3})
    with pytest.raises(trinity.TrinityError) as missing:
        trinity.run(run.tree, {"model.model_path": "nowhere"})
    assert missing.value.exit_code in (ExitCode.USAGE, ExitCode.ENVIRONMENT)
    with pytest.raises(trinity.ConfigErrors, match="does not exist"):
        trinity.run("no.yaml")
    with pytest.raises(trinity.CallbackError, match="on_step raised TypeError: a coroutine function") as refused:
        trinity.run(run.tree, on_step=asyncio.sleep)  # type: ignore[arg-type]
    assert refused.value.code == "E5143"


def test_a_run_within_a_running_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, heard, turns = made(tmp_path, monkeypatch), list[int](), list[float]()

    async def hear(event: trinity.StepEvent) -> None:
        await asyncio.sleep(0)
        heard.append(event.step)

    async def program() -> trinity.RunReport:
        loop = asyncio.get_running_loop()

        async def beat() -> None:
            while True:
                turns.append(loop.time())
                await asyncio.sleep(0.05)

        beating = asyncio.create_task(beat())
        running = asyncio.create_task(trinity.run_async(run.tree, on_step=hear))
        await asyncio.sleep(0.2)
        with pytest.raises(trinity.AlreadyRunningError, match="this process has a run already") as second:
            trinity.run(run.tree)
        assert second.value.code == "E8004"
        report = await running
        beating.cancel()
        assert trinity.run(run.tree, {"name": "other"}).stages[0].training_step == 2, "it blocks, and works"
        return report

    assert asyncio.run(program()).stages[0].training_step == 2
    assert sorted(heard) == [1, 1, 2, 2] and len(turns) > 5


def test_a_cancelled_run_stops_after_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path, monkeypatch, steps=6)

    async def program() -> None:
        running = asyncio.create_task(trinity.run_async(run.tree, on_checkpoint=lambda _: running.cancel()))
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(program())
    assert read_record(run.job)["status"] == "stopped"
    assert trinity.run(run.tree).stages[0].is_resumed
