"""A checkpoint whose files are not those of the number of workers that it names is refused, not half loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.trainer.test_trainer import Maker, Run
from trinity.common.checkpoint import CheckpointStore
from trinity.common.errors import CheckpointError, ExitCode


def test_a_checkpoint_with_files_of_another_number_of_workers_is_refused(make_config: Maker) -> None:
    first = Run(make_config(trainer={"total_steps": 1}))
    first.train(lambda r: r.explore(range(1, 2)))
    store = CheckpointStore(first.job)

    def of_two_workers(folder: Path) -> None:
        shutil.copytree(first.job / "global_step_1", folder, dirs_exist_ok=True)
        (folder / "MANIFEST.json").unlink()
        for file in (folder / "actor").glob("*world_size_1_rank_0.pt"):
            file.rename(file.with_name(file.name.replace("world_size_1", "world_size_2")))

    store.write(2, of_two_workers, meta=store.manifest(first.job / "global_step_1")["meta"], keep=0)
    words = "model_world_size_1_rank_0.pt.*the model.model_path that wrote it"
    with pytest.raises(CheckpointError, match=words) as caught:
        Run(make_config(trainer={"total_steps": 3}), resume=True).train()
    assert (caught.value.code, caught.value.exit_code) == ("E7008", ExitCode.CHECKPOINT)
