"""The studio in a real browser: a run is configured, started, watched and stopped."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.accessibility import problems
from tests.browser import Browser, browsing
from tests.e2e.tiny_run import TinyRun
from tests.manager.test_viewer import Serving
from trinity.launch.jobs import job_state, stop_job
from trinity.manager.studio.processes import LOG_NAME

PICTURES = "TRINITY_TEST_PICTURES"
"""Folder for pictures of the pages; none are kept without it."""
FIELDS = {
    "Project (project)": "tiny",
    "Name of the run (name)": "run",
    "Model (model.model_path)": "model",
    "Tasks (buffer.explorer_input.taskset.path)": "train.jsonl",
    "Column of the prompt (buffer.explorer_input.taskset.format.prompt_key)": "question",
    "Column of the answer (buffer.explorer_input.taskset.format.response_key)": "answer",
    "Folder of all runs (checkpoint_root_dir)": "out",
    "Rollouts per task (algorithm.repeat_times)": "8",
    "Tasks per explore step (buffer.batch_size)": "2",
    "Explore steps (buffer.total_steps)": "2000",
    "Learning rate (algorithm.optimizer.lr)": "0.003",
    "Longest prompt (model.max_prompt_tokens)": "24",
    "Longest response (model.max_response_tokens)": "8",
    "Longest sequence (model.max_model_len)": "48",
}


# What can be learned in seconds: after 30 steps nearly every character is a digit.
REWARD = '''
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn


@REWARD_FUNCTIONS.register_module("digits")
class Digits(RewardFn):
    """The share of digits in a response."""

    def __call__(self, response, prompt=None, truth=None, **_):
        return {"digits": sum(c.isdigit() for c in response) / max(len(response), 1)}
'''


def curve(browser: Browser) -> list[float]:
    """Return the values of the first chart on the page, as a screen reader is told."""
    script = """
        const chart = document.querySelector('[data-testid=stVegaLiteChart]');
        return [...(chart ? chart.querySelectorAll('.mark-symbol path[aria-label]') : [])].map(each => each.ariaLabel)
    """
    found = [re.match(r"step: ([\d.,]+); value: ([\d.eE+−-]+); run: run", text) for text in browser.run(script)]
    points = {float(each[1].replace(",", "")): float(each[2].replace("−", "-")) for each in found if each}
    return [points[step] for step in sorted(points)]


def rises(values: list[float]) -> bool:
    """Return whether the last five values of at least fifteen are well above the first five."""
    return len(values) >= 15 and sum(values[-5:]) / 5 > sum(values[:5]) / 5 + 0.2


def picture(browser: Browser, name: str) -> None:
    """Keep a picture where somebody asked for pictures."""
    if os.environ.get(PICTURES):
        browser.picture(Path(os.environ[PICTURES]) / f"{name}.png")


def all_named(browser: Browser) -> int:
    """Return how many things there are to operate, all of which a screen reader can name."""
    found = browser.controls()
    assert all(name for _, name in found), found
    return len(found)


def view(browser: Browser, folder: Path) -> None:
    """Open the newest trajectory of the run, and look at its tokens and its group."""
    with Serving(folder, "view", "--config", "made.yaml", "--port", "0", "--plugin-dir", "plugins") as viewer:
        viewer.get(viewer.address)
        browser.open(viewer.address)
        browser.wait(lambda: "experiences, page 1 of" in browser.text(), "the table of experiences")
        browser.press_row(1)
        for name, there in (
            ("Tokens", "span[@data-place]"),
            ("Group", "button[starts-with(normalize-space(), 'Open ')]"),
        ):
            browser.click(f"//*[@data-testid='stMain']//label[normalize-space()={name!r}]")
            browser.find(f"//*[@data-testid='stMain']//{there}")
            if name == "Tokens":
                tips = browser.run("return [...document.querySelectorAll('span[data-place]')].map(each => each.title)")
                assert all(fact in tips[-1] for fact in ("log-prob: -", "advantage: ", "model version: ", "mask: "))
                picture(browser, "viewer-run")


@pytest.mark.slow
@pytest.mark.timeout(900)  # a browser beside other work takes its time
def test_a_run_is_configured_started_watched_and_stopped(tmp_path: Path) -> None:
    TinyRun(tmp_path)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "own.py").write_text(REWARD)
    job = tmp_path / "out" / "tiny" / "run"
    with Serving(tmp_path, "studio", "--port", "0", "--plugin-dir", "plugins") as studio, browsing() as browser:
        studio.get(studio.address)
        browser.open(studio.address)
        browser.find("//input[@aria-label='Project (project)']")
        browser.settle()
        assert all_named(browser) > 25
        for label, text in FIELDS.items():
            browser.write(label, text)
        browser.choose("(buffer.explorer_input.default_workflow_type)", "simple_workflow")
        browser.choose("(buffer.explorer_input.default_reward_fn_type)", "digits")
        browser.write("YAML file", "made.yaml")
        browser.wait(lambda: "Valid: a run can start." in browser.text(), "a valid configuration")
        picture(browser, "studio-configure")
        browser.press("Start the run")
        try:
            browser.find("//*[@data-testid='stVegaLiteChart']", wait_s=180)
            browser.wait(lambda: "reward: rollout" in browser.text(), "the curve of the reward", wait_s=60)
            browser.wait(lambda: rises(curve(browser)), "a curve that rises", wait_s=180)
            text = browser.text()
            shown = ("Time left", "Sampled tokens/s", "Staleness", "Mismatch", "Latest rollouts")
            assert not [word for word in shown if word not in text], text
            assert problems(browser) == []
            picture(browser, "studio-run")
            assert all_named(browser) > 5
            assert job_state(job).status == "running" and (tmp_path / "made.yaml").is_file()
            browser.press("Stop")
            browser.wait(lambda: job_state(job).status == "stopped", "the end of the run", wait_s=120)
            browser.find("//button[normalize-space()='Resume']")
            kept = job_state(job).checkpoints
            assert kept
            browser.press("Resume")
            browser.wait(lambda: job_state(job).status == "running", "the run that continues", wait_s=120)
            browser.wait(lambda: "Stop" in browser.text(), "that it runs")
            assert (job / "log" / LOG_NAME).exists()
            stop_job(job, timeout_s=120)
            assert job_state(job).checkpoints[-1] >= kept[-1]
            view(browser, tmp_path)
        finally:
            if job.exists() and job_state(job).status == "running":
                stop_job(job, timeout_s=120)
