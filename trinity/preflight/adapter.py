"""Checks of an adapter's folder and linear layers, without heavy imports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from trinity.common.config.keys import KEYS, present
from trinity.common.config.problems import Finding
from trinity.common.models.families import families
from trinity.preflight.model_files import EMBEDDING_NAMES, UnreadableFile, read_headers, read_mapping

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
ALL_LINEAR = "all-linear"
ADAPTER = str(present(KEYS.model.lora_configs)[0])
_OUTPUT = ("lm_head", "embed_out")
_POSITIONS = ("wpe.weight", "embed_positions.weight")
# What files may leave out of a module's name, and what they may have more.
_PREFIXES = ("model.", "transformer.", "gpt_neox.", "backbone.", "language_model.", "model.language_model.",
             "language_model.model.")  # fmt: skip
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def check_adapter_dir(path: Path) -> Iterator[Finding]:
    """Yield the missing files of an adapter's folder (E3118)."""
    absent = [name for name in ADAPTER_FILES if not (path / name).is_file()]
    if absent:
        yield Finding(
            "E3118",
            f"{ADAPTER}.path",
            f"{ADAPTER}.path {path} has no {' and no '.join(absent)}; give the folder of an adapter that "
            "PEFT saved with safetensors, or null for a new one",
        )


def check_targets(
    model: Path, *, target_modules: str | Sequence[str], exclude_modules: str | Sequence[str] | None
) -> Iterator[Finding]:
    """Yield each named linear layer that the weights do not have (E1871).

    The trainer checks models with experts, and others whose tensors and modules have different names.
    """
    linear = linear_maps(model)
    for key, written in (("target_modules", target_modules), ("exclude_modules", exclude_modules)):
        is_whole = isinstance(written, str)
        for pattern in [written] if isinstance(written, str) else written or ():
            if not linear or (pattern == ALL_LINEAR and key == "target_modules"):
                continue
            try:
                reason = _reason(pattern, linear, is_whole=is_whole, is_target=key == "target_modules")
            except re.error as error:
                reason = f"is not a regular expression ({error})"
            if reason is not None:
                yield Finding("E1871", f"{ADAPTER}.{key}", f"{ADAPTER}.{key}: {pattern!r} {reason}")


def linear_maps(model: Path) -> list[str]:
    """Return the names of the linear layers in a folder's weights.

    Returns an empty list if they are unknown.
    """
    try:
        config = read_mapping(model / "config.json")
    except (UnreadableFile, OSError):
        return []
    family = families().get(str(config.get("model_type")))
    is_renamed = (family is not None and family.is_renamed) or any(config.get(name) for name in _EXPERTS)
    shapes = {} if is_renamed else read_headers(model)
    wide = (name for name, shape in shapes.items() if name.endswith(".weight") and len(shape) == 2)
    inner = (name.removesuffix(".weight") for name in wide if not name.endswith((*EMBEDDING_NAMES, *_POSITIONS)))
    return [name for name in inner if name.rpartition(".")[2] not in _OUTPUT]


def is_meant(pattern: str, name: str, *, is_whole: bool) -> bool:
    """Return whether `pattern` selects a module, by PEFT's rule.

    A string is a regular expression; a list holds last parts of names.

    Raises:
        re.error: the pattern is no regular expression.
    """
    if not is_whole:
        return name == pattern or name.endswith(f".{pattern}")
    return re.fullmatch(pattern, name) is not None


def near_name(pattern: str, linear: Sequence[str]) -> str:
    """Return the last parts of linear layers' names, and the likely match."""
    names = sorted({name.rpartition(".")[2] for name in linear})
    near = get_close_matches(pattern, names, n=1)
    return f"{', '.join(names)}{f'; did you mean {near[0]}?' if near and near[0] != pattern else ''}"


def _reason(pattern: str, linear: Sequence[str], *, is_whole: bool, is_target: bool) -> str | None:
    spelled = [spelling for name in linear for spelling in (name, *_spellings(name))] if is_whole else linear
    if not any(is_meant(pattern, name, is_whole=is_whole) for name in spelled):
        hint = f"; a string is a regular expression of whole names such as {linear[0]}: write a list" * is_whole
        return f"matches no linear layer of the model; there are {near_name(pattern, linear)}{hint}"
    if is_target and any(is_meant(pattern, name, is_whole=is_whole) for name in _OUTPUT):
        return f"matches the output layer, which gets no adapter; there are {near_name(pattern, linear)}"
    return None


def _spellings(name: str) -> Iterator[str]:
    """Yield the other names that a module may have in memory."""
    bare = name
    while any(bare.startswith(prefix) for prefix in _PREFIXES):
        bare = next(bare.removeprefix(prefix) for prefix in _PREFIXES if bare.startswith(prefix))
    yield bare
    yield from (prefix + bare for prefix in _PREFIXES)
