"""Datasets that only `datasets` can find: hub ids, folders with a card.

For a hub id, the newest revision is read if the hub can be reached. If not, or with `HF_HUB_OFFLINE=1`, the copy on
this machine is read: what `datasets` has prepared, or what `hf download` has fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trinity.buffer.data_files import is_hub_id
from trinity.common.errors import DataError
from trinity.utils.log import get_logger

_logger = get_logger("buffer")


def load_with_datasets(path: str, *, split: str, subset_name: str | None) -> Any:
    """Return the `datasets.Dataset` of a hub id or a folder.

    Raises:
        DataError: neither the hub nor this machine has it (E4001), it has no such split or subset (E4003), or its files
            cannot be read (E4010).
    """
    import datasets

    datasets.disable_progress_bars()
    try:
        return _load(path, split=split, subset_name=subset_name)
    finally:
        datasets.enable_progress_bars()


def _load(path: str, *, split: str, subset_name: str | None) -> Any:
    import datasets

    try:
        return datasets.load_dataset(path, name=subset_name, split=split)
    except datasets.exceptions.DatasetGenerationError as error:
        raise DataError(f"{path}: the files cannot be read: {error.__cause__ or error}", code="E4010") from error
    except ValueError as error:
        # `datasets` names the available splits and subsets in these messages.
        raise DataError(f"{path}, split {split!r}, subset {subset_name!r}: {error}", code="E4003") from error
    except (OSError, datasets.exceptions.DatasetsError) as error:
        folder = None if Path(path).expanduser().exists() else downloaded(path)
        if folder is not None:
            _logger.info("%s: the hub does not answer; read from %s", path, folder)
            return _load(str(folder), split=split, subset_name=subset_name)
        raise DataError(
            f"{path} is neither a file or folder on this machine nor a dataset that can be fetched: {error}"
            + (f"; {way_out(path)}" if is_hub_id(path) else ""),
            code="E4001",
        ) from error


def downloaded(hub_id: str) -> Path | None:
    """Return the newest copy of a dataset that the hub's cache has, if any."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(hub_id, repo_type="dataset", local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def way_out(hub_id: str) -> str:
    """Return what to do about a dataset that neither hub nor machine has."""
    return (
        f"where the hub answers run `hf download --repo-type dataset {hub_id}`, copy that folder to this machine "
        "and write its path; HF_ENDPOINT names another hub, HF_HUB_OFFLINE=1 asks for none"
    )
