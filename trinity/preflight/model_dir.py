"""Checks of a model directory before any heavy import.

They check files, weights, vocabulary and chat template. They read `config.json`, the tokenizer's files and the
headers of the weight files, run no code of the model, and load no tensor.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding
from trinity.common.models.hub import is_hub_id, is_offline
from trinity.preflight.model_files import UnreadableFile, embedding_rows, largest_token, read_headers, read_mapping
from trinity.utils.remote.addresses import is_remote, shown

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "tekken.json",
)
LANGUAGE_MODEL_SUFFIXES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
TEMPLATE_CONFIG_KEY = "chat_template"
POLICY = str(KEYS.model.model_path)

_MODEL_TYPE = re.compile(r'"([\w.-]+)"\s*[,:]\s*"\w+Config"', re.ASCII)


def check_model_dir(
    path: str | Path,
    *,
    key: str = POLICY,
    trust_remote_code: bool = False,
    custom_chat_template: str | None = None,
    chat_template_path: str | Path | None = None,
    need_chat_template: bool = True,
    need_tokenizer: bool = True,
    is_classifier: bool = False,
    supported: Collection[str] | None = None,
) -> list[Finding]:
    """Return all problems of the model in a directory; empty if none.

    Args:
        path: the directory, in the layout of Hugging Face.
        key: where the configuration names it.
        trust_remote_code: whether the model's own Python code may run.
        custom_chat_template: template of the configuration, as text.
        chat_template_path: file of a template; wins over `custom_chat_template`.
        need_chat_template: whether the run formats messages.
        need_tokenizer: whether the run reads the model's own tokenizer.
        is_classifier: the model gives numbers, no text: a critic or a reward model.
        supported: values of `model_type` that can be loaded; `None` means those of the installed transformers.
    """
    root = Path(path).expanduser()
    templates = list(_configured_template_findings(custom_chat_template, chat_template_path))
    if not root.is_dir():
        return [_missing_path(str(path), root, key=key), *templates]
    findings = [*_missing_files(root, key=key, need_tokenizer=need_tokenizer), *templates]
    config = _read_config(root, findings, key=key)
    faults: list[str] = []
    headers = read_headers(root, faults)
    findings += [Finding("E3103", key, fault) for fault in faults]
    if config is not None:
        findings += _architecture_findings(
            config, key=key, trust_remote_code=trust_remote_code, is_classifier=is_classifier, supported=supported
        )
    if need_tokenizer:
        findings += _tokenizer_findings(root, config or {}, key=key, headers=headers)
    if need_chat_template and not custom_chat_template and not chat_template_path:
        findings += _own_template_findings(root, key=key)
    return findings


def _missing_path(given: str, root: Path, *, key: str) -> Finding:
    if is_remote(given):
        return not_fetched(key, given)
    what = "is not a directory" if root.exists() else "does not exist"
    hint = ""
    if is_hub_id(given):
        if not is_offline():
            return Finding(
                "W3111", key, f"{given} is no directory and not in the cache of the hub: a run downloads it first"
            )
        hint = "; it looks like a hub id that is not whole in the local cache, and HF_HUB_OFFLINE forbids the download"
    siblings = [item.name for item in root.parent.iterdir() if item.is_dir()] if root.parent.is_dir() else []
    near = difflib.get_close_matches(root.name, siblings, n=1)
    if near:
        hint += f"; did you mean {root.parent / near[0]}?"
    return Finding("E3101", key, f"`{key}`: {given} {what}{hint or '; give the directory of a model'}")


def not_fetched(key: str, address: str) -> Finding:
    """Return the warning about what is not on this machine yet (W3112)."""
    message = f"`{key}`: {shown(address)} is fetched when the run starts; nothing of it was looked at"
    return Finding("W3112", key, message, suggestion="run `trinity validate --fetch` to fetch it now")


def _missing_files(root: Path, *, key: str, need_tokenizer: bool) -> Iterator[Finding]:
    missing = [] if (root / "config.json").is_file() else ["config.json"]
    if need_tokenizer and not any((root / name).is_file() for name in TOKENIZER_FILES):
        missing.append(f"a tokenizer ({', '.join(TOKENIZER_FILES[:2])}, ...)")
    has_pickle = any(root.glob("*.bin")) or any(root.glob("*.pt")) or any(root.glob("*.pth"))
    has_weights = any(root.glob("*.safetensors")) or (root / "model.safetensors.index.json").is_file()
    if not has_weights and not has_pickle:
        missing.append("weights (model.safetensors)")
    if missing:
        yield Finding("E3102", key, f"{root} is not a complete model, it lacks: {'; '.join(missing)}")
    if has_pickle and not has_weights:
        yield Finding(
            "E3104",
            key,
            f"{root} has its weights only as pickle files (*.bin, *.pt), which can run code when read; convert them "
            "to safetensors (save_pretrained of a trusted copy) and give that directory",
        )


def _read_config(root: Path, findings: list[Finding], *, key: str) -> dict[str, Any] | None:
    if not (root / "config.json").is_file():
        return None
    try:
        return read_mapping(root / "config.json")
    except UnreadableFile as error:
        findings.append(Finding("E3102", key, str(error)))
        return None


@cache
def known_model_types() -> frozenset[str]:
    """Return the model types of the installed transformers.

    They are read from its table without importing it. Empty if the table is not found.
    """
    spec = importlib.util.find_spec("transformers")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        tables = [Path(folder, "models", "auto", name) for name in ("auto_mappings.py", "configuration_auto.py")]
        texts = [table.read_text("utf-8") for table in tables if table.is_file()]
        found = {match for text in texts for match in _MODEL_TYPE.findall(text)}
        if found:
            return frozenset(found)
    return frozenset()


def _architecture_findings(
    config: dict[str, Any], *, key: str, trust_remote_code: bool, is_classifier: bool, supported: Collection[str] | None
) -> Iterator[Finding]:
    has_code = bool(config.get("auto_map"))
    if has_code and not trust_remote_code:
        yield Finding(
            "E3105",
            key,
            "config.json has an auto_map: loading this model runs Python code that came with it; read that code, then "
            "set model.trust_remote_code: true, or use a model that transformers knows by itself",
        )
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        yield Finding("E3110", key, f"config.json must name its model_type, got {kind!r}")
    elif not has_code:
        yield from _unknown_type(kind, key=key, supported=supported)
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        yield Finding("E3110", key, f"config.json must list its architectures, got {names!r}")
    elif not is_classifier and not has_code and not any(name.endswith(LANGUAGE_MODEL_SUFFIXES) for name in names):
        yield Finding("E3110", key, f"architecture {', '.join(names)} generates no text; use a causal language model")


def _unknown_type(kind: str, *, key: str, supported: Collection[str] | None) -> Iterator[Finding]:
    known = known_model_types() if supported is None else supported
    if not known or kind in known:
        return
    near = difflib.get_close_matches(kind, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    yield Finding(
        "E3110",
        key,
        f"model_type {kind!r} of config.json is unknown to the installed transformers; {hint}"
        "a newer transformers may know it (pip install -U transformers)",
    )


def _tokenizer_findings(
    root: Path, config: dict[str, Any], *, key: str, headers: dict[str, list[int]]
) -> Iterator[Finding]:
    tokenizer_path, settings_path = root / "tokenizer.json", root / "tokenizer_config.json"
    try:
        largest = largest_token(read_mapping(tokenizer_path)) if tokenizer_path.is_file() else None
        settings = read_mapping(settings_path) if settings_path.is_file() else {}
    except UnreadableFile as error:
        yield Finding("E3102", key, str(error))
        return
    except (TypeError, ValueError, KeyError, IndexError) as error:
        yield Finding("E3102", key, f"{tokenizer_path} is no tokenizer: {type(error).__name__} {error}")
        return
    rows = embedding_rows(config, headers)
    if largest is not None and rows is not None and largest[0] >= rows:
        yield Finding(
            "E3106",
            key,
            f"the tokenizer has token {largest[1]!r} with id {largest[0]}, the model's embedding has only {rows} rows; "
            "tokenizer and weights must come from the same model",
        )
    has_tokenizer = any((root / name).is_file() for name in TOKENIZER_FILES)
    if has_tokenizer and settings.get("pad_token") is None and not _special(root).get("pad_token"):
        message = f"the tokenizer in {root} has no pad token; the end-of-text token is used for padding"
        yield Finding("W3108", key, message)


def _special(root: Path) -> dict[str, Any]:
    path = root / "special_tokens_map.json"
    try:
        return read_mapping(path) if path.is_file() else {}
    except UnreadableFile:
        return {}  # an optional file that newer tokenizers no longer write


def _own_template_findings(root: Path, *, key: str) -> Iterator[Finding]:
    try:
        sources = _own_templates(root)
    except (UnreadableFile, OSError, UnicodeDecodeError):
        return  # already reported as an unreadable tokenizer
    if not sources:
        yield Finding(
            "E3107",
            key,
            f"the tokenizer in {root} has no chat template; set model.chat_template_path or model.custom_chat_template",
        )
    for source, text in sources:
        yield from syntax_findings(source, text, key=key)


def _own_templates(root: Path) -> Sequence[tuple[str, str]]:
    file = root / "chat_template.jinja"
    if file.is_file():
        return [(str(file), file.read_text("utf-8"))]
    for path in (root / "tokenizer_config.json", root / "chat_template.json"):
        given = read_mapping(path).get(TEMPLATE_CONFIG_KEY) if path.is_file() else None
        if isinstance(given, str):
            return [(str(path), given)]
        if isinstance(given, list) and given:
            return [(f"{path} ({item.get('name')})", str(item.get("template", ""))) for item in given]
    return []


def _configured_template_findings(custom: str | None, path: str | Path | None) -> Iterator[Finding]:
    if path is not None:
        key = str(KEYS.model.chat_template_path)
        try:
            text = Path(path).expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            yield Finding("E3109", key, f"chat_template_path {path} cannot be read: {error}")
        else:
            yield from syntax_findings(f"chat_template_path {path}", text, key=key)
    elif custom:
        yield from syntax_findings("custom_chat_template", custom, key=str(KEYS.model.custom_chat_template))


def syntax_findings(source: str, text: str, *, key: str) -> Iterator[Finding]:
    """Yield the syntax error of a chat template, which is parsed only."""
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # `generation` blocks mark the assistant's turns for masks; only the library that renders them knows the tag.
    known = re.sub(r"\{%(-?)\s*(?:end)?generation\s*(-?)%\}", r"{%\1 set _ = 0 \2%}", text)
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        environment.parse(known)
    except TemplateSyntaxError as error:
        lines = text.splitlines()
        shown = lines[error.lineno - 1].strip()[:80] if 0 < error.lineno <= len(lines) else ""
        yield Finding("E3109", key, f"{source} line {error.lineno}: {error.message}: {shown}")
