"""Contents of the files of a model directory.

Reads `config.json`, the tokenizer's files and the headers of the weights. Runs no code of the model and loads
no tensor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EMBEDDING_NAMES = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "embedding.weight")
HEADER_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100 * 1024 * 1024


class UnreadableFile(Exception):
    """A file whose content does not fit its name; the message has the reason."""


@dataclass(frozen=True)
class _Header:
    """The header of a safetensors file.

    Attributes:
        shapes: shape of each tensor by name.
        expected_bytes: size that the file must have.
    """

    shapes: dict[str, list[int]]
    expected_bytes: int


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableFile(f"{path} cannot be read as JSON: {error}") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file.

    Raises:
        UnreadableFile: it cannot be read, or holds something else.
    """
    data = _read_json(path)
    if not isinstance(data, dict):
        raise UnreadableFile(f"{path} must hold a JSON object, got {type(data).__name__}")
    return data


def _read_header(path: Path) -> _Header:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(HEADER_LENGTH_BYTES), "little")
        start = HEADER_LENGTH_BYTES + length
        if size < HEADER_LENGTH_BYTES or length > MAX_HEADER_BYTES or start > size:
            raise UnreadableFile(
                f"{path.name} is truncated or no safetensors file: its header ends at byte {start}, the file has {size}"
            )
        try:
            header = json.loads(file.read(length))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
            shapes = {name: list(entry["shape"]) for name, entry in tensors.items()}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise UnreadableFile(f"{path.name} has a broken safetensors header: {error}") from error
    return _Header(shapes, start + end)


def read_headers(root: Path, faults: list[str] | None = None) -> dict[str, list[int]]:
    """Return the shape of every tensor; append weight problems to `faults`."""
    faults = [] if faults is None else faults
    names, missing = _weight_files(root, faults)
    shapes: dict[str, list[int]] = {}
    if missing:
        faults.append(f"model.safetensors.index.json names missing files: {', '.join(missing)}")
    for name in names:
        try:
            header = _read_header(root / name)
        except (UnreadableFile, OSError) as error:
            faults.append(str(error))
            continue
        actual = (root / name).stat().st_size
        if actual != header.expected_bytes:
            state = "truncated" if actual < header.expected_bytes else "too long"
            sizes = f"expected {header.expected_bytes} bytes, got {actual}"
            faults.append(f"{root / name} is {state}: {sizes}; copy it again")
        shapes.update(header.shapes)
    return shapes


def _weight_files(root: Path, faults: list[str]) -> tuple[list[str], list[str]]:
    index = root / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(path.name for path in root.glob("*.safetensors")), []
    try:
        weight_map = read_mapping(index).get("weight_map")
    except UnreadableFile as error:
        faults.append(str(error))
        return [], []
    if not isinstance(weight_map, dict):
        faults.append(f"{index} has no weight_map")
        return [], []
    names = sorted({str(name) for name in weight_map.values()})
    missing = [name for name in names if not (root / name).is_file()]
    return [name for name in names if name not in missing], missing


def embedding_rows(config: dict[str, Any], headers: dict[str, list[int]]) -> int | None:
    """Return the number of tokens of a model's embedding, if known."""
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
