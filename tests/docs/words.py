"""Words that pages, messages and docstrings do not use, each with what is written in its place.

One thing has one name: the rollouts of a task have responses and give experiences; the explorer makes explore steps,
the trainer training steps.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

INSTEAD = {
    r"what of": "which part of",
    r"to the bit|bit by bit|equal bits|(?:the )?same bits": "bitwise identical",
    r"mov(?:es?|ing) nothing|moves? neither": "has no effect",
    r"amounts? to": "is, means; its summary",
    r"(?:has )?becom(?:e|es) of|became of": "happens to, happened to",
    r"go(?:es)? on|going on|went on": "continues, resumes",
    r"which is told|(?:is|are) told(?=[ ]?[(][EW])": "is reported",
    r"need not be waited for": "may be abandoned",
    r"ends? the run in order": "shuts down cleanly",
    r"does not pass for bad luck": "usually means",
    r"by reinforcement(?! learning)": "with reinforcement learning",
    r"linear maps?": "linear layer",
    r"number types?": "data type",
    r"dry batch(?:es)?": "synthetic batch",
    r"learnt": "learned",
    r"anew": "again",
    r"mended": "corrected",
    r"explorer steps?": "explore step",
    r"trainer steps?": "training step",
    r"one's own": "your own",
    r"(?:needed|printed) are": "you need, it prints",
    r"bit for bit": "bitwise identical",
    r"goes? past": "exceeds, is not in",
    r"(?:is|are) said (?:by|there)": "is described in, is reported by",
    r"commands of their own": "separate commands",
    r"says? what holds": "explains the rules",
}
"""What is not written, as a pattern of whole words, and what is written in its place."""

CHINESE = {
    "离策略": "off-policy",
    "墙钟": "实际耗时",
    "任务目录": "作业目录",
    "快速入门": "快速上手",
    "试做": "尝试",
    "死掉": "退出",
}
"""The same on Chinese pages, where words have no boundaries."""

IN_CODE = {
    r"task sets?(?! any)": "taskset",
    r"attempts? at (?:a|the|one|each|every) tasks?(?! that)": "rollout",
    r"repeats? of (?:a|the|one|its|unfinished) (?:task|workflow)s?|its repeats": "rollouts of a task",
    r"(?:chosen|rejected|preferred|best|worst) answers?": "response",
    r"answers? of the (?:model|policy)|the (?:model|policy)'s answers?": "response",
    r"samples of (?:a|the|one) (?:task|prompt|group)": "responses to a prompt, rollouts of a task",
    r"(?:trained|evaluation|bad|training) samples?": "experience, rollout",
    r"(?:cannot|can) be had": "be fetched, loaded, opened",
    r"(?:client|caller)s? ha(?:s|ve) gone": "has disconnected",
    r"commonest": "most common",
    r"mend(?:s|ing)?": "correct",
}
"""What messages, help texts, metrics and docstrings do not say either: words that the glossary says otherwise."""


def _compiled(words: Mapping[str, str]) -> dict[re.Pattern[str], str]:
    whole = {pattern.replace(" ", r"\s+"): new for pattern, new in words.items()}
    return {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): new for pattern, new in whole.items()}


PATTERNS = _compiled(INSTEAD) | {re.compile(pattern): new for pattern, new in CHINESE.items()}
CODE_PATTERNS = PATTERNS | _compiled(IN_CODE)


def odd_words(text: str, patterns: Mapping[re.Pattern[str], str] = PATTERNS) -> Iterator[str]:
    """Yield each place of a text that uses such a word, with what to write."""
    for pattern, new in patterns.items():
        for found in pattern.finditer(text):
            line = text[: found.start()].count("\n") + 1
            yield f"line {line}: {' '.join(found.group().split())!r}; write {new!r}"


def texts_of(path: Path) -> str:
    """Return messages, help texts and docstrings of a module, a line each.

    The parts of a message that values fill are `…`.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            found.append(node.value)
    return "\n".join(found)
