"""Transports of a version's weights: by reference in this process, or through files.

Both hold published versions until nobody can ask for them again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trinity.common.errors import SyncError
from trinity.utils.failpoints import failpoint

if TYPE_CHECKING:
    from torch import Tensor

LATEST_FILE = "latest_state_dict_iteration.txt"


class Transport(Protocol):
    """Keeps published weights by version."""

    def put(self, version: int, weights: Mapping[str, Tensor], *, copy: bool) -> None:
        """Hold `weights` as `version`; with `copy`, later changes of the tensors do not matter."""

    def get(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights of `version`, by Hugging Face parameter name."""

    def drop_before(self, version: int) -> None:
        """Forget versions older than `version`."""

    def versions(self) -> list[int]:
        """Return the versions held, ascending."""


class MemoryTransport:
    """Weights held in this process; the engine copies them in place."""

    def __init__(self) -> None:
        self._held: dict[int, Mapping[str, Tensor]] = {}

    def put(self, version: int, weights: Mapping[str, Tensor], *, copy: bool) -> None:
        """Hold `weights` as `version`."""
        self._held[version] = {k: t.detach().clone() for k, t in weights.items()} if copy else weights

    def get(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights of `version`; SyncError if they are not held."""
        if version not in self._held:
            raise SyncError(
                f"weights of version {version} are not held; versions at hand: {self.versions() or 'none'}",
                code="E5502",
            )
        return self._held[version]

    def drop_before(self, version: int) -> None:
        """Forget versions older than `version`."""
        for old in [v for v in self._held if v < version]:
            del self._held[old]

    def versions(self) -> list[int]:
        """Return the versions held, ascending."""
        return sorted(self._held)


class CheckpointTransport:
    """Weights as safetensors files under `<job>/weights/version_N`, each written aside and renamed.

    Args:
        job_dir: folder of the job; `latest_state_dict_iteration.txt` in it names the newest version, as a hint.
    """

    def __init__(self, job_dir: Path) -> None:
        self.job_dir = job_dir
        self.folder = job_dir / "weights"

    def put(self, version: int, weights: Mapping[str, Tensor], *, copy: bool) -> None:
        """Hold `weights` as `version`."""
        from safetensors.torch import save_file

        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".version_{version}.{os.getpid()}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        distinct = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in weights.items()}
        file = temporary / "model.safetensors"
        save_file(distinct, file, metadata={"format": "pt", "version": str(version)})
        with open(file, "rb") as written:
            os.fsync(written.fileno())
        failpoint("sync.before_publish")
        final = self.folder / f"version_{version}"
        if final.exists():
            shutil.rmtree(final)
        os.rename(temporary, final)
        hint = self.job_dir / f".{LATEST_FILE}.tmp"
        hint.write_text(str(version))
        os.replace(hint, self.job_dir / LATEST_FILE)
        failpoint("sync.after_publish")

    def get(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights of `version`; SyncError if they are not held."""
        from safetensors.torch import load_file

        file = self.folder / f"version_{version}" / "model.safetensors"
        if not file.is_file():
            raise SyncError(
                f"{file} does not exist; versions at hand: {self.versions() or 'none'}",
                code="E5502",
            )
        weights: Mapping[str, Tensor] = load_file(file)
        return weights

    def drop_before(self, version: int) -> None:
        """Forget versions older than `version`."""
        for old in self.versions():
            if old < version:
                shutil.rmtree(self.folder / f"version_{old}", ignore_errors=True)

    def versions(self) -> list[int]:
        """Return the versions held, ascending."""
        if not self.folder.is_dir():
            return []
        names = (p.name.removeprefix("version_") for p in self.folder.glob("version_*"))
        return sorted(int(n) for n in names if n.isdigit())
