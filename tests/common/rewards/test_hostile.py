"""Whatever a model writes: a score or a `RewardError` within the deadline, and no side effect."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from trinity.common.rewards import REWARD_FUNCTIONS, RewardError

DEADLINE_S = 0.5
START_S = 60.0  # a killed worker starts again before the next call; the machine may be very busy

ARITHMETIC = [
    "44**19**35",
    "9**9**9**9",
    "9^9^9^9",
    "2**-1",
    "1" * 5000,
    "9" * 300 + "*" + "9" * 300,
    "1/0",
    "0/0",
    "1e308*10",
    "1e999999999",
    "inf",
    "nan",
    "-" * 4000 + "1",
    "1+" * 5000 + "1",
    "(" * 3000,
    "(" * 150 + "1" + ")" * 150,
    "[" * 500 + "]" * 500,
    "0x" + "f" * 300,
    "0b11",
    "1_000_000",
    "100000000!",
    "1 if 1 else 2",
    "lambda: 1",
]
UNICODE = [
    "١٢٣",
    "１０５",
    "²³",
    "½",
    "𝟗𝟗",
    "105\u200b",
    "\ufeff105",
    "1\u00a0000",
    "\x00",
    "\x1b[31m105",
    "\ud800",
    "e\u0301" * 200,
]
CODE = [
    "__import__('os').system('touch {marker}')",
    "().__class__.__bases__[0].__subclasses__()",
    "open('{marker}', 'w')",
    "exec(\"open('{marker}','w')\")",
    "[x for x in ().__class__.__mro__]",
    "{0.__class__.__init__.__globals__}",
    "%s%s%s%n",
    "${jndi:ldap://127.0.0.1/a}",
    "{{ ''.__class__.__mro__ }}",
    "`touch {marker}`; touch {marker}",
    "import os\nos._exit(0)",
    "'; DROP TABLE experience; --",
]
LATEX = [
    r"\boxed{9^{9^{9^{9}}}}",
    r"\boxed{" + r"\frac{1}{" * 200 + "1" + "}" * 201,
    r"\boxed{\int_0^1 x^{100000} dx}",
    r"\boxed{\sum_{i=1}^{10000000000} \frac{1}{i^3}}",
    r"\boxed{\prod_{i=1}^{100000} i}",
    r"\def\a{\a\a}\a \boxed{\a}",
    r"\boxed{" * 500,
    r"\boxed{\sqrt{" + r"\sqrt{" * 60 + "2" + "}" * 62,
    r"\input{/etc/passwd}",
    r"\write18{touch {marker}}",
    r"$" * 2001,
    r"\begin{pmatrix}" + r"1 & " * 300 + r"1\end{pmatrix}",
    r"\boxed{\lim_{x \to 0} \frac{\sin(x)^{500}}{x^{500}}}",
    r"\boxed{factorial(99999999)}",
    r"\boxed{x^{x^{x^{x^{x}}}} = y^{y^{y}}}",
]
TAGS = ["<answer>" * 3000, "</answer><answer>", "<think>\n" * 3000, "#" * 20_000, "<answer></answer>", "\n" * 20_000]
CORPUS = [*ARITHMETIC, *UNICODE, *CODE, *LATEX, *TAGS]
TRUTHS = {"countdown_reward": '{"target": 24, "numbers": [4, 6, 8, 8]}'}


def test_the_corpus_is_large() -> None:
    assert len(set(CORPUS)) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accuracy_reward", "math_reward", "format_reward", "countdown_reward"])
@pytest.mark.parametrize(
    "group", [ARITHMETIC, UNICODE, CODE, LATEX, TAGS], ids=["sums", "unicode", "code", "latex", "tags"]
)
def test_hostile_answers_are_scored_or_refused_in_time(name: str, group: list[str], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    takes_deadline = name != "countdown_reward"
    reward = REWARD_FUNCTIONS.get(name)(**({"deadline_s": DEADLINE_S} if takes_deadline else {}))
    truth = TRUTHS.get(name, "\\frac{1}{3}")
    for text in group:
        hostile = text.replace("{marker}", str(marker))
        for response in (hostile, f"<answer>{hostile}</answer>"):
            begin = time.monotonic()
            try:
                scores = reward(response, "prompt", truth)
            except RewardError as error:
                assert error.code in {"E5112", "E5113"}
            else:
                assert all(math.isfinite(score) for score in scores.values())
                assert not {"accuracy": 1.0, "score": 1.0}.items() & scores.items(), f"{response[:60]!r} is not right"
            assert time.monotonic() - begin < DEADLINE_S + START_S, response[:60]
    assert not marker.exists()


@pytest.mark.parametrize("text", CORPUS, ids=range(len(CORPUS)))
def test_hostile_answers_to_a_plain_number_do_not_earn_it(text: str) -> None:
    reward = REWARD_FUNCTIONS.get("accuracy_reward")(deadline_s=DEADLINE_S)
    try:
        assert reward(f"#### {text}", truth="#### 778201") == {"accuracy": 0.0}
    except RewardError as error:
        assert error.code in {"E5112", "E5113"}
