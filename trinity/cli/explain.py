"""`trinity explain`: what a code, a key or a metric means."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any, Literal

import typer

from trinity.cli.completion import codes_and_keys
from trinity.cli.options import ended_with

SHOWN_PLACES = 5


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="CODE|KEY|METRIC",
            help="A code, key or metric, such as E1203, algorithm.repeat_times or actor/kl_loss.",
            autocompletion=codes_and_keys,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    language: Annotated[
        Literal["en", "zh"] | None,
        typer.Option(help="en or zh, for keys and metrics; codes are explained in English. Default: from LANG."),
    ] = None,
) -> None:
    """Explain an error or warning code, a key or a metric."""
    from trinity.explain.code_messages import CODE
    from trinity.summary.words import is_chinese

    code = name.strip("[]").upper()
    with ended_with():
        spoken = language or ("zh" if is_chinese(os.environ) else "en")
        if CODE.fullmatch(code):
            found = _code(code)
        else:
            found = _metric(name, spoken) if "/" in name else _key(name, spoken)
    lines = found.pop("lines")
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(lines))


def _code(code: str) -> dict[str, Any]:
    """Return what a code says, why it is one, and where it is raised.

    Raises:
        ConfigError: no place of this version raises it (E1014).
    """
    from trinity.common.codes import reason_of
    from trinity.common.errors import ConfigError
    from trinity.explain.code_messages import all_codes, message_of, raised_at

    raised = raised_at(code)
    if not raised:
        near = [each for each in all_codes() if each[1:4] == code[1:4]]
        known = f"; near to it: {', '.join(near)}" if near else ""
        raise ConfigError(f"{code} is no code of this version{known}", code="E1014")
    said, reason = message_of(raised), reason_of(code)
    places = list(dict.fromkeys(each.place for each in raised))
    ways = list(dict.fromkeys(each.way_out for each in raised if each.way_out))
    kind = "error" if code.startswith("E") else "warning"
    lines = [f"{kind}[{code}]: {said}", f"  {reason}", *(f"  way out: {way}" for way in ways)]
    lines += [f"  raised at {place}" for place in places[:SHOWN_PLACES]]
    lines += [f"  and {len(places) - SHOWN_PLACES} more"] if len(places) > SHOWN_PLACES else []
    found = {"code": code, "kind": kind, "says": said, "reason": reason, "ways_out": ways, "places": places}
    return found | {"lines": lines}


def _key(name: str, language: str) -> dict[str, Any]:
    from trinity.explain.keys import explained_key, key_lines

    found = explained_key(name, language)
    return found | {"lines": list(key_lines(found, language))}


def _metric(name: str, language: str) -> dict[str, Any]:
    from trinity.explain.metrics import explained_metric, metric_lines

    found = explained_metric(name, language)
    return found | {"lines": list(metric_lines(found, language))}
