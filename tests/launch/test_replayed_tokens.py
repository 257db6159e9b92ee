"""The tokens of a replayed step, by the queries of the documentation."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
import torch

from tests.docs.pages import page
from trinity.common.experience import EID, Experience
from trinity.launch.reuse.replay import Computed, Replayed
from trinity.launch.reuse.tokens import write_tokens
from trinity.trainer.verl.observation import RowContribution


def test_clipped_tokens_are_found_by_the_version_that_sampled_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update came after the second token of the response: versions 2, 2, 3, 3."""
    experience = Experience(
        eid=EID(1, 0, 0),
        tokens=torch.arange(10, 16),
        prompt_length=2,
        logprobs=torch.zeros(4),
        reward=1.0,
        info={"model_version": 2, "model_versions": [2, 2, 3, 3]},
    )
    row = RowContribution(
        uid=experience.eid.uid,
        optimizer_step=1,
        loss=0.0,
        metrics={},
        counted=torch.ones(4, dtype=torch.bool),
        logprob=torch.zeros(4),
        gradient=torch.tensor([0.0, -1.0, 0.0, -1.0]),
        ratio=torch.tensor([1.5, 1.0, 1.25, 1.0]),
        columns={"advantages": torch.ones(4)},
        clip_reasons=["above", None, "above", None],
    )
    found = Replayed(4, "", [], [experience], {}, own=Computed({}, [row]))
    monkeypatch.chdir(tmp_path)
    assert write_tokens(found, Path("step4.parquet")) == 4
    (query,) = [each for each in page("docs/reuse.md").code("sql") if "tokens clipped in step 4 " in each]
    assert duckdb.sql(query).fetchall() == [(experience.eid.uid, 2, 14, 1.25, "above")]
