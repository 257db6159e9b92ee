"""`override_config` and `external_lib`: trainer, critic and engine compute the model that they describe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification

from tests.tiny import tiny_model
from tests.trainer.conftest import make_experiences
from tests.trainer.test_update import TERMS
from trinity.common.config import Config
from trinity.common.errors import ConfigError, EnvironmentProblem
from trinity.engine.settings import engine_settings
from trinity.engine.torch.loading import load_decoder
from trinity.trainer.batch import collate
from trinity.trainer.verl.critic import Critic
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
CPU = torch.device("cpu")
OTHER_ROTATION = {"rope_parameters": {"rope_theta": 3.0}}
MODULE = """
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification, LlamaModel

class DoveConfig(LlamaConfig):
    model_type = "dove"

class DoveForCausalLM(LlamaForCausalLM):
    config_class = DoveConfig

class DoveForTokenClassification(LlamaForTokenClassification):
    config_class = DoveConfig

AutoConfig.register("dove", DoveConfig)
class DoveModel(LlamaModel):
    config_class = DoveConfig

AutoModel.register(DoveConfig, DoveModel)
AutoModelForCausalLM.register(DoveConfig, DoveForCausalLM)
AutoModelForTokenClassification.register(DoveConfig, DoveForTokenClassification)
"""

PPO = {"algorithm_type": "ppo", "advantage_fn": "ppo"}


def with_model(**keys: Any) -> dict[str, Any]:
    """Return the section `trainer` with keys of the policy's model."""
    return {"trainer_config": {"actor_rollout_ref": {"model": keys}}}


def with_critic(**keys: Any) -> dict[str, Any]:
    """Return the section `trainer` with keys of the critic's model."""
    return {"trainer_config": {"critic": {"model": keys}}}


def logprobs(made: ActorWorker) -> Tensor:
    return made.actor.scorer.compute_log_prob(collate(make_experiences(1)))


def worker(config: Config) -> ActorWorker:
    return ActorWorker(config, tokenizer=None, total_steps=6, device="cpu")


def critic(config: Config) -> Critic:
    return Critic(config, device=CPU, total_steps=6, num_tokens=20)


@pytest.mark.difference("`override_config` and the engine")
def test_policy_reference_and_engine_have_the_changed_entries(make_config: Maker, tmp_path: Path) -> None:
    config = make_config(algorithm=TERMS, trainer=with_model(override_config=OTHER_ROTATION))
    made, plain = worker(config), worker(make_config(algorithm=TERMS))
    own = logprobs(made)
    assert made.reference is not None and float((own - logprobs(plain)).abs().max()) > 1e-3
    assert torch.equal(made.reference.compute_log_prob(collate(make_experiences(1))), own)
    settings, first = engine_settings(config), make_experiences(1)[0]
    engine = load_decoder(
        str(config.model.model_path),
        dtype=torch.float32,
        device=CPU,
        max_model_len=64,
        overrides=settings.model_overrides,
    )
    scored = engine.sequence_logprobs(first.tokens, 1.0)[first.prompt_length - 1 :]
    mask = first.action_mask
    assert float((scored - own[0, : len(scored)])[mask].abs().max()) < 1e-5
    made.save(tmp_path / "step", hf=True)
    written = json.loads((tmp_path / "step" / "actor" / "huggingface" / "config.json").read_text())
    assert written["rope_parameters"]["rope_theta"] == 3.0


def test_the_critic_has_entries_of_its_own(make_config: Maker) -> None:
    batch = collate(make_experiences(1))
    sections = ({}, with_model(override_config=OTHER_ROTATION), with_critic(override_config=OTHER_ROTATION))
    made = [critic(make_config(algorithm=PPO, trainer=section)) for section in sections]
    values = [each.trained.compute_values(batch) for each in made]
    assert torch.equal(values[0], values[1]) and float((values[0] - values[2]).abs().max()) > 1e-3


WRONG = [
    ({"num_hiden_layers": 1}, ConfigError, r"E1885.*override_config\.num_hiden_layers.*did you mean num_hidden_layers"),
    ({"wings": 2}, ConfigError, r"E1885.*override_config\.wings.*llama model has no such entry; it has .*hidden_size"),
    ({"rope_parameters": 2}, ConfigError, r"E1885.*override_config\.rope_parameters` must be a mapping"),
    ({"num_hidden_layers": 1}, EnvironmentProblem, r"E3101.*override_config does not fit.*layers\.1.* left over"),
    ({"num_hidden_layers": 9}, EnvironmentProblem, r"E3101.*override_config does not fit.*layers\..* missing"),
    ({"intermediate_size": 8}, EnvironmentProblem, r"E3101.*override_config does not fit.*of another shape"),
]


@pytest.mark.difference("`override_config` with an entry that the model does not have")
@pytest.mark.parametrize(("overrides", "error", "words"), WRONG, ids=[str(row[0]) for row in WRONG])
def test_entries_that_the_model_does_not_have_are_refused_by_name(
    make_config: Maker, overrides: dict[str, Any], error: type[Exception], words: str
) -> None:
    config = make_config(trainer=with_model(override_config=overrides))
    with pytest.raises(error, match=words):
        worker(config)
    with pytest.raises(error, match=words.replace(r"override_config", r"critic.*override_config", 1)):
        critic(make_config(algorithm=PPO, trainer=with_critic(override_config=overrides)))
    if error is ConfigError:
        with pytest.raises(error, match=words):
            load_decoder(
                str(config.model.model_path), dtype=torch.float32, device=CPU, max_model_len=64, overrides=overrides
            )


@pytest.fixture
def _tables_as_before() -> Iterator[None]:
    """Leave transformers' tables without what a module of a user added to them."""
    autos = (AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification)
    added = [table._extra_content for table in (CONFIG_MAPPING, *(auto._model_mapping for auto in autos))]
    before = [dict(each) for each in added]
    yield
    for each, was in zip(added, before, strict=True):
        each.clear()
        each.update(was)
    sys.modules.pop("dove_model", None)


@pytest.mark.usefixtures("_tables_as_before")
def test_a_module_of_the_user_brings_a_model_type(
    make_config: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model(tmp_path / "dove", "llama", seed=1, scale=3.0)
    file = tmp_path / "dove" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "dove", "architectures": None}))
    (tmp_path / "dove_model.py").write_text(MODULE)
    model = {"model_path": str(tmp_path / "dove")}
    with pytest.raises(ConfigError, match=r"E1863.*actor_rollout_ref\.model\.external_lib names the module dove_model"):
        worker(make_config(model=model, trainer=with_model(external_lib="dove_model")))
    with pytest.raises(ConfigError, match=r"E1863.*critic\.model\.external_lib names the module dove_model"):
        critic(make_config(algorithm=PPO, model=model, trainer=with_critic(external_lib=["json", "dove_model"])))
    with pytest.raises(EnvironmentProblem, match=r"E3101.*dove"):
        worker(make_config(model=model))
    monkeypatch.syspath_prepend(str(tmp_path))
    config = make_config(model=model, trainer=with_model(external_lib="dove_model"))
    assert engine_settings(config).external_lib == "dove_model"
    made = worker(config)
    assert type(made.model).__name__ == "DoveForCausalLM"
    assert float((logprobs(made) - logprobs(worker(make_config()))).abs().max()) < 1e-5
    valued = critic(make_config(algorithm=PPO, model=model, trainer=with_critic(external_lib="dove_model")))
    assert type(valued.model).__name__ == "DoveForTokenClassification"
