"""The studio in a real browser: a run is configured, started, watched and stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
    "Rollouts per task (algorithm.repeat_times)": "2",
    "Tasks per step (buffer.batch_size)": "2",
    "Steps (buffer.total_steps)": "400",
    "Learning rate (algorithm.optimizer.lr)": "0.001",
    "Longest prompt (model.max_prompt_tokens)": "24",
    "Longest answer (model.max_response_tokens)": "8",
    "Longest sequence (model.max_model_len)": "48",
}


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
    with Serving(folder, "view", "--config", "made.yaml", "--port", "0") as viewer:
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
def test_a_run_is_configured_started_watched_and_stopped(tmp_path: Path) -> None:
    TinyRun(tmp_path)
    job = tmp_path / "out" / "tiny" / "run"
    with Serving(tmp_path, "studio", "--port", "0") as studio, browsing() as browser:
        studio.get(studio.address)
        browser.open(studio.address)
        browser.find("//input[@aria-label='Project (project)']")
        browser.settle()
        assert all_named(browser) > 25
        for label, text in FIELDS.items():
            browser.write(label, text)
        browser.choose("(buffer.explorer_input.default_workflow_type)", "simple_workflow")
        browser.choose("(buffer.explorer_input.default_reward_fn_type)", "accuracy_reward")
        browser.write("YAML file", "made.yaml")
        browser.wait(lambda: "Valid: a run can start." in browser.text(), "a valid configuration")
        picture(browser, "studio-configure")
        browser.press("Start the run")
        try:
            browser.find("//*[@data-testid='stVegaLiteChart']", wait_s=180)
            browser.wait(lambda: "reward: rollout" in browser.text(), "the curve of the reward", wait_s=60)
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
