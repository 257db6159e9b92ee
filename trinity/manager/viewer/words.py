"""The words of the viewer, in English and Chinese."""

from __future__ import annotations

from trinity.common.schema.sql_schema import CLAIMED, DROPPED, READY, TRAINED
from trinity.manager.language import in_language
from trinity.summary.words import Text

STATES = {
    READY: Text("ready", "待用"),
    CLAIMED: Text("claimed", "已领取"),
    TRAINED: Text("trained", "已训练"),
    DROPPED: Text("dropped", "已丢弃"),
}

COLUMNS = {
    "id": Text("id", "编号"),
    "task": Text("task", "任务"),
    "run": Text("rollout", "rollout"),
    "turn": Text("turn", "轮次"),
    "reward": Text("reward", "奖励"),
    "state": Text("state", "状态"),
    "weights": Text("model version", "模型版本"),
    "explore_step": Text("explore step", "探索步"),
    "trained_step": Text("training step", "训练步"),
    "prompt": Text("prompt", "提示"),
    "response": Text("response", "回复"),
    "place": Text("place", "位置"),
    "token": Text("token", "token"),
    "text": Text("text", "文本"),
    "part": Text("part", "部分"),
    "mask": Text("mask", "掩码"),
    "logprob": Text("log-prob", "对数概率"),
    "probability": Text("probability", "概率"),
    "advantage": Text("advantage", "优势"),
    "return": Text("return", "回报"),
    "token_reward": Text("token reward", "token 奖励"),
    "teacher_logprob": Text("teacher log-prob", "教师对数概率"),
    "tokens": Text("response tokens", "回复 token 数"),
    "name": Text("name", "名称"),
    "value": Text("value", "值"),
}
"""Columns of the tables; those of tokens are also what tokens are coloured by."""

PARTS = {"prompt": Text("prompt", "提示"), "response": Text("response", "回复")}

WORDS = {
    "title": Text("Experiences", "经验"),
    "language": Text("Language", "语言"),
    "filters": Text("Filters", "筛选"),
    "ask_text": Text("Text", "文本"),
    "ask_text_help": Text("A part of the prompt or the response.", "提示或回复中的一部分。"),
    "ask_task": Text("Task", "任务"),
    "ask_task_help": Text("The group, as the column “task” has it.", "即分组，写法与“任务”一列相同。"),
    "ask_state": Text("State", "状态"),
    "ask_reason": Text("Why dropped", "丢弃原因"),
    "ask_reason_help": Text(
        "As the column “state” has it after “dropped”, for example stale.",
        "即“状态”一列中“已丢弃”之后的内容，例如 stale。",
    ),
    "ask_least": Text("Least reward", "最小奖励"),
    "ask_most": Text("Most reward", "最大奖励"),
    "ask_run": Text("Run", "运行"),
    "ask_run_help": Text("As the run is called: project/name.", "运行的名称：project/name。"),
    "ask_step": Text("Training step", "训练步"),
    "ask_step_help": Text("The training step that used the experiences.", "使用了这些经验的训练步。"),
    "ask_below": Text("Below id", "编号小于"),
    "ask_below_help": Text("Older ones only.", "只看更早的经验。"),
    "ask_page": Text("Page", "页"),
    "ask_page_help": Text("The newest first.", "最新的在前。"),
    "ask_id": Text("Experience", "经验"),
    "ask_show": Text("What is shown of it", "显示内容"),
    "ask_colour": Text("Colour by", "着色依据"),
    "ask_tokens": Text("Part of the tokens", "token 的第几部分"),
    "found": Text("{number} experiences, page {page} of {pages}", "{number} 条经验，第 {page} 页，共 {pages} 页"),
    "older": Text("Older ones", "更早的"),
    "none": Text("No experience meets the filters.", "没有符合筛选条件的经验。"),
    "none_yet": Text(
        "No experience meets the filters among those from id {below} on, which were looked at in time.",
        "已在限定时间内查看编号 {below} 及以后的经验，没有符合筛选条件的。",
    ),
    "gone": Text("There is no experience {id}.", "没有编号为 {id} 的经验。"),
    "cannot": Text("The experiences cannot be shown.", "无法显示经验。"),
    "link": Text("Link to what is shown", "当前内容的链接"),
    "link_help": Text(
        "Put what follows “?” after the address of another viewer of this database to see the same there.",
        "把“?”之后的内容接到此数据库另一个查看器的地址后面，会显示相同的内容。",
    ),
    "unread": Text(
        "What the link says of these is not understood, and was left out:", "链接中的以下内容无法理解，已略去："
    ),
    "title_line": Text(
        "{id}: task {task}, rollout {run}, turn {turn}, {reward}",
        "{id}：任务 {task}，rollout {run}，轮次 {turn}，{reward}",
    ),
    "reward_is": Text("reward {reward:.6g}", "奖励 {reward:.6g}"),
    "no_reward": Text("no reward", "没有奖励"),
    "show_trajectory": Text("Trajectory", "轨迹"),
    "show_tokens": Text("Tokens", "token"),
    "show_group": Text("Group", "同组回复"),
    "show_facts": Text("Facts", "详情"),
    "rewards": Text("Reward and metrics", "奖励与指标"),
    "prompt": Text("Prompt", "提示"),
    "prompt_of": Text("Prompt of turn {turn}", "轮次 {turn} 的提示"),
    "response": Text("Response", "回复"),
    "open": Text("Open {id}", "打开 {id}"),
    "nearest": Text("The nearest {number} are shown; there may be more.", "显示最近的 {number} 条；可能还有更多。"),
    "texts_only": Text("This experience has its texts only.", "此经验只有文本。"),
    "no_texts": Text("The tokens are shown without their texts.", "显示 token，但没有它们的文本。"),
    "no_values": Text("The experience has none of these: {what}.", "此经验没有这些值：{what}。"),
    "masked": Text("the model's", "模型生成"),
    "unmasked": Text("not the model's", "非模型生成"),
    "version": Text("version {number}", "版本 {number}"),
    "prompt_tokens": Text("prompt, or no value", "提示，或没有值"),
    "part_of": Text("Tokens {first} to {last} of {number}", "第 {first} 到 {last} 个 token，共 {number} 个"),
    "token_text": Text("Text of the tokens, coloured", "着色的 token 文本"),
    "too_large": Text(
        "The payloads of this group are too large to be read at once: metrics and advantages are left out.",
        "此组的载荷太大，不能一次读取：略去指标与优势。",
    ),
    "cut": Text("The first {shown} of {number} characters are shown.", "显示前 {shown} 个字符，共 {number} 个。"),
}

_ALL = {f"col_{name}": text for name, text in COLUMNS.items()} | WORDS


def word(name: str, **values: object) -> str:
    """Return a text of the page in the language that is chosen.

    Args:
        name: of the text; `col_` and a name of `COLUMNS` for that of a column.
        values: of the places in its braces.
    """
    return in_language(_ALL[name]).format(**values)
