"""Texts that a model may write to break what scores it, most of them made by rules."""

from __future__ import annotations

DEPTHS = (40, 3000)
_PAIRS = (
    ("(", ")"),
    ("[", "]"),
    ("{", "}"),
    ("-(", ")"),
    ("\\left(", "\\right)"),
    ("\\frac{1}{", "}"),
    ("\\sqrt{", "}"),
    ("\\boxed{", "}"),
    ("2^{", "}"),
    ("\\text{", "}"),
    ("\\begin{pmatrix}", "\\end{pmatrix}"),
    ("$", "$"),
    ("<think>", "</think>"),
    ("<answer>", "</answer>"),
    ("<tool_call>", "</tool_call>"),
    ('{"name":"f","arguments":', "}"),
    ("```python\n", "\n```\n"),
    ("#### ", ""),
    ("Answer: ", "\n"),
)
NESTED = [
    text
    for opening, closing in _PAIRS
    for depth in DEPTHS
    for text in (opening * depth + "1" + closing * depth, opening * depth, f"{opening}{closing}" * depth)
]
_DIGITS = ("9" * 19, "1" * 65, "9" * 400, "1" * 4301, "7" * 20_000)
_WRITTEN = ("{0}", "-{0}", "{0}/1", "1/{0}", "{0}/{0}", "{0}.{0}", "1e{0}", "{0}!", "0x{0}", "{0}%", "{0}\\%", "0{0}")
NUMBERS = [form.format(digits) for digits in _DIGITS for form in _WRITTEN]
_OPERATORS = ("**", "^", "*", "/", "+", "-", "//", "%", "<<", "!", "\\cdot ", "=", ",", "_")
TOWERS = [operator.join([base] * count) for operator in _OPERATORS for base in ("9", "99.9") for count in (4, 400)]
NO_NUMBERS = [
    *(
        sign + word
        for sign in ("", "-", "+")
        for word in ("nan", "NaN", "inf", "Infinity", "1e999999999", "0", ".", "")
    ),
    *("1/0", "0/0", "1e308*10", "0b11", "1_000_000", "1 if 1 else 2", "lambda: 1", "2**-1", "\\infty", "null", "[NaN]"),
]
_FIRST_DIGITS = (0x660, 0x966, 0xE50, 0x2070, 0x2150, 0x2160, 0x2460, 0x3007, 0x4E00, 0xFF10, 0x10107, 0x1D7CE)
_SIGNS = (
    *range(0x20),
    *range(0x7F, 0xA1, 3),
    0xAD,
    0x301,
    *range(0x200B, 0x2010),
    0x2028,
    0x2029,
    *range(0x202A, 0x202F),
)
_NO_TEXT = (0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0xFDD0, 0xFEFF, 0xFFFE, 0xFFFF, 0x1FFFF, 0x10FFFF)
UNICODE = [
    *("".join(chr(first + place) for place in (1, 0, 5)) for first in _FIRST_DIGITS),
    *(f"10{chr(sign)}5" for sign in (*_SIGNS, *_NO_TEXT)),
    *(chr(sign) * 2000 for sign in (0x00, 0x1B, 0x301, 0x202E, 0xD800, 0xFEFF)),
]
REPEATED = [
    part * (20_000 // len(part))
    for part in (
        "a",
        " ",
        "\n",
        "\t",
        ",",
        "1,",
        "1 ",
        ".",
        "=",
        "\\",
        "$",
        "#",
        "{}",
        "\\frac1",
        "\\sqrt ",
        "\\text{ ",
    )
]
REPEATED += ["a" * 40 + "!", "aa" * 40 + "\n", "1" * 40 + "x", " " * 20_000 + "1", "</answer><answer>" * 1000]
REPEATED += ["<think>" + "</think>" * 3000 + "\\boxed{" * 3000, "<think>" * 3000 + "</think><answer>" * 3000]
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
    "import os\nos.kill(os.getppid(), 9)",
    "'; DROP TABLE experience; --",
    '{"name": "f", "arguments": {"x": NaN}}',
    '{"name": ["f"], "arguments": null}',
    '[[], {"name": 1e999, "arguments": "\\ud800"}]',
]
LATEX = [
    r"9^{9^{9^{9}}}",
    r"\frac{1}{" * 200 + "1" + "}" * 201,
    r"\int_0^1 x^{100000} dx",
    r"\sum_{i=1}^{10000000000} \frac{1}{i^3}",
    r"\prod_{i=1}^{100000} i",
    r"\def\a{\a\a}\a",
    r"\input{/etc/passwd}",
    r"\write18{touch {marker}}",
    r"\begin{pmatrix}" + r"1 & " * 300 + r"1\end{pmatrix}",
    r"\lim_{x \to 0} \frac{\sin(x)^{500}}{x^{500}}",
    r"factorial(99999999)",
    r"x^{x^{x^{x^{x}}}} = y^{y^{y}}",
]
GROUPS = {
    "nested": NESTED,
    "numbers": NUMBERS,
    "towers": TOWERS,
    "no numbers": NO_NUMBERS,
    "unicode": UNICODE,
    "repeated": REPEATED,
    "code": CODE,
    "latex": LATEX,
}
TEXTS = list(dict.fromkeys(text for group in GROUPS.values() for text in group))
