"""The critic: its step against plain PyTorch, what must not change it, what it refuses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from tests.tiny import tiny_model
from tests.trainer.conftest import FLOAT32, make_experiences
from tests.trainer.test_against_plain_torch import plain_rows
from trinity.algorithm import KL_FN
from trinity.algorithm.advantage_fn import TokenAdvantage
from trinity.common.config import Config
from trinity.common.errors import CheckpointError, EnvironmentProblem, NumericError, OutOfMemoryError
from trinity.common.experience import Experience
from trinity.trainer.advantage import BatchAdvantage
from trinity.trainer.batch import collate
from trinity.trainer.verl.critic import Critic, critic_settings, reads_values
from trinity.trainer.verl.loading import load_value_model, value_head
from trinity.trainer.verl.loss import Metrics
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
PPO = {"algorithm_type": "ppo", "advantage_fn": "ppo", "kl_loss_fn": "none"}
GAMMA, LAM, RANGE, LR = 0.9, 0.8, 0.02, 0.05
CPU = torch.device("cpu")


def ppo_config(make_config: Maker, critic: dict[str, Any] | None = None, **sections: Any) -> Config:
    """Return a configuration of PPO whose critic section is `critic`."""
    tree = {"actor_rollout_ref": {"actor": FLOAT32}, "critic": critic or {}}
    trainer = {"trainer_config": tree} | sections.pop("trainer", {})
    algorithm = PPO | sections.pop("algorithm", {})
    return make_config(algorithm=algorithm, trainer=trainer, **sections)


def worker(config: Config) -> ActorWorker:
    return ActorWorker(config, tokenizer=None, total_steps=6)


def critic_of(made: ActorWorker) -> Critic:
    assert made.critic is not None
    return made.critic


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


# -------------------------------------------------------------- against plain PyTorch
def plain_values(model: nn.Module, exp: Experience) -> Tensor:
    """Return the value before each response token, from the token classifier's outputs of one row."""
    return model(exp.tokens[None]).logits[0, exp.prompt_length - 1 : -1, 0]


def plain_gae(exp: Experience, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return advantages and returns of the counted tokens of one row, the reward on the last of them."""
    kept = values[exp.action_mask].tolist()
    advantages, following, after = [0.0] * len(kept), 0.0, 0.0
    for place in reversed(range(len(kept))):
        reward = exp.reward if place == len(kept) - 1 else 0.0
        following = reward + GAMMA * after - kept[place] + GAMMA * LAM * following
        advantages[place], after = following, kept[place]
    result = torch.tensor(advantages, dtype=torch.float64)
    return result, result + torch.tensor(kept, dtype=torch.float64)


def plain_ppo_loss(model: nn.Module, experiences: list[Experience], advantages: list[Tensor]) -> Tensor:
    """Return the clipped surrogate, the mean over all counted tokens; advantages whitened over all of them."""
    flat = torch.cat(advantages)
    whitened = (flat - flat.mean()) / torch.sqrt(flat.var() + 1e-8)
    ratios = [torch.exp(plain_rows(model, e, 1.0)[0] - e.logprobs.double())[e.action_mask] for e in experiences]
    ratio = torch.cat(ratios)
    loss = torch.maximum(-whitened * ratio, -whitened * ratio.clamp(0.8, 1.2))
    return torch.where(whitened < 0, torch.minimum(loss, -3.0 * whitened), loss).mean()


def plain_value_loss(model: nn.Module, experiences: list[Experience], old: Tensor, returns: Tensor) -> Tensor:
    """Return half the mean over all counted tokens of the larger of the plain and the clipped squared error."""
    now = torch.cat([plain_values(model, e)[e.action_mask] for e in experiences])
    clipped = old + (now - old).clamp(-RANGE, RANGE)
    return 0.5 * torch.maximum((now - returns) ** 2, (clipped - returns) ** 2).mean()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_ppo_step_is_that_of_plain_torch(make_config: Maker, tmp_path: Path, family: str) -> None:
    tiny_model(tmp_path / "model", family, seed=1, scale=3.0)
    tiny_model(tmp_path / "critic", family, seed=2, scale=3.0)
    sgd = {"optimizer_type": "sgd", "lr": 0.5, "weight_decay": 0.1}
    config = ppo_config(
        make_config,
        {
            "optim": {"lr": LR}, "ppo_epochs": 2, "cliprange_value": RANGE, "grad_clip": 0.5,
            "use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 3, "forward_micro_batch_size_per_gpu": 5,
        },
        model={"model_path": str(tmp_path / "model"), "critic_model_path": str(tmp_path / "critic")},
        algorithm={"optimizer": sgd, "advantage_fn_args": {"gamma": GAMMA, "lam": LAM}},
    )  # fmt: skip
    made = worker(config)
    critic = critic_of(made)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model").double()
    judge = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic", num_labels=1).double().eval()
    judge.load_state_dict(critic.model.state_dict())
    starts = weights_of(plain), weights_of(judge)
    experiences = make_experiences(1, tasks=3)
    for number, exp in enumerate(experiences):
        exp.advantages, exp.reward = None, [0.0, 1.0, -0.5, 2.0, 0.25][number % 5]
        exp.logprobs = plain_rows(plain, exp, 1.0)[0].detach().float() + 0.2 * torch.sin(exp.tokens[-1:].float())

    with torch.no_grad():
        values = [plain_values(judge, exp) for exp in experiences]
    pairs = [plain_gae(exp, v) for exp, v in zip(experiences, values, strict=True)]
    old = torch.cat([v[e.action_mask] for e, v in zip(experiences, values, strict=True)])
    returns = torch.cat([r for _, r in pairs])
    losses, norms = [], []
    optimizer = torch.optim.SGD(judge.parameters(), lr=LR, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = plain_value_loss(judge, experiences, old, returns)
        loss.backward()
        losses.append(loss.item())
        norms.append(float(torch.nn.utils.clip_grad_norm_(judge.parameters(), 0.5)))
        optimizer.step()
    policy_loss = plain_ppo_loss(plain, experiences, [a for a, _ in pairs])
    policy_loss.backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    torch.optim.SGD(plain.parameters(), lr=0.5, weight_decay=0.1).step()

    metrics = made.train_step(experiences, 1)
    assert metrics["actor/final_loss"] == pytest.approx(policy_loss.item(), abs=1e-5)
    assert metrics["critic/vf_loss"] == pytest.approx(sum(losses) / 2, rel=1e-4)
    assert metrics["critic/grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-4)
    assert 0.0 < metrics["critic/vf_clipfrac"] < 1.0, "the clip decides some tokens of the second pass"
    assert metrics["critic/values/mean"] == pytest.approx(old.mean().item(), abs=1e-5)
    assert metrics["critic/returns/max"] == pytest.approx(returns.max().item(), abs=1e-5)
    explained = 1 - (returns - old).var() / (returns.var() + 1e-5)
    assert metrics["critic/vf_explained_var"] == pytest.approx(explained.item(), abs=1e-4)
    for trained, expected, start in ((made.model, plain, starts[0]), (critic.model, judge, starts[1])):
        weights = weights_of(trained)
        for name, weight in weights_of(expected).items():
            assert float((weights[name] - weight).abs().max()) < 1e-5, name
        moved = max(float((weights[name] - weight).abs().max()) for name, weight in start.items())
        assert moved > 1e-3, "the step is far larger than the tolerance"


# ------------------------------------------------------------------------ invariants
def gradients(made: ActorWorker, experiences: list[Experience]) -> dict[str, Tensor]:
    """Return the critic's gradients of one mini-batch, before clipping."""
    critic = critic_of(made)
    batch, _ = made._with_advantages(critic.with_values(made._with_logprobs(collate(experiences))), experiences)
    batch = batch.with_columns(
        values=batch.columns["values"] + 0.1 * torch.sin(torch.arange(batch.action_mask.shape[1]))
    )
    critic.trained._accumulate(batch, Metrics())
    return {name: p.grad.clone() for name, p in critic.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_the_split_into_micro_batches_does_not_change_the_gradient(make_config: Maker, mode: str) -> None:
    experiences = make_experiences(1, tasks=3)
    experiences[2].action_mask = torch.zeros_like(experiences[2].action_mask)

    def of(**critic: Any) -> dict[str, Tensor]:
        return gradients(worker(ppo_config(make_config, {"loss_agg_mode": mode} | critic)), experiences)

    whole = of(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=100)
    scale = max(float(g.abs().max()) for g in whole.values())
    assert scale > 1e-3
    for split in (of(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=1), of(ppo_max_token_len_per_gpu=40)):
        for name, gradient in whole.items():
            assert float((gradient - split[name]).abs().max()) <= 1e-6 * max(scale, 1.0), name


def test_rows_without_counted_tokens_leave_the_step_as_it_is(make_config: Maker) -> None:
    """Neither the whitening nor the critic sees them; the mean over tokens has none of theirs."""
    experiences = make_experiences(1)
    silent = dataclasses.replace(experiences[0], reward=50.0, action_mask=torch.zeros(experiences[0].response_length))
    with_silent, without = worker(ppo_config(make_config)), worker(ppo_config(make_config))
    first, second = with_silent.train_step([*experiences, silent], 1), without.train_step(experiences, 1)
    for name in ("actor/grad_norm", "critic/grad_norm", "critic/vf_loss", "critic/advantages/max"):
        assert first[name] == pytest.approx(second[name], rel=1e-5), name


@pytest.mark.difference("GAE over tokens that the policy did not produce")
def test_tokens_that_the_policy_did_not_produce_carry_no_value(make_config: Maker) -> None:
    exp = make_experiences(1, tasks=1, repeats=1)[0]
    exp = Experience(exp.eid, exp.tokens, exp.prompt_length, reward=1.0, logprobs=exp.logprobs)
    length = exp.response_length
    assert length >= 4
    exp.action_mask = torch.ones(length, dtype=torch.bool)
    exp.action_mask[1:3] = False
    made = worker(ppo_config(make_config, algorithm={"advantage_fn_args": {"gamma": 0.5, "lam": 0.0}}))
    batch = critic_of(made).with_values(collate([exp]))
    values = batch.columns["values"][0]
    assert values[1:3].tolist() == [0.0, 0.0] and bool((values[exp.action_mask] != 0).all())
    returns = made._with_advantages(batch, [exp])[0].columns["returns"][0]
    assert returns[0] == pytest.approx(0.5 * float(values[3]), abs=1e-6), "the next value is that of the next own token"


@pytest.mark.difference("`trainer.critic_warmup` of N")
def test_warm_up_leaves_the_policy_bit_for_bit_as_it_is(make_config: Maker) -> None:
    made = worker(ppo_config(make_config, trainer={"critic_warmup": 2}))
    policy, judge = weights_of(made.model), weights_of(critic_of(made).model)
    for step in (1, 2):
        metrics = made.train_step(make_experiences(step), step)
        assert not any(name.startswith("actor/") for name in metrics)
        assert all(torch.equal(policy[name], tensor) for name, tensor in made.weights().items())
    assert any(not torch.equal(judge[n], t) for n, t in weights_of(critic_of(made).model).items())
    assert made.train_step(make_experiences(3), 3)["actor/grad_norm"] > 0
    assert any(not torch.equal(policy[name], tensor) for name, tensor in made.weights().items())


@pytest.mark.difference("`trainer.critic_warmup` of N")
def test_the_schedule_of_the_policy_begins_after_the_warm_up_of_the_critic(make_config: Maker) -> None:
    optimizer = {"lr": 0.01, "lr_warmup_steps": 2, "lr_scheduler_type": "linear", "min_lr_ratio": 0.5}
    made = worker(ppo_config(make_config, trainer={"critic_warmup": 2}, algorithm={"optimizer": optimizer}))
    lines = [made.train_step(make_experiences(step), step) for step in range(1, 7)]
    expected = [0.005, 0.01, 0.0075, 0.005]
    assert [line.get("actor/lr") for line in lines] == [None, None, *map(pytest.approx, expected)]
    assert lines[0]["critic/lr"] == pytest.approx(0.5e-5), "the critic's own begins with the run"


def test_the_critic_learns_the_return(make_config: Maker) -> None:
    """Equal experiences: the value loss falls and the values come to explain the returns."""
    lines = []
    made = worker(
        ppo_config(make_config, {"optim": {"lr": 1e-3}, "cliprange_value": 10.0}, trainer={"critic_warmup": 40})
    )
    for step in range(1, 41):
        lines.append(made.train_step(make_experiences(1), step))
    assert lines[-1]["critic/vf_loss"] < 0.1 * lines[0]["critic/vf_loss"]
    assert lines[-1]["critic/vf_explained_var"] > 0.8 > lines[0]["critic/vf_explained_var"]


def test_an_absent_section_takes_the_values_of_the_actor(make_config: Maker) -> None:
    actor = FLOAT32 | {"ppo_epochs": 3, "shuffle": True, "grad_clip": 0.25, "ppo_max_token_len_per_gpu": 80}
    trainer = {"trainer_config": {"actor_rollout_ref": {"actor": actor}}}
    optimizer = {"lr": 1e-2, "lr_warmup_steps": 4, "betas": (0.8, 0.9), "weight_decay": 0.3}
    made = worker(make_config(algorithm=PPO | {"optimizer": optimizer}, trainer=trainer))
    trained = critic_of(made).trained
    update = trained.settings.update
    assert (update.epochs, update.grad_clip, update.max_tokens, update.max_rows) == (3, 0.25, 160, None)
    assert update.shuffle_seed == 42 and trained.settings.cliprange_value == 0.5
    assert [trained.stepper.schedule.at(step) for step in (1, 4)] == [2.5e-6, 1e-5]
    group = critic_of(made).optimizer.param_groups[0]
    assert (group["betas"], group["weight_decay"]) == ((0.8, 0.9), 0.3)
    made.train_step(make_experiences(1), 1)
    assert int(next(iter(critic_of(made).optimizer.state.values()))["step"]) == 3


def test_what_an_advantage_asks_for_decides_whether_there_is_a_critic(make_config: Maker) -> None:
    """Also for the function of a plugin, of which the configuration knows nothing."""

    class NeedsValues(TokenAdvantage):
        def __call__(self, values: Tensor, action_mask: Tensor) -> Any:
            return values, values, {}

    class TakesValues(TokenAdvantage):
        def __call__(self, action_mask: Tensor, values: Tensor | None = None) -> Any:
            return action_mask.float(), action_mask.float(), {}

    def reads(function: TokenAdvantage, **critic: Any) -> bool:
        advantage = BatchAdvantage(function, KL_FN.get("none")(), group_size=1)
        return reads_values(advantage, ppo_config(make_config, critic, algorithm=plugin))

    plugin = {"advantage_fn": "of_a_plugin"}
    settings = [critic_settings(ppo_config(make_config, algorithm=changes)) for changes in ({}, plugin)]
    assert settings[0] == settings[1]
    assert reads(NeedsValues()) and not reads(TakesValues()) and reads(TakesValues(), enable=True)
    assert worker(make_config()).critic is None


def test_bfloat16_products_give_nearly_the_same_step(make_config: Maker) -> None:
    exact = worker(ppo_config(make_config))
    rounded = worker(ppo_config(make_config, {"model": {"fsdp_config": {"dtype": "bfloat16"}}}))
    left, right = exact.train_step(make_experiences(1), 1), rounded.train_step(make_experiences(1), 1)
    assert left["critic/vf_loss"] != right["critic/vf_loss"]
    for name in ("critic/vf_loss", "critic/grad_norm", "critic/values/max"):
        assert right[name] == pytest.approx(left[name], rel=0.05), name


# ------------------------------------------------------------------------- value head
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", [AutoModelForSequenceClassification, AutoModelForTokenClassification])
def test_the_head_of_a_classifier_is_used(make_config: Maker, tmp_path: Path, family: str, kind: Any) -> None:
    tiny_model(tmp_path / "m", family)
    classifier = kind.from_pretrained(tmp_path / "m", num_labels=1)
    head = value_head(classifier)
    with torch.no_grad():
        head.weight.copy_(torch.arange(head.weight.shape[1]))
    classifier.save_pretrained(tmp_path / "m")
    loaded = value_head(load_value_model(str(tmp_path / "m"), CPU, config=make_config()))
    assert torch.equal(loaded.weight, head.weight)
    assert loaded.bias is None or loaded.bias.item() == (head.bias.item() if head.bias is not None else 0.0)


def test_a_new_head_depends_on_the_seed_alone(make_config: Maker, model_path: Path) -> None:
    def head(seed: int) -> Tensor:
        return value_head(load_value_model(str(model_path), CPU, config=make_config(seed=seed))).weight

    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = head(1)
    assert torch.equal(torch.get_rng_state(), state), "the process's own generator is left alone"
    torch.manual_seed(6)
    assert torch.equal(first, head(1)) and not torch.equal(first, head(2)) and 0 < float(first.detach().std()) < 0.05


# --------------------------------------------------------------------------- refusals
def test_a_critic_that_does_not_fit_is_refused(make_config: Maker, tmp_path: Path) -> None:
    def load(path: Path) -> ActorWorker:
        return worker(ppo_config(make_config, model={"critic_model_path": str(path)}))

    with pytest.raises(EnvironmentProblem, match=r"E3101.*model\.critic_model_path .*nowhere"):
        load(tmp_path / "nowhere")
    tiny_model(tmp_path / "small", characters="0123")
    with pytest.raises(EnvironmentProblem, match=r"E3121.*embeddings of 7 tokens, the policy's tokenizer has \d+"):
        load(tmp_path / "small")
    tiny_model(tmp_path / "two")
    AutoModelForTokenClassification.from_pretrained(tmp_path / "two", num_labels=2).save_pretrained(tmp_path / "two")
    with pytest.raises(EnvironmentProblem, match=r"E3120.*score.weight of shape \[2, 64\].*one label"):
        load(tmp_path / "two")


def test_gradients_of_the_critic_that_are_not_finite_skip_its_step(make_config: Maker) -> None:
    made = worker(ppo_config(make_config))
    before = weights_of(critic_of(made).model)
    handle = value_head(critic_of(made).model).weight.register_hook(lambda grad: grad * float("nan"))
    metrics = made.train_step(make_experiences(1), 1)
    assert metrics["critic/skipped_steps"] == 1.0 and metrics["actor/skipped_steps"] == 0.0
    quarantine = Path(made.config.checkpoint_job_dir) / "quarantine"
    document = json.loads((quarantine / "critic_step_1_1.json").read_text())
    assert document["bad_parameters"] == ["score.weight"] and len(document["rows"]) == 8 and not made.is_healthy
    predicted = load_file(quarantine / document["tensors"])["predicted_values"]
    values = critic_of(made).trained.compute_values(collate(make_experiences(1)))
    assert bool(values.any()) and torch.equal(predicted, values)
    made.train_step(make_experiences(1), 2)
    assert all(torch.equal(before[name], t) for name, t in weights_of(critic_of(made).model).items())
    with pytest.raises(NumericError, match=r"E6001.*lower trainer\.trainer_config\.critic\.optim\.lr"):
        made.train_step(make_experiences(1), 3)
    handle.remove()


def test_values_that_are_not_finite_are_not_saved(make_config: Maker, tmp_path: Path) -> None:
    made = worker(ppo_config(make_config))
    with torch.no_grad():
        value_head(critic_of(made).model).weight[0, 0] = float("inf")
    with pytest.raises(
        NumericError, match=r"E6002.*first score\.weight.*lower trainer\.trainer_config\.critic\.optim\.lr"
    ):
        made.save(tmp_path / "bad", hf=False)
    assert not (tmp_path / "bad").exists()


def test_a_checkpoint_without_the_critic_is_refused(make_config: Maker, tmp_path: Path) -> None:
    without = worker(make_config())
    without.save(tmp_path / "old", hf=False)
    with pytest.raises(CheckpointError, match=r"E7008.*critic"):
        worker(ppo_config(make_config)).load(tmp_path / "old")


def test_out_of_memory_in_the_critic_shows_its_share_and_its_keys(make_config: Maker) -> None:
    made = worker(ppo_config(make_config))

    def fail(grad: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    value_head(critic_of(made).model).weight.register_hook(fail)
    with pytest.raises(OutOfMemoryError) as caught:
        made.train_step(make_experiences(1), 1)
    for part in ("critic parameters", "critic optimizer state", "trainer.trainer_config.critic: ppo_micro_batch_size"):
        assert part in str(caught.value)
