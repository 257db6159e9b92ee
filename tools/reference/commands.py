"""The page of all commands with their arguments and options, from the program itself: `docs/cli.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from tools.reference.text import cell, code, finished, head, row, table
from trinity.cli.app import app
from trinity.cli.language import in_chinese
from trinity.common.errors import ExitCode

NAME = "cli"
PROGRAM = "trinity"
LEFT_OUT = ("--install-completion", "--show-completion")
"""Options of the program that typer brings; `docs/configuration.md` says what completion does."""

TEXTS = {
    "en": {
        "title": "Commands, options and exit codes",
        "intro": """
Every command with its arguments and options, made from the program by `python -m tools.reference`; `trinity COMMAND --help` says
the same on the terminal. An option that takes several values is repeated: `--set a.b=1 --set c.d=2`.""",
        "head": ("Argument or option", "Default", "Meaning"),
        "required": "required",
        "several": "several",
        "exit": "Exit codes",
        "exit_head": ("Code", "Meaning"),
        "exit_after": """
So `trinity run --config run.yaml && next-command` does what it says. What a code of an error such as E1203 means is on the
[page of codes](codes.md), and `trinity explain E1203` says it.""",
    },
    "zh": {
        "title": "命令、选项与退出码",
        "intro": """
每个命令及其参数和选项，由 `python -m tools.reference` 从程序生成；`trinity COMMAND --help` 在终端上说明同样的内容
（终端的语言是中文时以中文说明）。
可以有多个值的选项重复书写：`--set a.b=1 --set c.d=2`。""",
        "head": ("参数或选项", "默认值", "含义"),
        "required": "必填",
        "several": "可多个",
        "exit": "退出码",
        "exit_head": ("代码", "含义"),
        "exit_after": """
所以 `trinity run --config run.yaml && next-command` 的行为与字面一致。E1203 这样的错误代码的含义见
[代码](codes.zh.md)一页，`trinity explain E1203` 也会说明。""",
    },
}
EXIT_CODES: dict[tuple[ExitCode, ...], tuple[str, str]] = {
    (ExitCode.DONE,): ("everything that was asked for is done", "要求的事情全部完成"),
    (ExitCode.USAGE,): ("usage or configuration", "用法或配置有误"),
    (ExitCode.ENVIRONMENT,): (
        "environment: a path, device, package or permission is missing",
        "环境：缺少路径、设备、软件包或权限",
    ),
    (ExitCode.DATA,): ("data that cannot be used", "数据无法使用"),
    (ExitCode.RUNTIME,): ("failure of the run", "运行失败"),
    (ExitCode.NUMERIC,): ("numbers that are not finite, several times in a row", "连续多次出现非有限的数值"),
    (ExitCode.CHECKPOINT,): (
        "checkpoint missing, damaged or of another configuration",
        "检查点缺失、损坏或属于另一份配置",
    ),
    (ExitCode.ALREADY_RUNNING,): ("another process runs this job", "另一个进程正在运行这个作业"),
    (ExitCode.STARVED,): (
        "no experience arrived before the deadline, the explorers ended before `trainer.total_steps` of a trainer apart, a "
        "queue of demonstrations was used up, or all rollouts failed or were dropped by operators, so that no step was "
        "trained",
        "期限之内没有等到经验；分开运行的 trainer 尚未到 `trainer.total_steps`，explorer 就已结束；演示队列已用完；"
        "或者所有 rollout 都失败或被算子丢弃，没有训练任何一步",
    ),
    (ExitCode.INTERRUPTED, ExitCode.TERMINATED): (
        "stopped by Ctrl-C, or by SIGTERM or SIGHUP",
        "被 Ctrl-C 停止，或者被 SIGTERM、SIGHUP 停止",
    ),
}


def page(language: str) -> str:
    """Return the page in `en` or `zh`."""
    text = TEXTS[language]
    lines = head(NAME, language, text["title"], text["intro"])
    for name, command in commands():
        lines += [
            "",
            f"{'##' if name.count(' ') < 2 else '###'} `{name}`",
            "",
            *_paragraphs(_in(language, command.help)),
        ]
        rows = [_row(parameter, language) for parameter in command.params if _is_shown(parameter)]
        if rows:
            lines += table(text["head"], rows)
    lines += ["", f"## {text['exit']}", "", row(text["exit_head"]), "|---|---|"]
    for codes, meanings in EXIT_CODES.items():
        lines.append(row([", ".join(str(int(each)) for each in codes), meanings[language == "zh"]]))
    return finished([*lines, *text["exit_after"].rstrip().splitlines()])


def commands() -> Iterator[tuple[str, Any]]:
    """Yield name and command of the program and of everything below it, without what is hidden."""
    yield from _below(PROGRAM, typer.main.get_command(app))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, inner in dict(vars(command).get("commands") or {}).items():
        if not inner.hidden:
            yield from _below(f"{name} {word}", inner)


def _is_shown(parameter: Any) -> bool:
    return not parameter.hidden and not set(parameter.opts) & set(LEFT_OUT)


def _paragraphs(text: str) -> list[str]:
    return [line if line.startswith("`") else cell(line) if line else "" for line in text.splitlines()]


def _in(language: str, text: str | None) -> str:
    return in_chinese(text) if text and language == "zh" else text or ""


def _row(parameter: Any, language: str) -> tuple[str, str, str]:
    text = TEXTS[language]
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar or parameter.name.upper()]
    takes = parameter.multiple if is_option else parameter.nargs == -1
    default = parameter.default
    if parameter.required:
        shown = text["required"]
    elif takes:
        shown = text["several"]
    else:
        is_told = default not in (None, "") and default is not False
        shown = code(default if isinstance(default, int | float) else str(default)) if is_told else ""
    return ", ".join(map(code, names)), shown, _in(language, parameter.help)
