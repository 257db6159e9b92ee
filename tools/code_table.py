"""Write the page of all codes in both languages: `python -m tools.code_table`.

What a code says is read from the places that raise it, and why it is an error or a warning from `trinity.common.codes`.
A test says when a page is old.
"""

from __future__ import annotations

import re
from pathlib import Path

from trinity.common import codes
from trinity.explain.code_messages import messages

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {
    "en": {
        "page": "docs/codes.md",
        "title": "Codes of errors and warnings",
        "other": "[中文](codes.zh.md)",
        "intro": """\
An error is for what would be wrong, lost or ignored; everything else is a warning that says what is done instead. The
page is made from the source by `python -m tools.code_table`. A code says what the message of its first place says, in
which … stands for a name or a value; a message also tells the key, the rule, the value and the way out. With
`--schema-only`, what depends on the machine or on the version (E1900, names of plugins) is a warning.""",
        "reasons": "Reasons",
        "errors": "Errors",
        "warnings": "Warnings",
        "head": "| Code | What it says | Reason |",
    },
    "zh": {
        "page": "docs/codes.zh.md",
        "title": "错误与警告的代码",
        "other": "[English](codes.md)",
        "intro": """\
会算错、会丢失或会被忽略的，是错误；其余都是警告，并说明实际做了什么。
本页由 `python -m tools.code_table` 从源码生成。
一个代码的说明取自第一处给出它的地方，照消息原文（英文），其中的 … 代表一个名字或一个值；消息本身还会写出
配置项、规则、值和办法。用 `--schema-only` 时，取决于机器或版本的（E1900、插件的名字）是警告。""",
        "reasons": "理由",
        "errors": "错误",
        "warnings": "警告",
        "head": "| 代码 | 说明 | 理由 |",
    },
}
CHINESE = {
    codes.WRONG: "结果错误：会算出与所写不同的结果，或根本无法计算",
    codes.LOST: "丢失：写入、训练或测得的内容会丢失或被覆盖",
    codes.IGNORED: "被忽略：写了却不会执行",
    codes.UNREADABLE: "无法解析：无法确定含义",
    codes.MACHINE: "机器：缺少运行所需的东西",
    codes.DATA: "数据：有些行会丢失或被读错",
    codes.FAILED: "失败：运行中出了故障，继续会丢失内容或产生虚假内容",
    codes.NUMBERS: "数值：权重会被破坏",
    codes.CHECKPOINT: "检查点：会从另一个状态继续",
    codes.SHARED: "共用：两个进程会写相同的文件",
    codes.SAME: "相同：实际执行的内容（或换用的名称）结果相同",
    codes.IDLE: "不起作用：该配置项在本次运行中没有作用，所要求的也都不缺",
    codes.UNUSUAL: "不常见：照所写执行，但可能并非本意",
    codes.UNSEEN: "无法预知：此处无法判断，运行时检查",
}


def page(language: str) -> str:
    """Return the page in `en` or `zh`."""
    text = TEXTS[language]
    reasons = {reason: reason if language == "en" else CHINESE[reason] for reason in CHINESE}
    lines = [f"# {text['title']}", "", text["other"], "", text["intro"], "", f"## {text['reasons']}", ""]
    lines += [f"- {reason}" for reason in reasons.values()]
    for kind, first in (("errors", "E"), ("warnings", "W")):
        lines += ["", f"## {text[kind]}", "", text["head"], "|---|---|---|"]
        for code, said in messages().items():
            if code.startswith(first):
                word = re.split("[:：]", reasons[codes.reason_of(code)])[0]
                lines.append(f"| {code} | {_cell(said)} | {word} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Return a message as a cell of a table: one line, without marks."""
    plain = re.sub(r"[`*]", "", " ".join(text.split())).strip(" :;,")
    return plain.replace("|", "/").replace("<", "&lt;").replace("[", "\\[")


if __name__ == "__main__":
    for language, words in TEXTS.items():
        (ROOT / words["page"]).write_text(page(language), encoding="utf-8")
