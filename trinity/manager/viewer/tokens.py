"""Tokens of an experience: their texts and numbers, and colours for these.

Dimension key: T = tokens of prompt and response, R = response tokens.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trinity.utils.printable import printable

if TYPE_CHECKING:
    from trinity.common.experience import Experience

Decode = Callable[[Sequence[int]], str]
QUANTITIES = ("logprob", "advantage", "mask", "weights", "return", "token_reward", "teacher_logprob")
LEAST_LOGPROB = -5.0
"""The full colour of log-probabilities, in nats; it is the same for all experiences, so that they compare."""
_LONGEST_CHARACTER = 4  # bytes, each of which may be a token
_ORANGE, _BLUE, _WHITE, _GREY = (245, 158, 66), (92, 164, 240), (255, 255, 255), "#e4e4e4"
_VERSIONS = ("#cfe3ff", "#ffe3b8", "#d3f2d0", "#f6d5f0", "#fff6a8", "#cdf3f1")
_SWATCH = "color:#111;border:1px solid #999;padding:1px 8px;margin-right:6px"
_BOX = "font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.8;tab-size:4"


def texts_of(tokens: Sequence[int], decode: Decode, *, before: Sequence[int] = ()) -> list[str]:
    """Return the text of each token.

    Where a character is in several tokens, the last of them has it and the others have none.

    Args:
        tokens: to be decoded.
        decode: text of tokens.
        before: tokens before these; what a tokenizer writes at the beginning of a text depends on them.
    """
    texts, known, pending = list[str](), list(before), list[int]()
    for token in tokens:
        pending.append(token)
        start, both = decode(known), decode([*known, *pending])
        text = both[len(start) :] if both.startswith(start) else decode(pending)
        if text.endswith("\ufffd") and len(pending) < _LONGEST_CHARACTER:
            texts.append("")
        else:
            texts.append(text)
            known, pending = pending, []
    return texts


def token_rows(
    experience: Experience, decode: Decode | None, *, first: int = 0, last: int | None = None
) -> list[dict[str, Any]]:
    """Return a line for each token of prompt and response.

    Its columns are named as in `COLUMNS` of the words. One is not there where the experience has nothing for it; a
    number that is not finite is None.

    Args:
        experience: with T tokens.
        decode: text of tokens; None: the lines have none.
        first: place of the first one, from 0.
        last: place behind the last one; None: T.
    """
    start, tokens = experience.prompt_length, experience.tokens.tolist()
    last = len(tokens) if last is None else last
    given = _of_response(experience)
    texts = None if decode is None else texts_of(tokens[first:last], decode, before=tokens[max(0, first - 1) : first])
    lines = []
    for place in range(first, last):
        own = place - start
        line: dict[str, Any] = {"place": place, "token": tokens[place]}
        if texts is not None:
            line["text"] = texts[place - first]
        line["part"] = "prompt" if own < 0 else "response"
        if own >= 0:
            line |= {name: values[own] for name, values in given.items()}
        lines.append(line)
    return lines


def _of_response(experience: Experience) -> dict[str, list[Any]]:
    """Return what is known of the R response tokens, by its column."""
    tensors = {
        "mask": experience.action_mask,
        "logprob": experience.logprobs,
        "advantage": experience.advantages,
        "return": experience.returns,
        "token_reward": experience.token_level_reward,
        "teacher_logprob": experience.teacher_logprobs,
    }
    given = {name: [_finite(value) for value in each.tolist()] for name, each in tensors.items() if each is not None}
    if "logprob" in given:
        given["probability"] = [None if x is None else math.exp(min(0.0, x)) for x in given["logprob"]]
    versions = versions_of(experience)
    return given | ({"weights": versions} if versions else {})


def versions_of(experience: Experience) -> list[int]:
    """Return the model version of each response token.

    Empty if none is known.
    """
    own, of_tokens, number = experience.info.get("model_version"), experience.info.get("model_versions"), 0
    number = experience.response_length
    if isinstance(of_tokens, list) and len(of_tokens) == number and all(isinstance(one, int) for one in of_tokens):
        return of_tokens
    return [own] * number if isinstance(own, int) else []


def _finite(value: Any) -> Any:
    return value if isinstance(value, bool) or math.isfinite(value) else None


@dataclass(frozen=True)
class TokenColours:
    """Colours of a quantity.

    Attributes:
        name: of the quantity, one of `QUANTITIES`.
        most: the largest size of a value, of quantities that have a sign.
        versions: all versions of the weights, the oldest first.
    """

    name: str
    most: float = 0.0
    versions: tuple[int, ...] = ()

    @classmethod
    def of(cls, experience: Experience, name: str) -> TokenColours | None:
        """Return the colours of a quantity of an experience.

        None where it has no values of it.
        """
        values = [value for value in _of_response(experience).get(name, ()) if value is not None]
        if not values:
            return None
        if name == "weights":
            return cls(name, versions=tuple(sorted(set(values))))
        return cls(name, most=max(abs(float(value)) for value in values))

    def colour(self, value: Any) -> str:
        """Return the colour of a value as CSS has it."""
        if value is None:
            return _GREY
        if self.name == "mask":
            return _mixed(_BLUE, 0.6) if value else _mixed(_ORANGE, 0.6)
        if self.name == "weights":
            return _VERSIONS[self.versions.index(value) % len(_VERSIONS)]
        if self.name in ("logprob", "teacher_logprob"):
            return _mixed(_ORANGE, value / LEAST_LOGPROB)
        return _mixed(_BLUE if value > 0 else _ORANGE, abs(value) / self.most if self.most else 0.0)

    def examples(self) -> list[Any]:
        """Return values that a legend shows."""
        if self.name == "mask":
            return [True, False]
        if self.name == "weights":
            return list(self.versions)
        if self.name in ("logprob", "teacher_logprob"):
            return [0.0, LEAST_LOGPROB / 4, LEAST_LOGPROB / 2, LEAST_LOGPROB]
        return [-self.most, 0.0, self.most] if self.most else [0.0]


def _mixed(colour: tuple[int, int, int], share: float) -> str:
    share = min(1.0, max(0.0, share))
    parts = (round(white + (own - white) * share) for own, white in zip(colour, _WHITE, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


def coloured(
    lines: Sequence[Mapping[str, Any]], scale: TokenColours, *, name_of: Callable[[str], str], label: str
) -> str:
    """Return tokens as HTML: coloured texts, and their facts as tooltips.

    What is of a model is text in it, and nothing else.

    Args:
        lines: of `token_rows`.
        scale: of the quantity that is shown.
        name_of: the name of a column.
        label: what the whole is called.
    """
    spans = "".join(_span(line, scale, name_of) for line in lines)
    return f'<div role="group" aria-label="{html.escape(label)}" style="{_BOX}">{spans}</div>'


def _span(line: Mapping[str, Any], scale: TokenColours, name_of: Callable[[str], str]) -> str:
    text = line.get("text")
    shown = f"[{line['token']}]" if text is None else printable(text).replace("\n", "⏎\n").replace("\r", "\\r")
    facts = "\n".join(f"{name_of(name)}: {_fact(name, value)}" for name, value in line.items() if value is not None)
    style = f"background:{scale.colour(line.get(scale.name))};color:#111;"
    style += "text-decoration:underline dotted;" if line.get("mask") is False else ""
    title = html.escape(facts).replace("\n", "&#10;")
    return f'<span data-place="{line["place"]}" title="{title}" style="{style}">{html.escape(shown)}</span>'


def _fact(name: str, value: Any) -> str:
    if name == "text":
        return repr(value)
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def legend(scale: TokenColours, *, text_of: Callable[[Any], str], without: str) -> str:
    """Return what the colours of a scale mean, as HTML.

    Args:
        scale: of the quantity.
        text_of: text of one of its values.
        without: text of tokens that have no value.
    """
    entries = [(scale.colour(value), text_of(value)) for value in scale.examples()] + [(_GREY, without)]
    swatches = "".join(
        f'<span style="background:{colour};{_SWATCH}">{html.escape(text)}</span>' for colour, text in entries
    )
    return f"<div>{swatches}</div>"
