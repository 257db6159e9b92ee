"""Bytes of one experience.

They are magic, version, length, JSON header, safetensors block and xxh3 checksum.

Layout, little endian: `TREX` (4) | version u16 | total length u64 | header length u32 | header (UTF-8 JSON) |
tensors (safetensors) | xxh3-128 of everything before (16). Nothing in it can run code: no pickle is involved.

The JSON of version 2 is that of RFC 8259, with integers of 64 bits: the common case, which is written and read several
times as fast. What it cannot represent (NaN, larger integers, lone surrogates) is written as version 1, the JSON of
Python's `json`.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson
import torch
import xxhash
from torch import Tensor

from trinity.common.errors import DataError

MAGIC = b"TREX"
ANY_JSON, STRICT_JSON = 1, 2  # versions
MAX_EXPERIENCE_BYTES = 32 * 1024 * 1024

_HEAD = struct.Struct("<4sHQI")
_DIGEST_BYTES = 16
_MAX_DEPTH = 32
_encoded = json.JSONEncoder(separators=(",", ":")).encode
_LOADS: dict[int, Callable[[memoryview], Any]] = {
    ANY_JSON: lambda text: json.loads(str(text, "utf-8")),
    STRICT_JSON: orjson.loads,
}
# As safetensors calls them.
_NAMES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"},
    **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"},
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_LENGTH = struct.Struct("<Q")
_TEXT = frozenset({str})
_OF_ALL_VALUES = frozenset({str, int, bool, type(None)})  # JSON represents each of their values
_SIMPLE = _OF_ALL_VALUES | {float}


def encode(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return the payload of a JSON-able header and named tensors.

    Raises:
        DataError: the header holds something that JSON cannot represent, or a tensor is of a type that is not stored
            (E5102).
    """
    version, text = _header(header, names=tensors)
    block = _block(tensors)
    total = _HEAD.size + len(text) + sum(part.nbytes for part in block) + _DIGEST_BYTES
    body = b"".join((_HEAD.pack(MAGIC, version, total, len(text)), text, *block))
    return body + xxhash.xxh3_128_digest(body)


def _header(header: Mapping[str, Any], *, names: Iterable[str]) -> tuple[int, bytes]:
    """Return the version of the payload, and the header as JSON."""
    value = plain(header, where="experience")
    if value is header and "".join(names).isascii():
        try:
            return STRICT_JSON, orjson.dumps(value)
        except TypeError:  # an integer of more than 64 bits, or a lone surrogate
            pass
    return ANY_JSON, _encoded(value).encode()


def _block(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """Return tensors as the parts of a safetensors file.

    `safetensors.torch.save` looks for shared memory among whole models: for the few short tensors here it takes four
    times as long.
    """
    entries, parts, end = [], [], 0
    for name, tensor in sorted(tensors.items(), key=_aligned):
        begin, dtype = end, _NAMES.get(tensor.dtype)
        if dtype is None:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _NAMES)
            raise DataError(f"experience.{name} must be a tensor of {known}, got {tensor.dtype}", code="E5102")
        parts.append(_values(tensor))
        end += parts[-1].nbytes
        shape = ",".join(map(str, tensor.shape))
        entries.append(f'{_quoted(name)}:{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}')
    header = f"{{{','.join(entries)}}}".encode()
    header += b" " * (-len(header) % 8)
    return [memoryview(_LENGTH.pack(len(header)) + header), *parts]


def _aligned(item: tuple[str, Tensor]) -> tuple[int, str]:
    """Return the key of the order in which each tensor is aligned."""
    return -item[1].dtype.itemsize, item[0]


@functools.lru_cache(maxsize=256)
def _quoted(name: str) -> str:
    return _encoded(name)


def _values(tensor: Tensor) -> memoryview:
    """Return the values of a tensor, in the order of its indices."""
    if tensor.dtype is torch.bfloat16 or not tensor.is_cpu or tensor.requires_grad or not tensor.is_contiguous():
        tensor = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return tensor.numpy().data


def decode(data: bytes, *, max_bytes: int = MAX_EXPERIENCE_BYTES) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Verify a whole payload; return its header and tensors.

    Raises:
        DataError: wrong magic, other version, torn, oversize or damaged (E5101).
    """
    if len(data) > max_bytes:
        raise _refuse(f"it has {len(data)} bytes, more than {max_bytes}")
    if len(data) < _HEAD.size + _DIGEST_BYTES:
        raise _refuse(f"it is truncated: {len(data)} bytes")
    magic, version, total, header_bytes = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise _refuse(f"it begins with {bytes(magic)!r} instead of {MAGIC!r}")
    if version not in _LOADS:
        raise _refuse(f"it has version {version}, this program reads {ANY_JSON} and {STRICT_JSON}")
    if total != len(data) or _HEAD.size + header_bytes + _DIGEST_BYTES > total:
        raise _refuse(f"it is truncated or padded: {len(data)} bytes, the header says {total}")
    body = memoryview(data)[:-_DIGEST_BYTES]
    if xxhash.xxh3_128_digest(body) != data[-_DIGEST_BYTES:]:
        raise _refuse("its checksum does not match")
    end, loads = _HEAD.size + header_bytes, _LOADS[version]
    try:
        header = loads(body[_HEAD.size : end])
        tensors = _tensors(body[end:], loads)
    except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        raise _refuse(f"its content cannot be read ({error})") from error
    if not isinstance(header, dict):
        raise _refuse("its header is not a mapping")
    return header, tensors


def _tensors(block: memoryview, loads: Callable[[memoryview], Any]) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file.

    They own one copy of its bytes together.

    Raises:
        ValueError: the file is not whole, or holds tensors of other types. (KeyError, TypeError, AttributeError and
            struct.error: it is none.)
    """
    end = _LENGTH.size + _LENGTH.unpack_from(block)[0]
    if end > len(block):
        raise ValueError("the description of its tensors is truncated")
    data = bytearray(block[end:])
    return {name: _tensor(name, entry, data) for name, entry in loads(block[_LENGTH.size : end]).items()}


def _tensor(name: str, entry: dict[str, Any], data: bytearray) -> Tensor:
    dtype, shape, (first, last) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    numbers = [*shape, first, last]
    if {int} != set(map(type, numbers)) or min(numbers) < 0 or last > len(data):
        raise ValueError(f"tensor {name!r} has the shape {shape} and the bytes from {first} to {last}")
    number = math.prod(shape)
    if number * dtype.itemsize != last - first:
        raise ValueError(f"tensor {name!r} of shape {shape} has {last - first} bytes")
    if not number:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(data, dtype=dtype, count=number, offset=first)
    return flat if len(shape) == 1 else flat.reshape(shape)


def parts(data: bytes) -> Iterator[bytes]:
    """Yield the payloads that follow each other in `data`, not verified.

    Raises:
        DataError: they are no payloads, or the last one is torn (E5101).
    """
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise _refuse(f"it is truncated: {len(data)} bytes")
        total = _HEAD.unpack_from(data, at)[2]
        if not _HEAD.size <= total <= len(data) - at:
            raise _refuse(f"it is truncated or padded: {len(data)} bytes, the header at {at} says {total}")
        yield data[at : at + total]
        at += total


def plain(value: Any, *, where: str, depth: int = 0) -> Any:
    """Return `value` in JSON types.

    Tuples become lists; numpy and tensor scalars become numbers.

    Raises:
        DataError: a value of another type, a key that is not a string, or nesting beyond 32 (E5102).
    """
    if _is_plain(value, depth):
        return value
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if depth >= _MAX_DEPTH:
        raise DataError(f"{where} is nested deeper than {_MAX_DEPTH} levels; store less", code="E5102")
    if isinstance(value, (list, tuple)):
        return [plain(item, where=f"{where}[{i}]", depth=depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key, where): plain(item, where=f"{where}.{key}", depth=depth + 1) for key, item in value.items()}
    if callable(getattr(value, "item", None)) and getattr(value, "ndim", None) == 0:
        return plain(value.item(), where=where, depth=depth + 1)
    raise DataError(
        f"{where} must be JSON-able (text, number, bool, None, list, dict with text keys), got {type(value).__name__}; "
        "convert it, or leave it out",
        code="E5102",
    )


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether all of a value is of JSON's own types, and finite.

    That is the common case, which needs no copy.
    """
    kind = type(value)
    if kind in _SIMPLE:
        return kind is not float or math.isfinite(value)
    if depth >= _MAX_DEPTH:
        return False
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)):
            return False
        value = value.values()
    elif kind is not list:
        return False
    for each in value:  # noqa: SIM110 (a generator and `all` take twice as long)
        if type(each) not in _OF_ALL_VALUES and not _is_plain(each, depth + 1):
            return False
    return True


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise DataError(f"{where}: the key {key!r} must be text, got {type(key).__name__}", code="E5102")
    return key


def _refuse(why: str) -> DataError:
    return DataError(
        f"cannot read the experience payload: {why}; the row was written by another program or is damaged",
        code="E5101",
    )
