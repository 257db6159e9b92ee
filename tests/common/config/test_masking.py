"""`--set` texts with secrets: what may be printed, and that it means the same where the environment has them."""

from __future__ import annotations

import json

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from tests.common.config.test_bad_input import find
from trinity.common.config import dump_config
from trinity.common.config.masking import masked_override
from trinity.utils.log import redact

CANARY = "canary-0815"
NUMBER = 8150815
GIVEN = (
    (f"monitor.monitor_args.api_key={CANARY}", "TRINITY_MONITOR_MONITOR_ARGS_API_KEY"),
    (f"monitor.monitor_args={{password: {NUMBER}, project: mine}}", "TRINITY_MONITOR_MONITOR_ARGS_PASSWORD"),
    (
        f"buffer.trainer_input.experience_buffer.path=postgresql://user:{CANARY}@host/db",
        "TRINITY_BUFFER_TRAINER_INPUT_EXPERIENCE_BUFFER_PATH",
    ),
    (f"explorer.auxiliary_models[0].external_model_config.api_key={CANARY}", None),
    ("monitor.monitor_args.api_key=abc", "TRINITY_MONITOR_MONITOR_ARGS_API_KEY"),
)


@pytest.mark.parametrize(("override", "variable"), GIVEN)
def test_a_masked_override_has_no_secret_and_means_the_same(
    examined: Examine, monkeypatch: pytest.MonkeyPatch, override: str, variable: str | None
) -> None:
    text, variables = masked_override(override)
    secret = "abc" if "=abc" in override else CANARY if CANARY in override else str(NUMBER)
    assert secret not in text and len(variables) == 1
    if variable is None:  # a list that the file must have
        assert text.endswith("=${oc.env:TRINITY_EXPLORER_AUXILIARY_MODELS_0_EXTERNAL_MODEL_CONFIG_API_KEY}")
        return
    assert list(variables.values()) == [variable]
    assert masked_override(text) == (text, {}), "masked once is masked"
    find(examined(MINIMAL, text)[1], "E1401", next(iter(variables)))  # it names the variable that is missing
    value = override.partition("=")[2]
    monkeypatch.setenv(variable, str(NUMBER) if str(NUMBER) in value else value)
    given, masked = (examined(MINIMAL, each)[0].stages[0].config for each in (override, text))
    assert str(NUMBER) not in dump_config(given) and CANARY not in dump_config(given)
    assert dump_config(given) == dump_config(masked)
    flat = [
        json.dumps(config.model_dump(mode="json"), default=str).replace(f"{NUMBER}", "?") for config in (given, masked)
    ]
    assert flat[0].replace('"?"', "?") == flat[1].replace('"?"', "?")


@pytest.mark.parametrize(
    "override",
    [
        "seed=7",
        "name=a b'c",
        "monitor.monitor_args.api_key=${oc.env:WANDB_API_KEY}",
        "model.max_prompt_tokens=24",
        "model.external_model.api_key=EMPTY",
        "monitor.monitor_args={api_key_env: MY_KEY}",
        "stages[1].algorithm.optimizer.lr=1e-6",
        "buffer.explorer_input.taskset.rollout_args={stop: [a, b]}",
    ],
)
def test_what_is_no_secret_stays_as_it_was_typed(override: str) -> None:
    assert masked_override(override) == (override, {})


def test_a_secret_known_from_one_key_is_masked_in_every_other(examined: Examine) -> None:
    examined(MINIMAL, "monitor.monitor_args.api_key=known-4711")
    text, variables = masked_override("name=run-known-4711")
    assert (text, variables) == ("name=${oc.env:TRINITY_NAME}", {"name": "TRINITY_NAME"})


def test_an_override_with_a_typing_error_shows_no_secret(examined: Examine) -> None:
    problem = find(examined(MINIMAL, "monitor.monitor_args.api_key:canary-typo")[1], "E1008", "")
    assert "canary" not in problem.render() and "canary" not in json.dumps(problem.to_dict())
    assert "`--set #1` is not of the form a.b=c" in problem.message


def test_a_number_may_be_a_secret(examined: Examine) -> None:
    plan, _ = examined(MINIMAL, "monitor.monitor_args.password=47114711")
    assert "47114711" not in dump_config(plan.stages[0].config) and redact("it is 47114711") == "it is ***"
