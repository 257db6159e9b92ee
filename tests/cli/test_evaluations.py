"""The table of an evaluation."""

from __future__ import annotations

from trinity.cli.evaluations import table_lines


def test_each_checkpoint_taskset_and_metric_has_a_row_in_the_order_of_training() -> None:
    metrics = {
        "bench/gsm8k/accuracy/mean@4": 0.5, "bench/gsm8k/accuracy/stderr@4": 0.0625, "bench/gsm8k/accuracy/std@4": 0.1,
        "bench/a/b/reward/mean@1": -1.25, "bench/gsm8k/finished_task_count": 16.0, "time/eval": 3.0,
    }  # fmt: skip
    assert table_lines({12: metrics, 0: {"bench/gsm8k/accuracy/mean@4": 0.25}}) == [
        "checkpoint      taskset  metric    mean     standard error",
        "initial model   gsm8k    accuracy  0.2500   -",
        "global_step_12  a/b      reward    -1.2500  -",
        "global_step_12  gsm8k    accuracy  0.5000   0.0625",
    ]
    assert table_lines({}) == []
