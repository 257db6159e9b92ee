"""Uploads to the hub: against a server of its endpoints, in a process that has its address from the environment."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.docs.pages import page
from tests.e2e.short_run import ROOT
from tests.hub_server import TOKEN, UploadHub, upload_hub
from tests.verl_checkpoints import Written
from trinity.cli.app import app
from trinity.common.errors import TrinityError
from trinity.launch.conversion.pushing import check_target


def convert(folder: Path, url: str, *words: str, **values: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    own = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(folder / "hf"),
        "HF_TOKEN": TOKEN,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-m", "trinity", "convert", "checkpoint", *words]
    return subprocess.run(command, env=kept | own | values, capture_output=True, text=True, timeout=180, cwd=folder)


def test_a_folder_is_pushed_once_and_what_failed_is_not_converted_again(verl: Written, tmp_path: Path) -> None:
    with upload_hub() as hub:
        words = (
            str(verl.folder),
            "-o",
            "out",
            "--max-shard-size",
            "100KB",
            "--push",
            "someone/model",
            "--private",
            "--json",
        )
        refused = convert(tmp_path, hub.url, *words, HF_TOKEN="hf_wrong")
        assert refused.returncode == 3 and "E3140" in refused.stderr and "set HF_TOKEN" in refused.stderr, (
            refused.stderr
        )
        assert "hf_wrong" not in refused.stderr and (tmp_path / "out" / "README.md").is_file()
        done = convert(tmp_path, hub.url, *words)
        assert done.returncode == 0, done.stderr
        check_pushed(hub, json.loads(done.stdout), tmp_path / "out")


def check_pushed(hub: UploadHub, told: dict, folder: Path) -> None:
    local = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert hub.repositories["someone/model"] == {n: c for n, c in local.items() if n != "conversion.json"}
    assert hub.private["someone/model"] and hub.messages == ["Checkpoint of step 20"]
    assert len(hub.blobs) > 1 and all(name in told["files"] for name in hub.repositories["someone/model"])
    assert told["pushed"] == f"{hub.url}/someone/model/commit/{1:040x}"
    assert told["num_kept"] == len(told["files"]) and told["step"] == 20 and told["num_ranks"] == 4


def test_what_cannot_be_pushed_is_said_before_the_conversion(
    tmp_path: Path, verl: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    with pytest.raises(TrinityError, match="owner/name of a repository") as found:
        check_target("model")
    assert found.value.code == "E1955"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(TrinityError, match="HF_HUB_OFFLINE forbids network use; unset it") as found:
        check_target("someone/model")
    assert found.value.code == "E3140"


@pytest.mark.runs("docs/checkpoints.md", "trinity convert")
def test_the_documented_commands_convert_and_push(
    verl: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run of veRL's, each in a folder of its own."""
    lines = [shlex.split(line) for line in page("docs/checkpoints.md").lines("trinity convert checkpoint ")]
    assert ["--push" in words for words in lines] == [False, False, False, True]
    for number, (_, *words) in enumerate(lines):
        place = tmp_path / str(number) / words[2]
        place.parent.mkdir(parents=True)
        place.symlink_to(verl.folder if "global_step_" in words[2] else verl.folder.parent)
        monkeypatch.chdir(tmp_path / str(number))
        if "--push" in words:
            with upload_hub() as hub:
                done = convert(tmp_path / str(number), hub.url, *words[2:])
                assert done.returncode == 0, done.stderr
                assert list(hub.repositories) == ["my-name/my-model"]
        else:
            said = CliRunner().invoke(app, words)
            assert said.exit_code == 0, said.output
        assert json.loads(Path(words[words.index("-o") + 1], "config.json").read_text())["model_type"] == "qwen2"
