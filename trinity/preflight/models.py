"""The models of a stage: policy, critic, auxiliary models, reward model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.common.config.keys import KEYS
from trinity.common.config.problems import Finding
from trinity.preflight.adapter import check_adapter_dir, check_targets
from trinity.preflight.data import trained_dataset
from trinity.preflight.heads import CRITIC, REWARD_MODEL, critic_findings, reward_model_findings, teacher_findings
from trinity.preflight.model_dir import check_model_dir

if TYPE_CHECKING:
    from trinity.common.config import Catalogue, Config


def check_policy(config: Config) -> Iterator[Finding]:
    """Yield the problems of the policy model, its adapter and chat template."""
    model = config.model
    for adapter in model.lora_configs or ():
        if adapter.path is None and model.model_path and config.mode in ("both", "train"):
            yield from check_targets(
                Path(model.model_path).expanduser(),
                target_modules=adapter.target_modules,
                exclude_modules=adapter.exclude_modules,
            )
        if adapter.path is not None:
            yield from check_adapter_dir(Path(adapter.path).expanduser())
    dataset = trained_dataset(config)
    own_template = dataset.format.chat_template if dataset is not None else None
    if model.model_path:
        yield from check_model_dir(
            model.model_path,
            trust_remote_code=model.trust_remote_code,
            custom_chat_template=model.custom_chat_template,
            chat_template_path=model.chat_template_path,
            need_chat_template=own_template is None and (dataset is None or dataset.schema_type != "cpt"),
        )


def check_auxiliary(config: Config, *, catalogue: Catalogue) -> Iterator[Finding]:
    """Yield the problems of the auxiliary models; the first may be a teacher."""
    advantage = catalogue.entry("advantage_fn", config.algorithm.advantage_fn)
    for index, auxiliary in enumerate(config.explorer.auxiliary_models if config.mode != "train" else ()):
        if auxiliary.engine_type == "external":
            continue
        key = str(KEYS.explorer.auxiliary_models[index].model_path)
        path = auxiliary.model_path or config.model.model_path
        trusts = bool(auxiliary.trust_remote_code)
        found = check_model_dir(path, key=key, trust_remote_code=trusts, need_chat_template=False)
        if index == 0 and not found and advantage is not None and "teacher_logprobs" in advantage.reads:
            found = teacher_findings(path, config.model.model_path, key=key)
        yield from found


def check_critic(config: Config) -> Iterator[Finding]:
    """Yield the problems of the critic's model unless it is the policy's."""
    model = config.model
    path = model.critic_model_path
    if not config.trainer.trainer_config.critic.enable or not path or path == model.model_path:
        return
    found = check_model_dir(
        path,
        key=CRITIC,
        trust_remote_code=model.trust_remote_code,
        need_chat_template=False,
        need_tokenizer=False,
        is_classifier=True,
    )
    yield from found or critic_findings(path, model.model_path)


def check_reward_model(config: Config, *, catalogue: Catalogue) -> Iterator[Finding]:
    """Yield the problems of a reward model that is a sequence classifier."""
    section = config.trainer.trainer_config.reward_model
    worker = catalogue.entry("reward_model", section.worker)
    is_classifier = worker is not None and worker.is_classifier
    if not section.enable or config.mode == "train" or not section.model.path or not is_classifier:
        return
    switches = section.model.input_tokenizer is not None
    found = check_model_dir(
        section.model.path,
        key=REWARD_MODEL,
        trust_remote_code=section.model.trust_remote_code,
        need_chat_template=switches,
        need_tokenizer=switches,
        is_classifier=True,
    )
    yield from found or reward_model_findings(section.model.path)
