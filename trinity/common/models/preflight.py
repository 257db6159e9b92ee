"""Checks of a model directory before anything heavy is imported: files, weights, vocabulary, chat template.

Reads `config.json`, the tokenizer's files and the headers of the weight files; runs no code of the model and loads
no tensor.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trinity.common.models.hub import is_hub_id, is_offline

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
EMBEDDING_NAMES = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "embedding.weight")
LANGUAGE_MODEL_SUFFIXES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
HEADER_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100 * 1024 * 1024
TEMPLATE_CONFIG_KEY = "chat_template"

_MODEL_TYPE = re.compile(r'"([\w.-]+)"\s*[,:]\s*"\w+Config"', re.ASCII)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a model directory.

    Attributes:
        code: `E31..` for what prevents the run, `W31..` for what does not.
        message: which file, the rule, what was found, the way out.
    """

    code: str
    message: str

    @property
    def is_warning(self) -> bool:
        """Whether a run may go on."""
        return self.code.startswith("W")

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


class Unreadable(Exception):
    """A file that cannot be read as what its name says; the message says why."""


@dataclass(frozen=True)
class _Header:
    """What the header of a safetensors file says.

    Attributes:
        shapes: shape of each tensor by name.
        expected_bytes: size that the file must have.
    """

    shapes: dict[str, list[int]]
    expected_bytes: int


def check_model_dir(
    path: str | Path,
    *,
    trust_remote_code: bool = False,
    custom_chat_template: str | None = None,
    chat_template_path: str | Path | None = None,
    need_chat_template: bool = True,
    need_tokenizer: bool = True,
    is_classifier: bool = False,
    supported: Collection[str] | None = None,
) -> list[Finding]:
    """Return everything that is wrong with the model in a directory; empty if it can be used.

    Args:
        path: the directory, in the layout of Hugging Face.
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
        return [_missing_path(str(path), root), *templates]
    findings = [*_missing_files(root, need_tokenizer=need_tokenizer), *templates]
    config = _read_config(root, findings)
    headers = read_headers(root, findings)
    if config is not None:
        findings += _architecture_findings(
            config, trust_remote_code=trust_remote_code, is_classifier=is_classifier, supported=supported
        )
    if need_tokenizer:
        findings += _tokenizer_findings(root, config or {}, headers=headers)
    if need_chat_template and not custom_chat_template and not chat_template_path:
        findings += _own_template_findings(root)
    return findings


def _missing_path(given: str, root: Path) -> Finding:
    what = "is not a directory" if root.exists() else "does not exist"
    hint = ""
    if is_hub_id(given):
        if not is_offline():
            return Finding(
                "W3111", f"{given} is no directory and not in the cache of the hub: a run downloads it first"
            )
        hint = "; it looks like a hub id that is not whole in the local cache, and HF_HUB_OFFLINE forbids the download"
    siblings = [item.name for item in root.parent.iterdir() if item.is_dir()] if root.parent.is_dir() else []
    near = difflib.get_close_matches(root.name, siblings, n=1)
    if near:
        hint += f"; did you mean {root.parent / near[0]}?"
    return Finding("E3101", f"model_path {given} {what}{hint or '; give the directory of a model'}")


def _missing_files(root: Path, *, need_tokenizer: bool) -> Iterator[Finding]:
    missing = [] if (root / "config.json").is_file() else ["config.json"]
    if need_tokenizer and not any((root / name).is_file() for name in TOKENIZER_FILES):
        missing.append(f"a tokenizer ({', '.join(TOKENIZER_FILES[:2])}, ...)")
    has_pickle = any(root.glob("*.bin")) or any(root.glob("*.pt")) or any(root.glob("*.pth"))
    has_weights = any(root.glob("*.safetensors")) or (root / "model.safetensors.index.json").is_file()
    if not has_weights and not has_pickle:
        missing.append("weights (model.safetensors)")
    if missing:
        yield Finding("E3102", f"{root} is not a complete model, it lacks: {'; '.join(missing)}")
    if has_pickle and not has_weights:
        yield Finding(
            "E3104",
            f"{root} has its weights only as pickle files (*.bin, *.pt), which can run code when read; convert them "
            "to safetensors (save_pretrained of a trusted copy) and give that directory",
        )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Unreadable(f"{path} cannot be read as JSON: {error}") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file.

    Raises:
        Unreadable: it cannot be read, or holds something else.
    """
    data = _read_json(path)
    if not isinstance(data, dict):
        raise Unreadable(f"{path} must hold a JSON object, got {type(data).__name__}")
    return data


def _read_config(root: Path, findings: list[Finding]) -> dict[str, Any] | None:
    if not (root / "config.json").is_file():
        return None
    try:
        return read_mapping(root / "config.json")
    except Unreadable as error:
        findings.append(Finding("E3102", str(error)))
        return None


def _read_header(path: Path) -> _Header:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(HEADER_LENGTH_BYTES), "little")
        start = HEADER_LENGTH_BYTES + length
        if size < HEADER_LENGTH_BYTES or length > MAX_HEADER_BYTES or start > size:
            raise Unreadable(
                f"{path.name} is truncated or no safetensors file: its header ends at byte {start}, the file has {size}"
            )
        try:
            header = json.loads(file.read(length))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
            shapes = {name: list(entry["shape"]) for name, entry in tensors.items()}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise Unreadable(f"{path.name} has a broken safetensors header: {error}") from error
    return _Header(shapes, start + end)


def read_headers(root: Path, findings: list[Finding]) -> dict[str, list[int]]:
    """Return the shape of every tensor of the model; append what is wrong with its weight files."""
    names, missing = _weight_files(root, findings)
    shapes: dict[str, list[int]] = {}
    if missing:
        findings.append(Finding("E3103", f"model.safetensors.index.json names missing files: {', '.join(missing)}"))
    for name in names:
        try:
            header = _read_header(root / name)
        except (Unreadable, OSError) as error:
            findings.append(Finding("E3103", str(error)))
            continue
        actual = (root / name).stat().st_size
        if actual != header.expected_bytes:
            state = "truncated" if actual < header.expected_bytes else "too long"
            message = f"{root / name} is {state}: expected {header.expected_bytes} bytes, got {actual}; copy it again"
            findings.append(Finding("E3103", message))
        shapes.update(header.shapes)
    return shapes


def _weight_files(root: Path, findings: list[Finding]) -> tuple[list[str], list[str]]:
    index = root / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(path.name for path in root.glob("*.safetensors")), []
    try:
        weight_map = read_mapping(index).get("weight_map")
    except Unreadable as error:
        findings.append(Finding("E3103", str(error)))
        return [], []
    if not isinstance(weight_map, dict):
        findings.append(Finding("E3103", f"{index} has no weight_map"))
        return [], []
    names = sorted({str(name) for name in weight_map.values()})
    missing = [name for name in names if not (root / name).is_file()]
    return [name for name in names if name not in missing], missing


@cache
def known_model_types() -> frozenset[str]:
    """Return the model types of the installed transformers, read from its table without importing it.

    Empty where the table is not found.
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
    config: dict[str, Any], *, trust_remote_code: bool, is_classifier: bool, supported: Collection[str] | None
) -> Iterator[Finding]:
    has_code = bool(config.get("auto_map"))
    if has_code and not trust_remote_code:
        yield Finding(
            "E3105",
            "config.json has an auto_map: loading this model runs Python code that came with it; read that code, then "
            "set model.trust_remote_code: true, or use a model that transformers knows by itself",
        )
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        yield Finding("E3110", f"config.json must name its model_type, got {kind!r}")
    elif not has_code:
        yield from _unknown_type(kind, supported=supported)
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        yield Finding("E3110", f"config.json must list its architectures, got {names!r}")
    elif not is_classifier and not has_code and not any(name.endswith(LANGUAGE_MODEL_SUFFIXES) for name in names):
        yield Finding("E3110", f"architecture {', '.join(names)} generates no text; use a causal language model")


def _unknown_type(kind: str, *, supported: Collection[str] | None) -> Iterator[Finding]:
    known = known_model_types() if supported is None else supported
    if not known or kind in known:
        return
    near = difflib.get_close_matches(kind, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    yield Finding(
        "E3110",
        f"model_type {kind!r} of config.json is unknown to the installed transformers; {hint}"
        "a newer transformers may know it (pip install -U transformers)",
    )


def embedding_rows(config: dict[str, Any], headers: dict[str, list[int]]) -> int | None:
    """Return how many tokens a model's embedding knows, if its weights or its configuration say so."""
    for name, shape in headers.items():
        if name.endswith(EMBEDDING_NAMES) and len(shape) == 2:
            return shape[0]
    rows = config.get("vocab_size")
    return rows if isinstance(rows, int) else None


def largest_token(tokenizer: dict[str, Any]) -> tuple[int, str] | None:
    """Return the largest id of a `tokenizer.json`, and its token."""
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    tokens: list[tuple[int, str]] = []
    if isinstance(vocab, dict) and vocab:
        tokens.append(max((int(index), str(token)) for token, index in vocab.items()))
    elif isinstance(vocab, list) and vocab:
        tokens.append((len(vocab) - 1, str(vocab[-1][0])))
    added = tokenizer.get("added_tokens") or []
    tokens += [(int(item["id"]), str(item["content"])) for item in added]
    return max(tokens, default=None)


def _tokenizer_findings(root: Path, config: dict[str, Any], *, headers: dict[str, list[int]]) -> Iterator[Finding]:
    tokenizer_path, settings_path = root / "tokenizer.json", root / "tokenizer_config.json"
    try:
        largest = largest_token(read_mapping(tokenizer_path)) if tokenizer_path.is_file() else None
        settings = read_mapping(settings_path) if settings_path.is_file() else {}
    except Unreadable as error:
        yield Finding("E3102", str(error))
        return
    except (TypeError, ValueError, KeyError, IndexError) as error:
        yield Finding("E3102", f"{tokenizer_path} is no tokenizer: {type(error).__name__} {error}")
        return
    rows = embedding_rows(config, headers)
    if largest is not None and rows is not None and largest[0] >= rows:
        yield Finding(
            "E3106",
            f"the tokenizer has token {largest[1]!r} with id {largest[0]}, the model's embedding has only {rows} rows; "
            "tokenizer and weights must come from the same model",
        )
    has_tokenizer = any((root / name).is_file() for name in TOKENIZER_FILES)
    if has_tokenizer and settings.get("pad_token") is None and not _special(root).get("pad_token"):
        yield Finding("W3108", f"the tokenizer in {root} has no pad token; the end-of-text token is used for padding")


def _special(root: Path) -> dict[str, Any]:
    path = root / "special_tokens_map.json"
    try:
        return read_mapping(path) if path.is_file() else {}
    except Unreadable:
        return {}  # an optional file that newer tokenizers no longer write


def _own_template_findings(root: Path) -> Iterator[Finding]:
    try:
        sources = _own_templates(root)
    except (Unreadable, OSError, UnicodeDecodeError):
        return  # already reported as an unreadable tokenizer
    if not sources:
        yield Finding(
            "E3107",
            f"the tokenizer in {root} has no chat template; set model.chat_template_path or model.custom_chat_template",
        )
    for source, text in sources:
        yield from syntax_findings(source, text)


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
        try:
            yield from syntax_findings(f"chat_template_path {path}", Path(path).expanduser().read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            yield Finding("E3109", f"chat_template_path {path} cannot be read: {error}")
    elif custom:
        yield from syntax_findings("custom_chat_template", custom)


def syntax_findings(source: str, text: str) -> Iterator[Finding]:
    """Yield the syntax error of a chat template; the template is parsed, never rendered."""
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
        yield Finding("E3109", f"{source} line {error.lineno}: {error.message}: {shown}")
