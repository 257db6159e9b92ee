"""The numbers of a step that a veRL file asks for: its formulas in float64 on the same rows, in its micro-batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from tests.tiny import tiny_model
from tests.trainer import rank_calls
from tests.trainer.conftest import VOCABULARY, moved
from tests.trainer.rank_pool import RankPool
from tests.trainer.verl_formulas import VerlSettings, verl_step
from trinity.catalogue import BUILT_IN
from trinity.common.config import Config, examine
from trinity.common.experience import EID, Experience
from trinity.trainer.batch import collate
from trinity.trainer.verl.stepping import passes
from trinity.trainer.verl.worker import ActorWorker

FILE = Path(__file__).resolve().parents[1] / "seeds" / "verl_ppo_trainer.yaml"
LR, LENGTH = 3e-3, 12
# Paths, sizes and what this machine has; the rates move the policy within a step, so that clips and ratios matter.
SMALL = (
    "data.train_batch_size=4", f"data.max_response_length={LENGTH}", "data.max_prompt_length=12",
    "actor_rollout_ref.rollout.n=3", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size=2", "actor_rollout_ref.ref.log_prob_micro_batch_size=5",
    "+actor_rollout_ref.actor.fsdp_config.dtype=float32", "actor_rollout_ref.rollout.name=torch",
    "trainer.n_gpus_per_node=0", "trainer.logger=[console]", "+trainer.total_training_steps=1",
    f"actor_rollout_ref.actor.optim.lr={LR}",
)  # fmt: skip
PPO = ("+critic.ppo_micro_batch_size_per_gpu=2", f"+critic.optim.lr={LR}", "+critic.cliprange_value=0.05")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbers") / "model"
    tiny_model(path, "llama", seed=1, scale=3.0)
    return path


def config_of(model: Path, folder: Path, *changes: str) -> Config:
    """Return the complete configuration of the published file with changes."""
    data = [f"data.train_files={folder / 'train.parquet'}", f"data.val_files={folder / 'train.parquet'}"]
    paths = [*data, f"actor_rollout_ref.model.path={model}", f"trainer.default_local_dir={folder}/checkpoints"]
    plan, found = examine(FILE, [*SMALL, *paths, *changes], catalogue=BUILT_IN, schema_only=True)
    assert not [problem for problem in found if problem.is_error], found
    return plan.stages[0].config


def batch(repeats: int = 3) -> list[Experience]:
    """Return the rows of four prompts; lengths and rewards differ, and one response has a token that is no action."""
    generator = torch.Generator().manual_seed(11)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    rows = []
    for task in range(4):
        prompt = torch.randint(3, VOCABULARY, (draw(3, 9),), generator=generator)
        for run in range(repeats):
            response = torch.randint(3, VOCABULARY, (draw(2, LENGTH + 1),), generator=generator)
            mask = torch.ones(len(response), dtype=torch.bool)
            if (task, run) == (1, 1):
                mask[1] = False
            reward = [0.0, 1.0, 0.25, 2.0, -0.5][(5 * task + 3 * run) % 5]
            rows.append(
                Experience(
                    EID(1, task, run),
                    torch.cat([prompt, response]),
                    len(prompt),
                    logprobs=-torch.rand(len(response), generator=generator) - 2.0,
                    reward=reward,
                    action_mask=mask,
                    info={"model_version": 0},
                )
            )
    return rows


def plain_models(made: ActorWorker, path: Path) -> tuple[nn.Module, nn.Module, nn.Module | None]:
    """Return Hugging Face's own policy, reference and critic in float64, with the weights of a worker."""
    policy, reference = (AutoModelForCausalLM.from_pretrained(path).double() for _ in range(2))
    policy.load_state_dict(made.model.state_dict())
    if made.critic is None:
        return policy, reference, None
    critic = AutoModelForTokenClassification.from_pretrained(path, num_labels=1).double().eval()
    critic.load_state_dict(made.critic.model.state_dict())
    return policy, reference, critic


def drawn(made: ActorWorker, rows: list[Experience]) -> list[int]:
    """Return the order that the trainer draws; whose draw it is is no matter of the formulas."""
    return [row for mini in passes(collate(rows), made.actor.settings, step=1) for row in mini]


def compared(config: Config, model: Path, settings: VerlSettings) -> tuple[dict[str, float], dict[str, float]]:
    """Return the metrics of the trainer's step and of the formulas', from the same weights on the same rows."""
    rows = batch()
    made = moved(ActorWorker(config, tokenizer=None, total_steps=1), share=0.02, seed=5)
    expected = verl_step(*plain_models(made, model), rows, settings, order=drawn(made, rows))
    if made.critic is not None:
        values = torch.cat([v[exp.action_mask] for v, exp in zip(expected.values, rows, strict=True)])
        expected.metrics |= {"critic/values/mean": float(values.mean()), "critic/values/max": float(values.max())}
    return made.train_step(rows, 1), expected.metrics


def assert_equal(found: dict[str, float], expected: dict[str, float]) -> None:
    wrong = {n: (found[n], v) for n, v in expected.items() if found[n] != pytest.approx(v, rel=1e-6, abs=1e-6)}
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.difference("`actor/pg_clipfrac`, `actor/ppo_kl` and the like")
@pytest.mark.parametrize(("estimator", "penalty"), [("grpo", "kl"), ("gae", "kl"), ("grpo", "full")])
def test_a_step_of_the_published_file_has_the_numbers_of_the_formulas(
    model: Path, tmp_path: Path, estimator: str, penalty: str
) -> None:
    changes = (f"algorithm.adv_estimator={estimator}", f"algorithm.kl_penalty={penalty}")
    config = config_of(model, tmp_path, *changes, *(PPO if estimator == "gae" else ()))
    sizes: dict[str, Any] = {"mini_rows": 6, "micro_rows": 2, "width": LENGTH, "lr": LR, "critic_lr": LR}
    found, expected = compared(config, model, VerlSettings(estimator, penalty, value_clip=0.05, **sizes))
    assert_equal(found, expected)
    assert expected["actor/pg_clipfrac"] > 0 and abs(expected["actor/ppo_kl"]) > 1e-4
    assert abs(expected["actor/reward_kl_penalty"]) > 1e-3
    if estimator == "gae":
        assert 0 < expected["critic/vf_clipfrac"] < 1


IN_LOSS = ("+algorithm.use_kl_in_reward=false", "+actor_rollout_ref.actor.use_kl_loss=true",
           "+actor_rollout_ref.actor.kl_loss_coef=0.1", "actor_rollout_ref.actor.entropy_coeff=0.02")  # fmt: skip


@pytest.mark.parametrize("mode", ["seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_every_aggregation_and_the_terms_of_the_loss_are_those_of_the_formulas(
    model: Path, tmp_path: Path, mode: str
) -> None:
    config = config_of(
        model, tmp_path, "algorithm.adv_estimator=gae", *PPO, *IN_LOSS,
        f"+actor_rollout_ref.actor.loss_agg_mode={mode}",
    )  # fmt: skip
    settings = VerlSettings(
        "gae", mini_rows=6, micro_rows=2, width=LENGTH, lr=LR, critic_lr=LR, value_clip=0.05, mode=mode,
        kl_in_reward=0.0, kl_in_loss=0.1, entropy=0.02,
    )  # fmt: skip
    found, expected = compared(config, model, settings)
    del expected["actor/reward_kl_penalty"]
    assert_equal(found, expected)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_the_older_loss_is_the_mean_over_micro_batches(model: Path, tmp_path: Path, mode: str) -> None:
    """`compat: verl-0.6`."""
    config = config_of(
        model, tmp_path, "algorithm.adv_estimator=gae", *PPO, *IN_LOSS, "+compat=verl-0.6",
        f"+actor_rollout_ref.actor.loss_agg_mode={mode}",
    )  # fmt: skip
    sizes: dict[str, Any] = {"mini_rows": 6, "micro_rows": 2, "width": LENGTH, "lr": LR, "critic_lr": LR}
    terms: dict[str, Any] = {"kl_in_reward": 0.0, "kl_in_loss": 0.1, "entropy": 0.02, "value_clip": 0.05}
    found, expected = compared(config, model, VerlSettings("gae", mode=mode, is_0_6=True, **sizes, **terms))
    del expected["actor/reward_kl_penalty"]
    assert_equal(found, expected)
    if mode == "token-mean":
        _, newest = compared(config, model, VerlSettings("gae", mode=mode, **sizes, **terms))
        assert abs(newest["actor/pg_loss"] - expected["actor/pg_loss"]) > 1e-4, "the releases differ on these rows"


@pytest.mark.parametrize("release", ["verl-0.9", "verl-0.6"])
def test_two_ranks_have_the_numbers_of_the_formulas(model: Path, tmp_path: Path, pool: RankPool, release: str) -> None:
    changes = [f"+compat={release}", "trainer.num_workers=2", "actor_rollout_ref.actor.ppo_micro_batch_size=1"]
    config = config_of(model, tmp_path, "algorithm.adv_estimator=gae", *PPO, *changes, "critic.ppo_micro_batch_size=1",
                       "~critic.ppo_micro_batch_size_per_gpu")  # fmt: skip
    rows, made = batch(), ActorWorker(config, tokenizer=None, total_steps=6)
    settings = VerlSettings(
        "gae", mini_rows=6, micro_rows=1, width=LENGTH, lr=LR, critic_lr=LR, value_clip=0.05,
        is_0_6=release == "verl-0.6", num_ranks=2 if release == "verl-0.6" else 1,
    )  # fmt: skip
    policy, reference, critic = plain_models(made, model)
    expected = verl_step(policy, reference, critic, rows, settings, order=drawn(made, rows)).metrics
    answers = pool.run(2, rank_calls.train, config.model_dump(exclude_unset=True), [rows], {})
    for _, (found,) in answers:
        assert_equal(found, expected)
