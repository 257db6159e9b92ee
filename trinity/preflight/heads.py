"""Checks of heads and vocabularies of critic, reward and teacher models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding
from trinity.preflight.model_files import UnreadableFile, embedding_rows, largest_token, read_headers, read_mapping

HEADS = ("score", "classifier")
CRITIC = str(KEYS.model.critic_model_path)
REWARD_MODEL = str(KEYS.trainer.trainer_config.reward_model.model.path)


def critic_findings(path: str | Path, policy: str | Path) -> list[Finding]:
    """Return why the model at `path` cannot be the critic of `policy`.

    Empty if it can. Also empty for incomplete model folders, which `check_model_dir` reports.
    """
    own, other = Path(path).expanduser(), Path(policy).expanduser()
    try:
        headers = read_headers(own)
        return [*_several_outputs(own, headers, code="E3120", key=CRITIC), *_other_vocabulary(own, other, headers)]
    except (UnreadableFile, OSError, TypeError, ValueError, KeyError, IndexError):
        return []


def reward_model_findings(path: str | Path) -> list[Finding]:
    """Return why `path` is no sequence classifier with one label, or nothing."""
    own = Path(path).expanduser()
    try:
        headers = read_headers(own)
    except (UnreadableFile, OSError):
        return []
    if headers and not any(name.split(".")[0] in HEADS for name in headers):
        return [
            Finding(
                "E3122",
                REWARD_MODEL,
                f"{own} has no head ({' or '.join(HEADS)}): it is no sequence classifier; other kinds of reward models "
                "are plugins, named in reward_model.worker",
            )
        ]
    return list(_several_outputs(own, headers, code="E3122", key=REWARD_MODEL))


def teacher_findings(path: str | Path, student: str | Path, *, key: str) -> list[Finding]:
    """Return why the model at `path` cannot be the teacher of `student`.

    Empty if it can. Folders without a `tokenizer.json` are compared when the run starts.
    """
    files = [Path(folder).expanduser() / "tokenizer.json" for folder in (path, student)]
    try:
        own, other = (_vocabulary(read_mapping(file)) for file in files)
    except (UnreadableFile, OSError, TypeError, ValueError, KeyError):
        return []
    if own == other:
        return []
    sizes = [len(vocabulary or ()) + len(added) for vocabulary, added in (own, other)]
    return [
        Finding(
            "E1882",
            key,
            f"the tokenizer of the teacher {path} ({sizes[0]} entries) is not that of the student {student} "
            f"({sizes[1]} entries): the teacher scores the student's tokens; use a teacher of the same family",
        )
    ]


def _several_outputs(own: Path, headers: dict[str, list[int]], *, code: str, key: str) -> Iterator[Finding]:
    for name in (f"{head}.weight" for head in HEADS):
        if name in headers and headers[name][:1] != [1]:
            yield Finding(
                code, key, f"{own} has {name} of shape {headers[name]}; a head of one output (one label) is needed"
            )


def _other_vocabulary(own: Path, policy: Path, headers: dict[str, list[int]]) -> Iterator[Finding]:
    tokens = read_mapping(policy / "tokenizer.json") if (policy / "tokenizer.json").is_file() else {}
    largest = largest_token(tokens)
    if largest is None:
        return
    rows = embedding_rows(read_mapping(own / "config.json"), headers)
    if rows is not None and rows <= largest[0]:
        yield Finding(
            "E3121",
            CRITIC,
            f"{own} has embeddings of {rows} tokens, and the policy's tokenizer has token {largest[1]!r} with id "
            f"{largest[0]}: the critic reads the policy's tokens, so both need the same vocabulary",
        )
        return
    theirs = own / "tokenizer.json"
    if theirs.is_file() and _vocabulary(read_mapping(theirs)) != _vocabulary(tokens):
        yield Finding(
            "E3121",
            CRITIC,
            f"the tokenizer of {own} is not that of {policy}: the critic reads the policy's tokens, so both need the "
            "same vocabulary",
        )


def _vocabulary(tokenizer: dict[str, Any]) -> tuple[Any, set[tuple[int, str]]]:
    added = {(int(item["id"]), str(item["content"])) for item in tokenizer.get("added_tokens") or []}
    return (tokenizer.get("model") or {}).get("vocab"), added
