"""The words of a summary, in English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")


class Text(NamedTuple):
    """A text in both languages."""

    en: str
    zh: str


WORDS = {
    "title": Text("Summary of a run", "运行摘要"),
    "job": Text("Job", "作业"),
    "stage": Text("Stage", "阶段"),
    "status": Text("Status", "状态"),
    "error": Text("Error", "错误"),
    "training_step": Text("Training step", "训练步"),
    "explore_step": Text("Explore step", "探索步"),
    "seconds": Text("Seconds", "秒数"),
    "metrics": Text("Before and after", "前后对比"),
    "metric": Text("Metric", "指标"),
    "before": Text("Before", "之前"),
    "after": Text("After", "之后"),
    "of": Text("Of", "取自"),
    "evaluation": Text("evaluations at steps {first} and {last}", "第 {first} 步和第 {last} 步的评测"),
    "tenths": Text(
        "first and last tenth of steps {first} to {last}", "第 {first} 到 {last} 步的前十分之一和后十分之一"
    ),
    "best": Text("Best step", "最佳步"),
    "initial": Text("the initial model", "初始模型"),
    "not_kept": Text("the checkpoint of training step {step} is not kept", "训练步 {step} 的检查点没有保留"),
    "unknown_weights": Text("its weights are not known", "权重未知"),
    "checkpoints": Text("Checkpoints", "检查点"),
    "hf": Text("with Hugging Face weights", "带 Hugging Face 权重"),
    "none": Text("none", "无"),
    "curve": Text("Learning curve", "学习曲线"),
    "rollouts": Text("What happened to the rollouts", "各次 rollout 的去向"),
    "buffer": Text("Buffer", "缓冲区"),
    "fate": Text("What", "去向"),
    "number": Text("Number", "数目"),
    "why": Text("Why", "原因"),
    "counts": Text("Also left out or done again", "另外被略去或重做的"),
    "work": Text("Tokens and time", "token 与时间"),
    "part": Text("Part", "部分"),
    "tokens": Text("Tokens", "token 数"),
    "samples": Text("What the model said", "模型的回复"),
    "prompt": Text("Prompt", "提示"),
    "response": Text("Response", "回复"),
    "truth": Text("Truth", "标准答案"),
    "commands": Text("Next", "接下来"),
    "notes": Text("What is missing here", "这里缺少的内容"),
    "overlap": Text("Parts overlap: explorer and trainer work side by side.", "各部分会重叠：探索与训练同时进行。"),
}

CURVES = {
    "reward": Text("reward (sampled)", "奖励（采样）"),
    "loss": Text("loss", "损失"),
    "length": Text("length of responses", "回复长度"),
    "tokens": Text("tokens (mean)", "token 数（均值）"),
    "step": Text("step", "步"),
}
"""What stands in a picture."""

TABLE = {
    "summary": Text("summary of {job}", "{job} 的摘要"),
    "at_training_step": Text("training step", "训练步"),
    "at_explore_step": Text("explore step", "探索步"),
    "column_metric": Text("metric", "指标"),
    "column_before": Text("before", "之前"),
    "column_after": Text("after", "之后"),
    "more": Text("and {left} more in summary.json", "另有 {left} 项在 summary.json 中"),
    "best_step": Text("best step", "最佳步"),
    "kept": Text("checkpoints", "检查点"),
    "of_rollouts": Text("rollouts", "rollout"),
    "dropped": Text("dropped", "丢弃"),
    "dropped_of": Text("{count} of {issued}: {fate}, {why}", "{issued} 中的 {count}：{fate}，{why}"),
    "nothing": Text("nothing", "无"),
    "also": Text("also", "另外"),
    "time": Text("time", "用时"),
    "of_tokens": Text("tokens", "token"),
    "generated": Text("generated", "生成"),
    "trained": Text("trained", "训练"),
    "of_curve": Text("curve", "曲线"),
    "report": Text("report", "报告"),
    "next": Text("next", "接下来"),
    "missing": Text("missing", "缺少"),
}
"""The lines of a terminal after a run."""

LIVE = {
    "step": Text("step {}", "步 {}"),
    "left": Text("ETA {}", "剩余 {}"),
    "reward": Text("reward {}", "奖励 {}"),
    "loss": Text("loss {}", "损失 {}"),
    "evaluation": Text("eval {}", "评测 {}"),
    "trained": Text("{} tok/s", "训练 {} token/s"),
    "sampled": Text("sampled {} tok/s", "采样 {} token/s"),
    "staleness": Text("staleness {}", "滞后 {}"),
    "mismatch": Text("mismatch {}", "引擎偏差 {}"),
    "latest": Text("Latest rollouts", "最新的 rollout"),
    "rollout": Text("rollout:", "rollout："),
    "reward_of": Text("reward", "奖励"),
    "advantage": Text("advantage", "优势"),
    "prompt": Text("prompt", "提示"),
    "response": Text("response", "回复"),
    "unread": Text("the rollouts cannot be shown: {}", "无法显示 rollout：{}"),
}
"""What is shown while a run is running; in braces is the number."""

STATES = {
    "done": Text("done", "完成"),
    "stopped": Text("stopped", "已停止"),
    "failed": Text("failed", "失败"),
    "killed": Text("killed", "被杀掉"),
    "running": Text("running", "运行中"),
}

PARTS = {
    "explore": Text("explore", "探索"),
    "train": Text("train", "训练"),
    "sync": Text("synchronise weights", "同步权重"),
    "evaluate": Text("evaluate", "评测"),
    "save": Text("save checkpoints", "保存检查点"),
    "wait_for_experiences": Text("trainer waits for experiences", "训练等待经验"),
    "wait_for_weights": Text("explorer waits for weights", "探索等待权重"),
}

COUNTED = {
    "skipped_steps": Text("optimizer steps skipped: their gradient was not finite", "跳过的优化器步：梯度不是有限数"),
    "truncated_prompts": Text("prompts cut to max_prompt_tokens", "按 max_prompt_tokens 截断的提示"),
    "truncated_responses": Text("responses cut by a length limit", "因长度限制被截断的回复"),
    "retried_attempts": Text("rollouts made again", "重新执行的 rollout"),
}

COMMANDS = {
    "resume": Text("continue from the last checkpoint", "从最近的检查点继续"),
    "show": Text("read what the model said", "查看模型的回复"),
    "view": Text("the same in a browser", "在浏览器中查看"),
    "export": Text("experiences as a file", "把经验导出为文件"),
    "convert": Text("the last checkpoint for other tools", "把最近的检查点转给其他工具"),
    "curves": Text("all metrics as curves", "所有指标的曲线"),
}

_FATES = {
    "trained": Text("used by a training step", "被训练步使用"),
    "waiting": Text("in the buffer, and not used yet", "在缓冲区中，尚未使用"),
    "stale": Text("too old for `staleness_control`", "对 `staleness_control` 来说太旧"),
    "failed/workflow": Text("the workflow failed", "工作流出错"),
    "failed/over_memory": Text("the rollout took too much memory", "rollout 占用内存过多"),
    "failed/timeout": Text(
        "not done before its deadline (explorer.max_timeout)", "到期限仍未完成（explorer.max_timeout）"
    ),
    "failed/reward_timeout": Text("the reward function was stopped at its deadline", "奖励函数到期限被停止"),
    "failed/reward_error": Text("the reward function failed", "奖励函数出错"),
    "failed/rejected": Text("what it gave cannot be trained on", "得到的内容不能用于训练"),
    "failed/baseline": Text("its task has no greedy rollout to compare with", "任务缺少用来比较的贪心 rollout"),
    "failed/unfinished": Text("not waited for (explorer.over_rollout)", "没有等待其结束（explorer.over_rollout）"),
    "failed/oversize": Text("too large to be stored", "太大，无法存储"),
    "failed/unreadable": Text("damaged in the database", "在数据库中已损坏"),
    "filtered/duplicate": Text("the log had it already", "日志中已有"),
}


def reason_of(fate: str) -> Text:
    """Return why a rollout had this fate."""
    kind, _, name = fate.partition("/")
    if fate in _FATES:
        return _FATES[fate]
    if kind == "filtered":
        return Text(f"left out by {name}", f"被 {name} 略去")
    return Text(fate, fate)


def is_chinese(environment: Mapping[str, str]) -> bool:
    """Return whether a reader with these variables reads Chinese."""
    given = next((environment[name] for name in VARIABLES if environment.get(name)), "")
    return given.lower().startswith("zh")
