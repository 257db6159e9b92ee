"""Draws the pictures of the guides in `docs/images`.

`python -m tools.guide_pictures batches` draws `batches.png`; `python -m tools.guide_pictures curve FOLDER` draws
`rft.png` from the folder of a finished `trinity quickstart`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.patches import FancyBboxPatch

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
TASKS, REPEATS, MINI_BATCHES, MICRO_ROWS = 4, 4, 2, 4  # of the picture: batch_size, repeat_times, two mini-batches
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")


def batches(target: Path = IMAGES / "batches.png") -> Path:
    """Draw how tasks become rollouts, training steps and micro-batches; return the file."""
    figure, axes = pyplot.subplots(figsize=(10, 4.4), layout="constrained")
    axes.set(xlim=(0, 100), ylim=(3, 46))
    axes.axis("off")
    _column(axes, 1, "explore step", "buffer.batch_size = 4 tasks")
    _column(axes, 25, "rollouts", "x algorithm.repeat_times = 4: 16 rollouts")
    _column(axes, 56, "training steps", "buffer.train_batch_size = 8 rollouts\n= one optimizer step each (mini-batch)")
    _column(axes, 84, "micro-batches", "max_token_len_per_gpu\none forward, one backward")
    for task in range(TASKS):
        top = 32 - 8 * task
        _box(axes, 2, top, 13, 5, COLOURS[task], f"task {task + 1}")
        _arrow(axes, 15.5, top + 2.5, 24.5, top + 2.5)
        for attempt in range(REPEATS):
            _box(axes, 26 + 5 * attempt, top, 4, 5, COLOURS[task], "")
    for step in range(MINI_BATCHES):
        _step(axes, step)
    axes.text(
        56, 4.4, "ppo_epochs: optimizer steps over the same rollouts, 1 by default", fontsize=7.5, color="#444444"
    )
    axes.text(1, 4.4, "buffer.total_epochs: passes over the taskset", fontsize=7.5, color="#444444")
    pyplot.savefig(target, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return target


def _column(axes: Any, x: float, title: str, below: str) -> None:
    axes.text(x, 44.5, title, fontsize=11, fontweight="bold", va="top")
    axes.text(x, 42.2, below, fontsize=7.5, va="top", color="#444444")


def _box(axes: Any, x: float, y: float, width: float, height: float, colour: str, text: str) -> None:
    style = "round,pad=0,rounding_size=0.6"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=colour, edgecolor="white"))
    axes.text(x + width / 2, y + height / 2, text, color="white", fontsize=9, ha="center", va="center")


def _arrow(axes: Any, x: float, y: float, to_x: float, to_y: float) -> None:
    axes.annotate("", (to_x, to_y), (x, y), arrowprops={"arrowstyle": "->", "color": "#666666"})


def _step(axes: Any, step: int) -> None:
    """Draw one training step: two tasks' rollouts, and the micro-batches that they are computed in."""
    bottom = 22 - 16 * step
    _arrow(axes, 46.5, bottom + 7, 55, bottom + 7)
    axes.add_patch(FancyBboxPatch((56, bottom), 22, 15, boxstyle="round,pad=0,rounding_size=0.8", fill=False))
    axes.text(57, bottom + 0.5, f"step {step + 1}", fontsize=8, va="bottom")
    for task in range(2):
        for attempt in range(REPEATS):
            _box(axes, 57 + 5 * attempt, bottom + 9 - 6 * task, 4, 5, COLOURS[2 * step + task], "")
    for micro in range(2):
        y = bottom + 8.5 - 7.5 * micro
        _arrow(axes, 78.5, y + 3, 83.5, y + 3)
        axes.add_patch(FancyBboxPatch((84, y), 14, 6.2, boxstyle="round,pad=0,rounding_size=0.6", fill=False))
        for row in range(MICRO_ROWS):
            _box(axes, 84.6 + 3.3 * row, y + 1, 2.7, 4.2, COLOURS[2 * step + micro], "")


def curve(folder: Path, target: Path = IMAGES / "rft.png") -> Path:
    """Draw reward and held-out accuracy of the reinforcement stage of a quickstart; return the file."""
    (file,) = folder.glob("checkpoints/**/rft/metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    figure, axes = pyplot.subplots(figsize=(6, 3), layout="constrained")
    for name, label, style in (
        ("rollout/reward/mean", "reward of the rollouts", {"alpha": 0.7}),
        ("eval/addition_test/accuracy/mean@1", "accuracy on held-out problems (greedy)", {"marker": "o"}),
    ):
        points = [(line["step"], line[name]) for line in lines if name in line]
        axes.plot(*zip(*points, strict=True), label=label, **style)
    axes.set(xlabel="explore step", ylim=(0, 1.05))
    axes.grid(alpha=0.3)
    axes.legend()
    pyplot.savefig(target, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return target


def main(words: list[str]) -> int:
    """Draw what the command line names; return the exit status."""
    if words == ["batches"]:
        written = batches()
    elif len(words) == 2 and words[0] == "curve":
        written = curve(Path(words[1]))
    else:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    sys.stdout.write(f"{written}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
