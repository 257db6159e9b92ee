"""From a configuration to an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from tests.engine.engines import response, run
from trinity.common.config import Config
from trinity.common.errors import ConfigError, NotAvailableError
from trinity.common.models import ModelWrapper, create_auxiliary_models, create_inference_model
from trinity.engine.settings import engine_settings

Made = tuple[Path, PreTrainedModel]


def config(path: Path | str, rollout: dict[str, Any] | None = None, **sections: Any) -> Config:
    model = {"model_path": str(path), "max_model_len": 48, "max_response_tokens": 7, "temperature": 0.9}
    explorer = {"rollout_model": {"dtype": "float32"} | (rollout or {}), "runner_per_model": 4}
    return Config.model_validate({"model": model, "explorer": explorer} | sections)


def test_a_configuration_makes_an_engine_that_answers(llama: Made) -> None:
    made = create_inference_model(config(llama[0], {"seed": 3, "enable_history": True, "ignore_eos": True}))

    async def call() -> tuple[list[int], int]:
        await made.prepare()
        await made.prepare()
        wrapper = ModelWrapper(made, config=config(llama[0], {"enable_history": True}))
        answers = await wrapper.chat_async([{"role": "user", "content": "1+1="}])
        await made.shutdown()
        return response(answers[0]), len(wrapper.extract_experience_from_history())

    tokens, recorded = run(call())
    assert len(tokens) == 7 and recorded == 1


def test_settings_come_from_the_sections() -> None:
    made = engine_settings(config("m", {"top_p": 0.5, "min_response_tokens": 2}, deterministic=True))
    assert (made.params.temperature, made.params.top_p, made.params.max_tokens) == (0.9, 0.5, 7)
    assert made.params.min_tokens == 2 and made.is_deterministic and made.seed == 42
    assert made.model.max_model_len == 48 and made.dtype == "float32"


def test_slots_fit_the_batch_that_is_expected() -> None:
    repeats = {"algorithm": {"repeat_times": 8}}
    assert engine_settings(config("m", **repeats)).max_num_seqs == 32
    assert engine_settings(config("m", {"extra_engine_args": {"max_num_seqs": 5}})).max_num_seqs == 5
    many = {"algorithm": {"repeat_times": 200}}
    assert engine_settings(config("m", **many)).max_num_seqs == 256


def test_an_unknown_engine_argument_is_named() -> None:
    with pytest.raises(ConfigError, match="extra_engine_args.swap_space` is no argument of the torch engine"):
        engine_settings(config("m", {"extra_engine_args": {"swap_space": 4}}))


def test_a_length_must_be_known() -> None:
    with pytest.raises(ConfigError, match="model.max_model_len"):
        engine_settings(Config.model_validate({"model": {"model_path": "m"}}))


@pytest.mark.parametrize(
    ("rollout", "key"),
    [
        ({"engine_type": "sglang"}, "engine_type"),
        ({"engine_type": "tinker"}, "engine_type"),
    ],
)
def test_what_is_not_available_yet_is_refused(rollout: dict[str, Any], key: str) -> None:
    with pytest.raises(NotAvailableError, match=f"explorer.rollout_model.{key}"):
        create_inference_model(config("m", rollout))


@pytest.mark.parametrize(
    ("key", "way_out"),
    [
        ("tensor_parallel_size", "engine_type=vllm"),
        ("pipeline_parallel_size", "engine_type=vllm"),
        ("data_parallel_size", "use `explorer.rollout_model.engine_num`"),
    ],
)
def test_an_engine_on_several_devices_is_another(key: str, way_out: str) -> None:
    with pytest.raises(ConfigError, match=f"explorer.rollout_model.{key}.*{way_out}") as caught:
        create_inference_model(config("m", {key: 4}))
    assert caught.value.code == "E3223"


@pytest.mark.parametrize(
    ("key", "value"),
    [("repetition_penalty", 1.5), ("rope_theta", 1e6), ("rope_scaling", {"factor": 2.0}), ("logprobs", 4)],
)
def test_settings_that_the_engine_would_leave_out_are_refused(key: str, value: Any) -> None:
    with pytest.raises(NotAvailableError, match=f"model.{key}"):
        engine_settings(config("m", {key: value}))


def test_auxiliary_models_have_their_own_settings() -> None:
    auxiliary = {"model_path": "judge", "max_model_len": 99, "chat_template": "{{ 1 }}"}
    explorer = {"auxiliary_models": [auxiliary]}
    whole = Config.model_validate({"model": {"model_path": "m", "max_model_len": 48}, "explorer": explorer})
    assert len(create_auxiliary_models(whole)) == 1
    made = engine_settings(whole, 0)
    assert (made.model.model_path, made.model.max_model_len) == ("judge", 99)
    assert made.model.custom_chat_template == "{{ 1 }}"
