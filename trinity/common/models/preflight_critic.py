"""Check that a critic has the policy's vocabulary and a head of one output; loads no tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trinity.common.models.preflight import (
    Finding,
    Unreadable,
    embedding_rows,
    largest_token,
    read_headers,
    read_mapping,
)

HEADS = {"score.weight", "classifier.weight"}


def check_critic(path: str | Path, policy: str | Path) -> list[Finding]:
    """Return why the model of the folder `path` cannot be the critic of that of `policy`; empty if it can.

    Folders that are not complete models are for `check_model_dir` and give nothing here.
    """
    own, other = Path(path).expanduser(), Path(policy).expanduser()
    try:
        return list(_findings(own, other))
    except (Unreadable, OSError, TypeError, ValueError, KeyError, IndexError):
        return []


def _findings(own: Path, policy: Path) -> Iterator[Finding]:
    tokens = read_mapping(policy / "tokenizer.json") if (policy / "tokenizer.json").is_file() else {}
    largest = largest_token(tokens)
    headers = read_headers(own, [])
    for name in HEADS & headers.keys():
        if headers[name][:1] != [1]:
            yield Finding(
                "E3111", f"{own} has {name} of shape {headers[name]}; a critic needs a head of one output (one label)"
            )
    if largest is None:
        return
    rows = embedding_rows(read_mapping(own / "config.json"), headers)
    if rows is not None and rows <= largest[0]:
        yield Finding(
            "E3112",
            f"{own} has embeddings of {rows} tokens, and the policy's tokenizer has token {largest[1]!r} with id "
            f"{largest[0]}: the critic reads the policy's tokens, so both need the same vocabulary",
        )
    elif (own / "tokenizer.json").is_file() and _vocabulary(read_mapping(own / "tokenizer.json")) != _vocabulary(
        tokens
    ):
        yield Finding(
            "E3112",
            f"the tokenizer of {own} is not that of {policy}: the critic reads the policy's tokens, so both need the "
            "same vocabulary",
        )


def _vocabulary(tokenizer: dict[str, Any]) -> tuple[Any, set[tuple[int, str]]]:
    added = {(int(item["id"]), str(item["content"])) for item in tokenizer.get("added_tokens") or []}
    return (tokenizer.get("model") or {}).get("vocab"), added
