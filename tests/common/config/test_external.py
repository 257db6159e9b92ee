"""Models behind a server: auxiliary ones are allowed, and what they cannot be is said by name."""

from __future__ import annotations

import pytest

from tests.common.config.conftest import MINIMAL, Examine

JUDGE = "explorer.auxiliary_models=[{engine_type: external, external_model_config: {model_name: judge}}]"
AUXILIARY, ROLLOUT = "explorer.auxiliary_models[0]", "explorer.rollout_model"


def errors(examined: Examine, *overrides: str) -> list[tuple[str, str]]:
    return [(p.code, p.key) for p in examined(MINIMAL, *overrides)[1] if p.is_error]


def test_an_auxiliary_model_behind_a_server_needs_no_folder_and_no_device(examined: Examine) -> None:
    plan, problems = examined(MINIMAL, JUDGE, "cluster.node_num=1", "cluster.gpu_per_node=1")
    assert not [p.render() for p in problems]
    config = plan.stages[0].config
    assert config.cluster.auxiliary_model_gpu_num == 0
    server = config.explorer.auxiliary_models[0].external_model_config
    assert server is not None
    assert (server.base_url_env, server.api_key_env, server.model_name) == (
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
        "judge",
    )


def test_it_needs_a_name(examined: Examine) -> None:
    unnamed = "explorer.auxiliary_models=[{engine_type: external}]"
    assert errors(examined, unnamed) == [("E1821", f"{AUXILIARY}.external_model_config")]
    assert errors(examined, unnamed, "model.external_model.model_name=judge") == []
    assert errors(examined, "explorer.auxiliary_models=[{engine_type: external, name: judge}]") == []


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ((f"{ROLLOUT}.engine_type=external", "model.external_model.model_name=m"), f"{ROLLOUT}.engine_type"),
        (("model.external_model.enable=true", "model.external_model.model_name=m"), "model.external_model.enable"),
        ((JUDGE, "deterministic=true"), f"{AUXILIARY}.engine_type"),
    ],
)
def test_what_it_cannot_be_is_refused_by_name(examined: Examine, overrides: tuple[str, ...], key: str) -> None:
    assert errors(examined, *overrides) == [("E1869", key)]


def test_keys_that_only_an_engine_of_the_run_has_have_no_effect(examined: Examine) -> None:
    text = JUDGE.replace("{engine_type", "{dtype: float32, gpu_memory_utilization: 0.5, engine_type")
    found = [(p.code, p.key) for p in examined(MINIMAL, text)[1]]
    assert sorted(found) == [("W1902", f"{AUXILIARY}.dtype"), ("W1902", f"{AUXILIARY}.gpu_memory_utilization")]
