"""What scripts call on a configuration, and the common form of tasksets and buffers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.e2e.tiny_run import PLAIN
from trinity.buffer import get_buffer_reader, get_buffer_writer
from trinity.catalogue import builtin_catalogue
from trinity.common import config
from trinity.common.config import (
    ConfigErrors,
    ExperienceBufferConfig,
    FormatConfig,
    StageConfig,
    StorageConfig,
    TasksetConfig,
    load_config,
    load_plan,
)
from trinity.utils.dlc_utils import get_dlc_env_vars


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(PLAIN))
    return path


def test_a_configuration_is_completed_in_place(file: Path) -> None:
    made = load_config(file)
    assert made.checkpoint_job_dir == "" and made.buffer.train_batch_size == 0
    assert made.check_and_update() is made
    assert made == load_plan(file, catalogue=builtin_catalogue()).stages[0].config
    assert made.buffer.train_batch_size == 4 and made.get_checkpoint_job_dir() == made.checkpoint_job_dir
    before = made.model_copy(deep=True)
    assert load_config(file).check_and_update().check_and_update() == before


def test_names_are_those_of_plugins_too(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn\n"
    text += "@REWARD_FUNCTIONS.register_module('mine')\nclass Mine(RewardFn):\n    pass\n"
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "own.py").write_text(text)
    overrides = ["buffer.explorer_input.default_reward_fn_type=mine"]
    with pytest.raises(ConfigErrors, match="E1701"):
        load_config(file, overrides).check_and_update()
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", str(tmp_path / "plugins"))
    taskset = load_config(file, overrides).check_and_update().buffer.explorer_input.taskset
    assert taskset is not None and taskset.default_reward_fn_type == "mine"


def test_all_problems_come_at_once(file: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load_config(file, ["model.max_prompt_tokens=100", "buffer.batch_size=3", "trainer.grad_clip=-1"])
    assert caught.value.problems
    staged = load_config(file).model_copy(update={"stages": (StageConfig(stage_name="a"), StageConfig(stage_name="b"))})
    with pytest.raises(ConfigErrors, match="E1604.*2 stages"):
        staged.check_and_update()


def test_a_configuration_is_flat(file: Path) -> None:
    flat = load_config(file).flatten()
    assert flat["buffer.explorer_input.taskset.path"] == "train.jsonl" and flat["algorithm.optimizer.lr"] == 1e-3
    assert flat["algorithm.optimizer.betas.1"] == 0.999
    assert not any(isinstance(value, list | tuple) and value for value in flat.values())


def test_the_environment_of_a_configuration(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", "/plugins")
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    made = load_config(file, ["log.level=debug", "model.external_model.enable=true"])
    found = made.get_envs()
    assert (found["TRINITY_PLUGIN_DIRS"], found["TRINITY_LOG_LEVEL"]) == ("/plugins", "DEBUG")
    assert found["OPENAI_API_KEY"] == "key" and found["OPENAI_BASE_URL"] == ""


def test_a_storage_is_a_taskset_or_a_buffer(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    storage = StorageConfig(
        name="train",
        path=str(tmp_path / "tasks.jsonl"),
        format=FormatConfig(prompt_key="question", response_key="answer"),
        default_workflow_type="simple_workflow",
    )
    storage.repeat_times = 3
    assert isinstance(storage.section(), TasksetConfig)
    (task,) = get_buffer_reader(storage).read()
    assert (task.raw_task["answer"], task.repeat_times) == ("2", 3)
    queue = StorageConfig(name="queue", storage_type="queue", capacity=7, path=f"sqlite:///{tmp_path}/queue.db")
    section = queue.section()
    assert isinstance(section, ExperienceBufferConfig) and section.capacity == 7
    assert isinstance(StorageConfig(path="x", schema_type="sft").section(), ExperienceBufferConfig)
    output = StorageConfig(name="out", path=str(tmp_path / "out.jsonl"))
    assert get_buffer_writer(output).path == tmp_path / "out.jsonl"


def test_the_variables_of_a_job_are_read_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "6379"}.items():
        monkeypatch.setenv(name, value)
    assert get_dlc_env_vars() == {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "host", "MASTER_PORT": "6379"}
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK of a DLC job must be a number, got 'first'"):
        get_dlc_env_vars()
    monkeypatch.delenv("MASTER_ADDR")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="MASTER_ADDR of a DLC job must be set, got None"):
        get_dlc_env_vars()


SECTIONS = [
    "AlgorithmConfig",
    "BufferConfig",
    "ClusterConfig",
    "DataJuicerServiceConfig",
    "DataProcessorConfig",
    "DataSelectorConfig",
    "DynamicTimeoutConfig",
    "ExperienceBufferConfig",
    "ExperiencePipelineConfig",
    "ExplorerConfig",
    "FormatConfig",
    "GenerationConfig",
    "InferenceModelConfig",
    "LoRAConfig",
    "LogConfig",
    "MegatronConfig",
    "ModelConfig",
    "MonitorConfig",
    "OperatorConfig",
    "OptimizerConfig",
    "OverRolloutConfig",
    "ServiceConfig",
    "StageConfig",
    "SynchronizerConfig",
    "TaskPipelineConfig",
    "TasksetConfig",
    "TinkerConfig",
    "TrainerConfig",
]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_is_there_under_its_published_name(name: str) -> None:
    section = getattr(config, name)
    assert section() == section.model_validate({})
