r"""The score of DAPO's problems: the text after the last `Answer:`.

Both sides are brought into the spelling of Lewkowycz et al. 2022 (arXiv:2206.14858, appendix D) and compared as texts.
"""

from __future__ import annotations

import re

from trinity.common.rewards.verl.competition import content_of, last_boxed

TAIL_CHARS, BOXED_CHARS = 300, 100
_SAID = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_REPLACED = (
    ("an ", ""), ("a ", ""), (".$", "$"), (r"\$", ""), (r"\ ", ""), (" ", ""), ("mbox", "text"), (r",\text{and}", ","),
    (r"\text{and}", ","), (r"\text{m}", r"\text{}"),
)  # fmt: skip
_REMOVED = (
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", r"\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", r"\text{s}", r"\text{.}", "\\text{\ns}", r"\text{}^2", r"\text{}^3", "\\text{\n}",
    r"\text{}", r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', r"\dots",
)  # fmt: skip
_UNWRAPPED = (
    (r"(?s)^(.*?)\$(.*?)\$(.*)$", r"$\2$"),
    (r"\\text\{(.*?)\}", r"\1"),
    (r"\\textbf\{(.*?)\}", r"\1"),
    (r"\\overline\{(.*?)\}", r"\1"),
    (r"\\boxed\{(.*)\}", r"\1"),
    (r"frac([^{])(.)", r"frac{\1}{\2}"),
    (r"sqrt([^{])", r"sqrt{\1}"),
)


def plain(answer: str) -> str:
    """Return an answer in the spelling in which answers are compared."""
    text = answer.rpartition("=")[2]
    for before, after in _REPLACED:
        text = text.replace(before, after)
    for word in _REMOVED:
        text = text.replace(word, "")
    for pattern, into in _UNWRAPPED:
        text = re.sub(pattern, into, text)
    text = text.replace("$", "")
    return (text.replace(",", "") if text.replace(",", "").isdigit() else text).strip()


def score(response: str, truth: str) -> dict[str, float]:
    r"""Return `score` (1 or -1) and `acc` (1 or 0).

    Where the end of the response says no `Answer:`, what its last `\boxed{}` holds has to be the truth to the letter.
    """
    said = _SAID.findall(response[-TAIL_CHARS:])
    if said:
        is_right = plain(said[-1]) == plain(truth)
    else:
        boxed = last_boxed(response[-BOXED_CHARS:])
        is_right = boxed is not None and content_of(boxed) == truth
    return {"score": 1.0 if is_right else -1.0, "acc": float(is_right)}
