"""Live progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from trinity.cli.progress import Progress
from trinity.common.errors import DataError
from trinity.launch.samples import LatestRollout


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain(interval_s: float = 5.0) -> tuple[Progress, io.StringIO, Clock]:
    text, clock = io.StringIO(), Clock()
    console = Console(file=text, width=200, force_terminal=False)
    return Progress(console=console, interval_s=interval_s, is_chinese=False, clock=clock), text, clock


def test_plain_lines_come_at_most_once_an_interval() -> None:
    progress, text, clock = plain()
    with progress:
        progress.start("sft_warmup", totals={"trainer": 100})
        for step in range(1, 21):
            clock.now += 1.0
            progress.on_metrics("trainer", step, {"actor/sft_loss": 1.0 / step})
    lines = text.getvalue().splitlines()
    assert lines[0] == "[sft_warmup] step 1/100  loss 1.0000  ETA 1:39"
    # One step a second: after 6 steps, 94 remain.
    assert lines[1] == "[sft_warmup] step 6/100  loss 0.1667  ETA 1:34"
    assert len(lines) == 5
    assert lines[-1].startswith("[sft_warmup] step 20/100"), "where it ended"


def test_an_evaluation_and_the_last_step_are_always_shown() -> None:
    progress, text, _ = plain(interval_s=1e9)
    with progress:
        progress.start("rft", totals={"trainer": 2, "explorer": 1})
        progress.on_metrics("explorer", 0, {"eval/test/accuracy/mean@1": 0.25})
        progress.on_metrics("explorer", 1, {"rollout/accuracy/mean": 0.5})
        progress.on_metrics("trainer", 1, {"perf/total_num_tokens": 5000, "perf/time_per_step": 0.4})
        progress.on_metrics("trainer", 2, {})
    assert text.getvalue().splitlines() == [
        "[rft] step 0/2  eval 0.250",
        "[rft] step 2/2  reward 0.500  eval 0.250  12.5k tok/s",
    ]


def test_steps_of_the_explorer_do_not_count_where_there_is_a_trainer() -> None:
    progress, text, clock = plain()
    progress.start("rft", totals={"trainer": 80, "explorer": 40})
    progress.on_metrics("trainer", 3, {})
    clock.now += 10
    progress.on_metrics("explorer", 40, {})
    assert [line.split("  ")[0] for line in text.getvalue().splitlines()] == ["[rft] step 3/80", "[rft] step 3/80"]


def test_the_remaining_time_of_a_resumed_stage_counts_its_own_steps_only() -> None:
    progress, text, clock = plain(interval_s=0.0)
    progress.start("rft", totals={"trainer": 100})
    clock.now += 2.0
    progress.on_metrics("trainer", 91, {})
    assert text.getvalue().splitlines() == ["[rft] step 91/100    ETA 0:18"]


def test_the_last_step_is_shown_at_the_end_where_no_total_was_known() -> None:
    progress, text, _ = plain(interval_s=1e9)
    with progress:
        progress.start("grpo", totals={"trainer": None, "explorer": None})
        for step in (1, 2, 3):
            progress.on_metrics("trainer", step, {"actor/loss": 0.5})
    assert text.getvalue().splitlines() == ["[grpo] step 1  loss 0.5000", "[grpo] step 3  loss 0.5000"]


def test_a_total_that_is_known_once_the_data_are_gives_a_remaining_time() -> None:
    progress, text, clock = plain(interval_s=0.0)
    progress.start("sft", totals={"trainer": None})
    progress.on_metrics("trainer", 0, {"total_steps": 30})
    clock.now += 2.0
    progress.on_metrics("trainer", 1, {"actor/loss": 0.5})
    assert text.getvalue().splitlines() == ["[sft] step 1/30  loss 0.5000  ETA 0:58"]


def test_a_bar_moves_on_a_terminal() -> None:
    text = io.StringIO()
    console = Console(file=text, width=160, force_terminal=True, color_system=None)
    with Progress(console=console) as progress:
        progress.start("rft", totals={"trainer": 80})
        progress.on_metrics("trainer", 20, {"rollout/accuracy/mean": 0.625})
    shown = text.getvalue()
    assert "rft" in shown and "20/80" in shown and "reward 0.625" in shown


FOUND = [
    LatestRollout("1/0", 1.0, 0.5, 3, "1+2=", "the sum\nis \x1b[31m3"),
    LatestRollout("1/0", 0.0, None, 3, "[b]1+2=[/b]", "x" * 500),
]


def watched(
    progress: Progress, reader: Callable[[], list[LatestRollout]], steps: int, clock: Clock | None = None
) -> None:
    """Explore some steps, ten seconds each, with the latest rollouts at hand."""
    with progress:
        progress.start("rft", totals={"trainer": 80, "explorer": 40}, rollouts=reader)
        for step in range(1, steps + 1):
            progress.on_metrics("explorer", step, {"rollout/reward/mean": 0.5, "perf/rollout_tokens_per_s": 800.0})
            if progress._reading is not None:
                progress._reading.join()
            if clock is not None:
                clock.now += 10.0


def test_plain_lines_show_the_newest_rollout_now_and_then() -> None:
    progress, text, clock = plain(interval_s=1e9)
    watched(progress, lambda: FOUND, 4, clock)
    # At seconds 0 and 30; what would change the terminal's colour is text.
    line = r"[rft] rollout: reward 1.000, advantage 0.500: '1+2=' -> 'the sum is \\x1b[31m3'"
    assert text.getvalue().splitlines() == ["[rft] step 0/80  reward 0.500  sampled 800 tok/s", line, line]


def test_what_cannot_be_read_is_told_once_and_the_run_goes_on() -> None:
    def reader() -> list[LatestRollout]:
        raise DataError("it is damaged", code="E5101")

    progress, text, clock = plain(interval_s=1e9)
    watched(progress, reader, 8, clock)
    assert text.getvalue().splitlines()[1:] == ["[rft] the rollouts cannot be shown: [E5101] it is damaged"]


def test_a_terminal_shows_figures_and_the_latest_rollouts_in_its_language() -> None:
    for is_chinese, words in ((False, ("Latest rollouts", "staleness 1.0")), (True, ("最新的 rollout", "滞后 1.0"))):
        text = io.StringIO()
        console = Console(file=text, width=120, force_terminal=True, color_system=None)
        progress = Progress(console=console, is_chinese=is_chinese)
        with progress:
            progress.start("rft", totals={"trainer": 80}, rollouts=lambda: FOUND)
            progress.on_metrics("explorer", 1, {"rollout/reward/mean": 0.5})
            data = {"sample/staleness/mean": 1.0, "training/rollout_logprobs_diff_mean": 2e-7}
            progress.on_metrics("trainer", 20, data)
        shown = text.getvalue()
        assert all(
            word in shown
            for word in (
                *words,
                "2.0e-07",
                "20/80",
                "剩余" if is_chinese else "ETA",
                "the sum is \\x1b[31m3",
                "[b]1+2=[/b]",
            )
        )
        assert "x" * 40 in shown and "x" * 100 not in shown and "\x1b[31m" not in shown


def test_no_more_is_read_of_a_stage_that_has_ended() -> None:
    progress, text, clock = plain(interval_s=1e9)
    watched(progress, lambda: FOUND, 1, clock)
    before = text.getvalue()
    clock.now += 100.0
    progress.on_metrics("explorer", 9, {"rollout/reward/mean": 0.5})
    assert progress._reading is not None and not progress._reading.is_alive()
    assert "rollout:" not in text.getvalue()[len(before) :]


def test_rollouts_that_another_process_read_are_shown_as_often_as_others() -> None:
    progress, text, clock = plain(interval_s=1e9)
    with progress:
        progress.start("rft", totals={"trainer": 80})
        for each in (FOUND[:1], FOUND[:1], []):
            progress.on_rollouts(each, "")
            clock.now += 10.0
        progress.on_rollouts([], "it is damaged")
    line = r"[rft] rollout: reward 1.000, advantage 0.500: '1+2=' -> 'the sum is \\x1b[31m3'"
    assert text.getvalue().splitlines() == [line, "[rft] the rollouts cannot be shown: it is damaged"]


def test_a_terminal_has_the_panel_of_rollouts_that_another_process_read() -> None:
    text = io.StringIO()
    console = Console(file=text, width=120, force_terminal=True, color_system=None)
    with Progress(console=console, is_chinese=False) as progress:
        progress.start("rft", totals={"trainer": 80})
        progress.on_rollouts(FOUND, "")
    shown = text.getvalue()
    assert "Latest rollouts" in shown and "1+2=" in shown and "the sum is \\x1b[31m3" in shown
