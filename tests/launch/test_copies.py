"""Every key that takes an address gets its copy, and the saved configuration keeps the address."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.tiny_run import PLAIN
from trinity.catalogue import builtin_catalogue
from trinity.common.config import Plan, dump_config, load_plan
from trinity.common.config.plan import FetchedPath
from trinity.common.errors import CheckpointError
from trinity.launch.copies import RECORDED, check_addresses, check_same_content, fetched_record, with_local_copies
from trinity.launch.job import write_record
from trinity.utils.remote.copies import Copy

HEAD, RESUMED = "trainer.trainer_config.reward_model", "trainer.trainer_config.trainer"
TRAINED = "buffer.explorer_input.taskset.path"


def planned(tmp_path: Path, *overrides: str) -> Plan:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(PLAIN))
    return load_plan(file, overrides, catalogue=builtin_catalogue())


def taken(asked: list[tuple[str, str, Sequence[str] | None]]) -> Any:
    def take(address: str, *, patterns: Sequence[str] | None, key: str) -> Copy:
        asked.append((key, address, patterns))
        return Copy(address, Path("/copies") / address.rpartition("/")[2], "0" * 64)

    return take


def test_every_key_that_takes_an_address_gets_its_copy(tmp_path: Path) -> None:
    values = {
        "model.model_path": "s3://b/policy",
        "model.lora_configs": [{"path": "gs://b/adapter"}],
        "explorer.auxiliary_models": [{"model_path": "oss://b/judge", "engine_type": "torch"}],
        f"{HEAD}.enable": True,
        f"{HEAD}.model.path": "hdfs://n/reward",
        f"{RESUMED}.resume_mode": "resume_path",
        f"{RESUMED}.resume_from_path": "s3://b/run/global_step_7",
        TRAINED: ["train.jsonl", "https://h/more.parquet"],
        "buffer.explorer_input.eval_tasksets": [{"name": "held_out", "path": "s3a://b/held_out"}],
    }
    plan = planned(tmp_path, *(f"{key}={json.dumps(value)}" for key, value in values.items()))
    asked: list[tuple[str, str, Sequence[str] | None]] = []
    (stage,) = with_local_copies(plan, taken(asked)).stages
    config, section = stage.config, stage.config.buffer.explorer_input
    assert {key: address for key, address, _ in asked} == {
        "model.model_path": "s3://b/policy",
        "model.lora_configs[0].path": "gs://b/adapter",
        "explorer.auxiliary_models[0].model_path": "oss://b/judge",
        f"{HEAD}.model.path": "hdfs://n/reward",
        f"{RESUMED}.resume_from_path": "s3://b/run/global_step_7",
        f"{TRAINED}[1]": "https://h/more.parquet",
        "buffer.explorer_input.eval_tasksets[0].path": "s3a://b/held_out",
    }
    assert all((patterns is None) == ("taskset" in key or RESUMED in key) for key, _, patterns in asked)
    assert not any("*.bin" in (patterns or ()) for _, _, patterns in asked)
    assert config.model.model_path == config.buffer.tokenizer_path == "/copies/policy"
    assert config.model.lora_configs is not None and config.model.lora_configs[0].path == "/copies/adapter"
    assert config.explorer.auxiliary_models[0].model_path == "/copies/judge"
    assert config.trainer.trainer_config.reward_model.model.path == "/copies/reward"
    assert config.trainer.trainer_config.trainer.resume_from_path == "/copies/global_step_7"
    assert section.taskset is not None and section.taskset.path == ("train.jsonl", "/copies/more.parquet")
    assert section.eval_tasksets[0].path == "/copies/held_out"
    text = dump_config(config, stage.references, addresses=stage.addresses)
    assert text == dump_config(plan.stages[0].config, stage.references) and "/copies" not in text


def test_a_dataset_and_demonstrations_get_theirs(tmp_path: Path) -> None:
    buffers, asked = "buffer.trainer_input", []
    changes = [
        "mode=train", "algorithm.algorithm_type=sft", "algorithm.repeat_times=null",
        f'{buffers}.experience_buffer={{"name": "d", "storage_type": "file", "path": "s3://b/sft.jsonl"}}',
    ]  # fmt: skip
    (stage,) = with_local_copies(planned(tmp_path, *changes), taken(asked)).stages
    assert [key for key, _, _ in asked] == [f"{buffers}.experience_buffer.path"]
    output = stage.config.buffer.trainer_input.experience_buffer
    assert output is not None and output.path == "/copies/sft.jsonl"
    changes = [
        "algorithm.algorithm_type=mix", f"{TRAINED}=train.jsonl",
        f'{buffers}.auxiliary_buffers={{"sft_dataset": {{"path": "s3://b/demonstrations.jsonl"}}}}',
    ]  # fmt: skip
    asked.clear()
    (stage,) = with_local_copies(planned(tmp_path, *changes), taken(asked)).stages
    assert [key for key, _, _ in asked] == [f"{buffers}.auxiliary_buffers.sft_dataset.path"]
    assert stage.config.buffer.trainer_input.auxiliary_buffers["sft_dataset"].path == "/copies/demonstrations.jsonl"


def test_copies_must_be_where_all_machines_see_them(tmp_path: Path) -> None:
    changes = ("cluster.node_num=2", "cluster.gpu_per_node=1", "model.model_path=memory://policy")
    (found,) = check_addresses(planned(tmp_path, *changes))
    assert (found.code, found.key) == ("W3113", "model.model_path")
    assert "TRINITY_CACHE_DIR" in (found.suggestion or "")
    assert check_addresses(planned(tmp_path, "model.model_path=memory://policy")) == []


def test_other_contents_of_an_address_are_refused_when_a_job_continues(tmp_path: Path) -> None:
    held_out = "buffer.explorer_input.eval_tasksets[0].path"
    before = [FetchedPath(key, "s3://b/a", "/a", "1") for key in (TRAINED, "model.model_path", held_out)]
    write_record(tmp_path, **{RECORDED: fetched_record(before)})
    check_same_content(tmp_path, before)
    now = [FetchedPath(each.key, each.address, each.path, "2") for each in before]
    with pytest.raises(CheckpointError, match="other contents of the same addresses") as caught:
        check_same_content(tmp_path, now)
    text = str(caught.value)
    assert caught.value.code == "E7046" and TRAINED in text and "model.model_path" in text and held_out not in text
    with pytest.raises(CheckpointError, match="model.model_path"):
        check_same_content(tmp_path, now, accepted=["buffer"])
    check_same_content(tmp_path, now, accepted=["buffer", "model.model_path"])
    check_same_content(tmp_path, [FetchedPath(TRAINED, "s3://b/other", "/a", "2")])  # E7004 says that
