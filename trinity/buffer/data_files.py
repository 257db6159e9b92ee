"""Find the files of a dataset without torch, `datasets` or the network."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from trinity.buffer.rows import SUFFIXES, begins_with, split_files
from trinity.common.constants import TASKS_FILE, TASKS_REPORT
from trinity.common.errors import DataError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def data_files(path: str, *, split: str, subset_name: str | None) -> list[Path]:
    """Return the files of a split.

    The list is empty if only the library `datasets` can find or read them: for a hub id, a subset, a folder with a
    `README.md` or of `save_to_disk`, and for parquet files without pyarrow.

    Raises:
        DataError: no such path (E4001), nothing in it (E4002) or no such split (E4003).
    """
    place = Path(path).expanduser()
    if place.is_file():
        if place.suffix not in SUFFIXES:
            raise DataError(f"{place}: a data file must end in {', '.join(SUFFIXES)}", code="E4001")
        return _readable([place])
    if not place.exists():
        if is_hub_id(path):
            return []
        raise DataError(missing_path(path), code="E4001")
    if subset_name or is_saved_dataset(place) or (place / "README.md").exists():
        return []
    found = split_files(place, split)
    if not found:
        raise DataError(f"{place} holds no data file ({', '.join(SUFFIXES)})", code="E4002")
    if split not in found:
        raise no_split(place, split, found)
    return _readable(found[split])


def is_one_file(path: str | Sequence[str] | None) -> bool:
    """Return whether a dataset is one file, which is read whole."""
    return isinstance(path, str) and Path(path).expanduser().is_file()


def check_split_of_file(path: str | Sequence[str] | None, *, split: str) -> None:
    """Refuse a split of a dataset that is one file: it is read as a whole.

    A list of paths is not checked: there the split applies to the folders and hub ids of the list.

    Raises:
        DataError: the split is neither `train` nor the one that the file's name begins with (E4003).
    """
    if is_one_file(path) and split != "train" and not begins_with(Path(str(path)).stem, split):
        raise DataError(
            f"{path} is one file, which is read whole, and has no split {split!r}; remove split, or give the folder "
            "that has the files of its splits",
            code="E4003",
        )


def places_of(path: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the files, folders and hub ids that a path names, in order."""
    return (path,) if isinstance(path, str) else tuple(path or ())


def one_place(path: str | Sequence[str] | None) -> str | None:
    """Return the database that a path names.

    Raises:
        DataError: the path is a list (E4001).
    """
    if path is None or isinstance(path, str):
        return path
    raise DataError(f"path must be one database, got a list of {len(path)}; make a taskset of each", code="E4001")


def no_split(place: Path, split: str, known: Iterable[str]) -> DataError:
    """Return the error of a split that a dataset does not have (E4003)."""
    return DataError(f"{place} has no split {split!r}; available: {', '.join(sorted(known))}", code="E4003")


def _readable(files: list[Path]) -> list[Path]:
    if any(file.suffix == ".parquet" for file in files) and importlib.util.find_spec("pyarrow") is None:
        return []
    return files


def is_saved_dataset(folder: Path) -> bool:
    """Return whether `datasets` wrote the folder with `save_to_disk`."""
    return (folder / "dataset_dict.json").exists() or (folder / "state.json").exists()


def is_hub_id(path: str) -> bool:
    """Return whether a missing path may name a dataset on the hub.

    Such a name has the form `owner/name`.
    """
    return "/" in path and HUB_ID.fullmatch(path) is not None and not path.endswith(SUFFIXES)


def missing_path(path: str) -> str:
    """Return the message for a path that does not exist.

    It names the entries that exist beside it.
    """
    place = Path(path).expanduser().absolute()
    beside = sorted(entry.name for entry in place.parent.iterdir())[:10] if place.parent.is_dir() else []
    hint = f"; in {place.parent}: {', '.join(beside)}" if beside else ""
    return f"{place} does not exist{hint}"


def is_of_pipeline(path: str | Sequence[str] | None) -> bool:
    """Return whether a task pipeline has written a file."""
    file = Path(path) if isinstance(path, str) else Path()
    return file.name == TASKS_FILE and (file.parent / TASKS_REPORT).is_file()
