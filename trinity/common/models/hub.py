"""Hugging Face hub models by id, cached or downloaded; imports no torch."""

from __future__ import annotations

import json
import re
from pathlib import Path

from trinity.common.errors import EnvironmentProblem
from trinity.utils.log import get_logger, redact

TEXT_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py")
WEIGHT_FILES = ("*.safetensors",)
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
logger = get_logger("launch")


def model_folder(model_path: str) -> Path:
    """Return the folder of a model.

    A model given by hub id is first downloaded to the local hub cache if it is not there.

    Raises:
        EnvironmentProblem: neither a folder nor a hub id that can be fetched (E3101).
    """
    folder = Path(model_path).expanduser()
    if folder.is_dir():
        return folder
    if not is_hub_id(model_path):
        raise EnvironmentProblem(f"model.model_path {model_path!r} is neither a folder nor a hub id", code="E3101")
    return fetched_model(model_path)


def is_hub_id(path: str) -> bool:
    """Return whether a path is a hub id `owner/name`.

    It is not if a local path of that name, or a folder `owner`, exists.
    """
    return bool(_HUB_ID.fullmatch(path)) and not Path(path).exists() and not Path(path).parent.exists()


def is_offline() -> bool:
    """Return whether the environment forbids network use by the hub client."""
    from huggingface_hub import is_offline_mode

    return is_offline_mode()


def cached_model(hub_id: str, *, needs_weights: bool = True) -> Path | None:
    """Return a model's complete folder in the local cache, or None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=_patterns(needs_weights), local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if _is_whole(folder, needs_weights=needs_weights) else None


def fetched_model(hub_id: str, *, needs_weights: bool = True) -> Path:
    """Return a model's folder in the local cache; download it if needed.

    A download shows its progress.

    Args:
        hub_id: `owner/name`.
        needs_weights: False if configuration and tokenizer are enough.

    Raises:
        EnvironmentProblem: the hub does not deliver it, or network use is forbidden (E3101).
    """
    folder = cached_model(hub_id, needs_weights=needs_weights)
    if folder is not None:
        logger.info("%s is %s, in the local cache", hub_id, folder)
        return folder
    from huggingface_hub import constants, snapshot_download

    if not is_offline():
        logger.info("downloading %s from %s into %s", hub_id, constants.ENDPOINT, constants.HF_HUB_CACHE)
    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=_patterns(needs_weights)))
    except Exception as error:
        raise EnvironmentProblem(_refusal(hub_id, error), code="E3101") from error
    if not _is_whole(folder, needs_weights=needs_weights):
        # Without a network the client may also return an incomplete snapshot.
        raise EnvironmentProblem(_refusal(hub_id, FileNotFoundError("no safetensors weights in it")), code="E3101")
    logger.info("%s is %s", hub_id, folder)
    return folder


def _patterns(needs_weights: bool) -> list[str]:
    return [*TEXT_FILES, *(WEIGHT_FILES if needs_weights else ())]


def _is_whole(folder: Path, *, needs_weights: bool) -> bool:
    """Return whether a snapshot is complete, which a cached one need not be."""
    if not (folder / "config.json").is_file():
        return False
    if not needs_weights or (folder / SINGLE).is_file():
        return True
    try:
        names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return bool(names) and all((folder / name).is_file() for name in names)


def _refusal(hub_id: str, error: Exception) -> str:
    """Return why the hub did not deliver a model, and the way out."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    what = f"{hub_id} is no folder here, and"
    elsewhere = "download it elsewhere and give its folder"
    if is_offline():
        return f"{what} not whole in the local cache {constants.HF_HUB_CACHE}; unset HF_HUB_OFFLINE, or {elsewhere}"
    if isinstance(error, GatedRepoError):
        return f"{what} the hub gives it only to those who accepted its terms; accept them on its page and set HF_TOKEN"
    if isinstance(error, RepositoryNotFoundError):
        return f"{what} {constants.ENDPOINT} has no such model, or hides it from you; check the id, or set HF_TOKEN"
    reason = redact(f"{type(error).__name__}: {error}".replace("\n", " ")[:300])
    return f"{what} {constants.ENDPOINT} did not give it ({reason}); run again to continue with it, or {elsewhere}"
