"""The page of all metrics, from `trinity/explain/metrics.yaml`: `docs/metrics.md`."""

from __future__ import annotations

from tools.reference.text import cell, code, finished, head, table
from trinity.explain.metrics import WORDS, Metric, groups, said, verl_name
from trinity.monitor.verl_names import SAME

NAME = "metrics"
TEXTS = {
    "en": {
        "title": "Metrics",
        "intro": """
Every metric that a run writes: unit, formula, what a healthy run shows, and its name in TRL and veRL where that differs.
Made by `python -m tools.reference`; `trinity explain actor/kl_loss` says the same of one metric on the terminal.

Metrics are lines of `metrics.jsonl` in the job folder: `actor`, `seq`, `step`, `time` and the values. [Trackers](monitoring.md#trackers)
show them under the same names; `monitor.verl_names: true` adds veRL's.

**Two step axes.** A line of the explorer counts explore steps (a batch of tasks), one of the trainer counts training steps
(a batch of rollouts). With different `synchronizer.explorer_sync_interval` and `synchronizer.trainer_sync_interval` they
advance at different speeds, so compare curves of the two by time, or by `rollout/model_version`, which is the training
step of the weights that explored. Names that end in `{mean,max,min}` are three metrics; `monitor.detailed_stats: true`
adds `std`, `p10`, `p50` and `p90` to those of rollouts, lengths and evaluations.

**What to look at first.** `rollout/reward/mean` and `eval/<taskset>/<metric>/mean@<n>` should rise.
`rollout/frac_reward_zero_std` says how many tasks teach nothing, `actor/entropy_loss` whether the policy collapses,
`actor/ppo_kl` and `actor/pg_clipfrac` whether steps are too large, `response_length/clip_ratio` whether answers are cut,
`training/rollout_logprobs_diff_max` whether engine and trainer agree, `time/wait_weight` and `time/read_experience` who
waits for whom.

**Names that mislead**, kept because they are those of veRL or Trinity-RFT: `actor/entropy_loss` is the entropy itself.
`actor/ppo_kl` is the distance from the policy that sampled, and may be negative; the distance from the reference model is
`actor/kl_loss`. `critic/rewards` and `critic/advantages` need no critic. `response_length/clip_ratio` is the share of cut
responses. `perf/throughput` is that of all devices together. `..._run_count` counts rollouts.
A value that drifts between `sample/staleness` and `sample/model_version_drift` is the same difference counted from two
places: the second is always one more.""",
        "axis": "Step axis: {steps}.",
        "head": ("Metric", "Unit", "What it is", "Healthy", "TRL; veRL"),
        "formula": "Formula: {formula}.",
        "same": "Ours, and veRL's name of the same:",
        "same_head": ("Here", "veRL"),
        "open": "Names that plugins choose.",
    },
    "zh": {
        "title": "指标",
        "intro": """
一次运行写出的每个指标：单位、公式、健康的运行是什么样，以及在 TRL 和 veRL 中不同的名字。
由 `python -m tools.reference` 生成；`trinity explain actor/kl_loss` 在终端上说明单个指标。

指标是作业目录中 `metrics.jsonl` 的行：`actor`、`seq`、`step`、`time` 和各个值。[实验跟踪工具](monitoring.zh.md#实验跟踪工具)
以同样的名字显示；`monitor.verl_names: true` 再加上 veRL 的名字。

**两种步。** explorer 的行以探索步（一批任务）计数，trainer 的行以训练步（一批 rollout）计数。
`synchronizer.explorer_sync_interval` 与 `synchronizer.trainer_sync_interval` 不同时，两者推进的速度不同，
所以比较两边的曲线要按时间，或按 `rollout/model_version`，即用于探索的权重所在的训练步。
以 `{mean,max,min}` 结尾的名字是三个指标；`monitor.detailed_stats: true` 给 rollout、长度和评测的指标再加上
`std`、`p10`、`p50` 和 `p90`。

**先看什么。** `rollout/reward/mean` 和 `eval/<taskset>/<metric>/mean@<n>` 应当上升。
`rollout/frac_reward_zero_std` 说明有多少任务学不到东西，`actor/entropy_loss` 说明策略是否坍缩，
`actor/ppo_kl` 和 `actor/pg_clipfrac` 说明步子是否过大，`response_length/clip_ratio` 说明回答是否被截断，
`training/rollout_logprobs_diff_max` 说明引擎与 trainer 是否一致，`time/wait_weight` 和 `time/read_experience` 说明谁在等谁。

**容易误解的名字**，因为是 veRL 或 Trinity-RFT 的名字而保留：`actor/entropy_loss` 就是熵本身。
`actor/ppo_kl` 是与采样时策略的距离，可能为负；与参考模型的距离是 `actor/kl_loss`。
`critic/rewards` 和 `critic/advantages` 不需要 critic。`response_length/clip_ratio` 是被截断的回答比例。
`perf/throughput` 是所有设备合计。`..._run_count` 按 rollout 计数。
`sample/staleness` 与 `sample/model_version_drift` 是同一差值从两处数起，后者总大 1。""",
        "axis": "步：{steps}。",
        "head": ("指标", "单位", "是什么", "健康范围", "TRL；veRL"),
        "formula": "公式：{formula}。",
        "same": "我们的名字，以及 veRL 对同一指标的名字：",
        "same_head": ("这里", "veRL"),
        "open": "由插件命名。",
    },
}


def page(language: str) -> str:
    """Return the page in `en` or `zh`."""
    text = TEXTS[language]
    lines = head(NAME, language, text["title"], text["intro"])
    for group in groups():
        lines += ["", f"## {said(group.title, language)}", "", cell(said(group.about, language))]
        lines.append(text["axis"].format(steps=said(WORDS[group.steps], language)))
        lines += table(text["head"], (_row(metric, language) for metric in group.metrics))
    lines += ["", text["same"]]
    lines += table(text["same_head"], ((code(ours), code(theirs)) for ours, theirs in SAME.items()))
    return finished(lines)


def _row(metric: Metric, language: str) -> tuple[str, str, str, str, str]:
    text = TEXTS[language]
    meaning = [said(metric.meaning, language)]
    meaning += [text["formula"].format(formula=code(metric.formula))] if metric.formula else []
    meaning += [text["open"]] if metric.is_open else []
    others = [code(metric.trl) if metric.trl else "-", code(verl_name(metric)) if verl_name(metric) else "-"]
    healthy = said(metric.healthy, language) if metric.healthy is not None else ""
    between = "" if language == "zh" else " "
    return (
        code(metric.shown),
        metric.unit,
        between.join(meaning),
        healthy,
        "; ".join(others) if set(others) != {"-"} else "",
    )
