"""Properties and errors of advantages, KL and entropy; their numbers are in `tests/oracle`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trinity.algorithm import ADVANTAGE_FN, ENTROPY_LOSS_FN, KL_FN
from trinity.algorithm.statistics import group_mean, group_std, masked_var, masked_whiten
from trinity.common.errors import DataError
from trinity.common.experience import EID, Experience

IN_TRAINER = [name for name in ADVANTAGE_FN if ADVANTAGE_FN.get(name).compute_in_trainer()]
MASK = torch.tensor(
    [[1, 1, 1, 1, 0], [1, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 0, 0]]
).bool()
UID = ["a", "b", "a", "b", "a", "a"]


def _tensors(dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    return {
        "token_level_rewards": draw(6, 5), "values": draw(6, 5), "old_logprob": -draw(6, 5).abs(),
        "teacher_logprobs": -draw(6, 5).abs(), "sum_pi_squared": torch.rand(6, 5, generator=generator, dtype=dtype),
        "rollout_is_weights": draw(6, 5).exp(), "reward_baselines": draw(6), "reward_components": draw(6, 2),
        "entropys": draw(6, 5).abs(), "necs": draw(6, 5),
        "action_mask": MASK, "uid": UID,
    }  # fmt: skip


def _call(name: str, tensors: dict[str, Any], **args: Any) -> tuple[Tensor, Tensor]:
    function = ADVANTAGE_FN.get(name)(**args)
    return function(**{key: tensors[key] for key in function.select_keys})[:2]


@pytest.mark.parametrize("name", IN_TRAINER)
def test_other_tokens_influence_nothing_and_get_nothing(name: str) -> None:
    tensors = _tensors()
    noisy = {
        key: torch.where(MASK, value, torch.nan) if getattr(value, "shape", None) == MASK.shape and key != "action_mask"
        else value for key, value in tensors.items()
    }  # fmt: skip
    for plain, with_noise in zip(_call(name, tensors), _call(name, noisy), strict=True):
        assert torch.equal(plain, with_noise) and bool((plain[~MASK] == 0).all()) and bool((plain[MASK] != 0).any())


@pytest.mark.parametrize("name", IN_TRAINER)
def test_order_of_the_responses_does_not_matter(name: str) -> None:
    tensors, order = _tensors(), [3, 5, 0, 4, 1, 2]
    permuted = {key: [v[i] for i in order] if key == "uid" else v[order] for key, v in tensors.items()}
    for plain, moved in zip(_call(name, tensors), _call(name, permuted), strict=True):
        torch.testing.assert_close(plain[order], moved, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", IN_TRAINER)
def test_float32_gives_float32_of_the_same_value(name: str) -> None:
    exact = _call(name, _tensors())
    tensors = {k: v.float() if getattr(v, "dtype", None) == torch.float64 else v for k, v in _tensors().items()}
    for wide, single in zip(exact, _call(name, tensors), strict=True):
        assert single.dtype == torch.float32
        torch.testing.assert_close(single, wide.float(), rtol=1e-4, atol=1e-5)


def test_names_with_the_same_maths_share_their_code() -> None:
    same = [("ppo", "verl_gae"), ("rloo", "verl_rloo"), ("remax", "verl_remax"), ("gpg", "verl_gpg"),
            ("reinforceplusplus", "verl_reinforce_plus_plus"), ("verl_grpo", "verl_grpo_vectorized")]  # fmt: skip
    assert all(ADVANTAGE_FN.get(one) is ADVANTAGE_FN.get(other) for one, other in same)
    assert KL_FN.get("k1") is KL_FN.get("kl") and KL_FN.get("k2") is KL_FN.get("mse") is KL_FN.get("mse+")
    assert KL_FN.get("k3+") is KL_FN.get("low_var_kl+") is not KL_FN.get("k3")


def test_two_forms_of_an_advantage_agree() -> None:
    rewards = [1.0, 0.0, 0.5, 0.25]
    tensors = {"token_level_rewards": torch.tensor(rewards, dtype=torch.float64).unsqueeze(1),
               "action_mask": torch.ones(4, 1, dtype=torch.bool), "uid": ["t"] * 4}  # fmt: skip
    for group, token, args in [
        ("grpo", "grpo_verl", {}), ("opmd", "opmd_verl", {"opmd_baseline": "logavgexp", "tau": 0.5}),
        ("asymre", "asymre_verl", {"baseline_shift": -0.2}),
    ]:  # fmt: skip
        exps, _ = ADVANTAGE_FN.get(group)(**args).process(_steps([[reward] for reward in rewards]))
        expected = torch.stack([exp.advantages[:1] for exp in exps]).double()
        torch.testing.assert_close(_call(token, tensors, **args)[0], expected, rtol=1e-6, atol=1e-7)


def test_whitening_of_few_tokens_is_finite() -> None:
    values = torch.tensor([[3.0, 7.0]], dtype=torch.float64)
    for mask in ([[True, False]], [[False, False]]):
        counted = torch.tensor(mask)
        assert masked_var(values, counted) == 0 and bool((masked_whiten(values, counted) == 0).all())
    assert group_mean([4.0]) == 0.0 and group_std([4.0]) == 1.0 and group_mean([0.7] * 3) == 0.7


def _steps(rewards: list[list[float | None]], task: int = 0, **info: Any) -> list[Experience]:
    """Return one run a list, one step a reward."""
    return [
        Experience(EID(1, task, run, step), [1, 2, 3, 4], 2, reward=reward, info=dict(info))
        for run, of_run in enumerate(rewards) for step, reward in enumerate(of_run)
    ]  # fmt: skip


def _values(exps: list[Experience]) -> list[float]:
    return [float(exp.advantages[0]) for exp in exps]


def test_gigpo_compares_equal_states_within_a_task_only() -> None:
    # Each task: rewards 1 and 0, mean 0.5, so A_E = A_S = +-0.5 and the sum +-1. Task 1 has 10 times the rewards.
    exps = _steps([[1.0], [0.0]], env_state_hash="s") + _steps([[10.0], [0.0]], task=1, env_state_hash="s")
    kept, metrics = ADVANTAGE_FN.get("gigpo")(epsilon=0.0).process(exps)
    assert _values(kept) == [1.0, -1.0, 10.0, -10.0]
    assert metrics["group_advantages/reward_mean/max"] == 5.0


def test_step_wise_grpo_reads_the_last_step_whatever_the_order() -> None:
    exps = _steps([[None, None, 1.0], [None, 0.0]])
    kept, metrics = ADVANTAGE_FN.get("step_wise_grpo")(epsilon=0.0, enable_step_norm=True).process(exps[::-1])
    # Rewards 1 and 0: +-0.5 / sqrt(0.5), divided by 3 and 2 steps.
    by_run = {exp.eid.run: float(exp.advantages[0]) for exp in kept}
    assert by_run == pytest.approx({0: 0.5**0.5 / 3, 1: -(0.5**0.5) / 2}) and metrics["filtered_count"] == 0.0


@pytest.mark.parametrize(("threshold", "share"), [(None, 0.0), (0.0, 1 / 3)])
def test_step_wise_grpo_says_which_share_of_the_tasks_was_dropped(threshold: float | None, share: float) -> None:
    exps = _steps([[0.0, 1.0], [0.0]]) + _steps([[1.0], [1.0]], task=1) + _steps([[2.0], [0.0]], task=2)
    function = ADVANTAGE_FN.get("step_wise_grpo")(std_threshold=threshold)
    kept, metrics = function.process(exps)
    assert metrics["skipped_group_ratio"] == share and len(kept) == (7 if threshold is None else 5)
    assert function.process([])[1]["skipped_group_ratio"] == 0.0


def test_rec_drops_the_same_surplus_in_every_run() -> None:
    def run() -> list[float]:
        function = ADVANTAGE_FN.get("rec")(drop="balance")
        exps, metrics = function.process(_steps([[1.0], [0.0], [0.0], [0.0], [0.0]]))
        assert metrics["group_advantages/num_dropped/max"] == 3.0 and len(exps) == 5
        return _values(exps)

    assert run() == run() and sorted(run()) == [-0.5, 0.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("grpo", {}),
        ("grpo", {"std_cal_level": "batch"}),
        ("grpo", {"std_threshold": 0.0}),
        ("opmd", {"opmd_baseline": "logavgexp"}),
        ("asymre", {}),
        ("rec", {"std_normalize": True}),
        ("rec", {"drop": "balance"}),
        ("reinforce", {}),
    ],
)
def test_trajectories_of_a_rollout_with_one_reward_count_once(name: str, args: dict[str, Any]) -> None:
    rewards, counts = [1.0, 0.1, 0.1, 0.25], [3, 1, 2, 1]
    alone = ADVANTAGE_FN.get(name)(**args).process(_steps([[reward] for reward in rewards]))
    several = _steps([[reward] * count for reward, count in zip(rewards, counts, strict=True)])
    for exp in several:
        if counts[exp.eid.run] > 1:
            exp.info["trajectory"] = exp.eid.step
    kept, metrics = ADVANTAGE_FN.get(name)(**args).process(several)
    expected = [value for value, count in zip(_values(alone[0]), counts, strict=True) for _ in range(count)]
    assert _values(kept) == expected and metrics == alone[1]


def test_trajectories_with_rewards_of_their_own_count_each_and_one_rollout_is_no_group() -> None:
    def advantages(is_linked: bool, *runs: list[float | None], **args: Any) -> list[float]:
        exps = _steps([*runs])
        for exp in exps:
            exp.info |= {"trajectory": exp.eid.step} if is_linked else {}
        return _values(ADVANTAGE_FN.get("grpo")(**args).process(exps)[0])

    assert advantages(True, [1.0, 0.0], [0.5]) == advantages(False, [1.0, 0.0], [0.5])
    assert advantages(True, [0.5, 0.5]) == pytest.approx([0.5, 0.5], rel=1e-5), "as a group of one"
    assert advantages(True, [0.5, 0.5], std_threshold=-1.0) == []


def test_invalid_arguments_are_refused() -> None:
    for name, args, message in [
        ("step_wise_grpo", {"std_cal_level": "run"}, "std_cal_level must be group or batch, got 'run'"),
        ("gigpo", {"fnorm": "mean"}, "fnorm must be none or std, got 'mean'"),
        ("rec", {"drop": "all"}, "drop must be null or balance, got 'all'"),
        ("opmd", {"opmd_baseline": "max"}, "opmd_baseline must be one of mean, logavgexp, got 'max'"),
        ("opmd_verl", {"tau": 0.0}, "tau must be > 0, got 0.0"),
        ("jsd", {"lambda_coef": 1.0}, r"lambda_coef must be in \[0, 1\), got 1.0"),
        ("jsd", {"estimator": "mean"}, "estimator must be value or gradient, got 'mean'"),
        ("jsd", {"chunk_size": 0}, "temperature must be > 0 and chunk_size >= 1, got 1.0 and 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            ADVANTAGE_FN.get(name)(**args)


def test_data_that_do_not_fit_are_named() -> None:
    tensors = _tensors()
    for name in ("rloo", "opo", "gpg", "gdpo", "optimal_token_baseline"):
        with pytest.raises(DataError, match=r"E4605.*uid must have one entry a response \(6\), got 2"):
            _call(name, tensors | {"uid": ["a", "b"]})
    with pytest.raises(DataError, match="E4607.*two or more rollouts of each task, got a task with one"):
        _call("grpo_passk", tensors | {"uid": list("aabbbc")})
    with pytest.raises(DataError, match=r"E4608.*one weight a reward component \(2\), got 3"):
        _call("gdpo", tensors, gdpo_reward_weights=[1.0, 1.0, 1.0])
    for name in ("step_wise_grpo", "gigpo", "opmd", "rec"):
        with pytest.raises(DataError, match="E4601.*1/0/0/0/: a group advantage needs a reward"):
            ADVANTAGE_FN.get(name)().process(_steps([[None], [1.0]]))
    for reward in (True, float("nan")):
        with pytest.raises(DataError, match=rf"E4606.*info\['step_reward'\] must be a finite number, got {reward}"):
            ADVANTAGE_FN.get("gigpo")().process(_steps([[1.0]], step_reward=reward))


def test_token_advantage_names_the_tensors_it_asks_for() -> None:
    assert ADVANTAGE_FN.get("ppo")().select_keys == {"token_level_rewards", "values", "action_mask"}
    assert ADVANTAGE_FN.get("jsd").default_args() == dict(ADVANTAGE_FN.contents["jsd"].args)
    assert ADVANTAGE_FN.contents["verl_gae"].needs == {"token_level_rewards", "values"}


@pytest.mark.difference("`jsd`")
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 0.9])
def test_the_policy_gradient_of_jsd_is_that_of_the_divergence(beta: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    teacher, policy = torch.randn(6, dtype=torch.float64).log_softmax(-1), logits.log_softmax(-1)
    # With beta 0 the divergence is the reverse one, as if the teacher were the mixture.
    mixture = (beta * teacher.exp() + (1 - beta) * policy.exp()).log() if beta else teacher
    of_teacher, of_policy = ((log.exp() * (log - mixture)).sum() for log in (teacher, policy))
    (exact,) = torch.autograd.grad(beta * of_teacher + (1 - beta) * of_policy, logits, retain_graph=True)
    # The expectation over sampled tokens of -A times the gradient of their log-probability: a row each token.
    tensors = {"old_logprob": policy.detach()[:, None], "teacher_logprobs": teacher[:, None]}
    mask = torch.ones(6, 1, dtype=torch.bool)

    def expected(estimator: str) -> torch.Tensor:
        function = ADVANTAGE_FN.get("jsd")(lambda_coef=beta, estimator=estimator)
        advantages = function(**tensors, action_mask=mask)[0][:, 0]
        return torch.autograd.grad((policy.exp().detach() * -advantages * policy).sum(), logits, retain_graph=True)[0]

    assert torch.allclose(expected("gradient"), exact, rtol=0, atol=1e-12)
    assert torch.allclose(expected("value"), exact, rtol=0, atol=1e-3) == (beta == 0.0)


def test_kl_penalty_lowers_the_rewards_and_moves_the_coefficient() -> None:
    scores = torch.tensor([[0.0, 1.0], [2.0, torch.nan]], dtype=torch.float64)
    old = torch.tensor([[-1.0, -1.0], [-1.0, torch.nan]], dtype=torch.float64)
    ref = torch.tensor([[-1.5, -2.0], [-1.0, torch.nan]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False]])
    function = KL_FN.get("k1")(adaptive=True, kl_coef=0.1, target_kl=0.1, horizon=10)
    rewards, metrics = function.apply_kl_penalty_to_reward(scores, old_logprob=old, ref_logprob=ref, action_mask=mask)
    # d = [[0.5, 1], [0]]: rewards 0 - 0.05, 1 - 0.1, 2 - 0; row means 0.75 and 0, mean 0.375, clipped to +0.2.
    torch.testing.assert_close(rewards, torch.tensor([[-0.05, 0.9], [2.0, 0.0]], dtype=torch.float64))
    assert metrics == {"kl": pytest.approx(0.375), "kl_coef": 0.1}
    assert function.kl_coef == pytest.approx(0.1 * (1 + 0.2 * 2 / 10))
    resumed = KL_FN.get("k1")(adaptive=True, kl_coef=0.1, target_kl=0.1, horizon=10)
    resumed.load_state_dict(function.state_dict())
    fixed = KL_FN.get("k1")(kl_coef=0.3)
    fixed.load_state_dict(function.state_dict())
    assert resumed.kl_coef == function.kl_coef and fixed.kl_coef == 0.3


@pytest.mark.parametrize("name", [name for name in KL_FN if name not in ("none", "full")])
def test_masked_log_ratios_have_no_gradient_however_large(name: str) -> None:
    logprob = torch.tensor([[-1.0, -1000.0]], dtype=torch.float64, requires_grad=True)
    ref, mask = torch.tensor([[-1.2, 1000.0]], dtype=torch.float64), torch.tensor([[True, False]])
    loss, _ = KL_FN.get(name)(kl_coef=1.0).calculate_kl_loss(logprob, ref, mask, old_logprob=ref)
    loss.backward()
    assert bool(loss.isfinite()) and logprob.grad[0, 1] == 0 and logprob.grad[0, 0] != 0


def test_full_divergence_of_distributions_with_impossible_words() -> None:
    # p = (1/2, 1/2, 0), q = (1/4, 1/2, 1/4): 1/2 ln 2.
    p = torch.tensor([[[0.5, 0.5, 0.0]]], dtype=torch.float64).log()
    q = torch.tensor([[[0.25, 0.5, 0.25]]], dtype=torch.float64).log()
    mask = torch.tensor([[True]])
    loss, metrics = KL_FN.get("full")(kl_coef=2.0).calculate_kl_loss(p, q, mask)
    assert loss.item() == pytest.approx(0.6931471805599453) and metrics["kl_loss"] == pytest.approx(0.34657359)


def test_mix_entropy_leaves_expert_rows_without_gradient() -> None:
    entropy = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 2, dtype=torch.bool)
    mix = ENTROPY_LOSS_FN.get("mix")(entropy_coef=0.5)
    loss, metrics = mix(entropy, mask, expert_mask=torch.tensor([False, True]))
    loss.backward()
    assert loss.item() == 0.75 and metrics == {"entropy_loss": 1.5}
    assert entropy.grad.tolist() == [[0.25, 0.25], [0.0, 0.0]]
    assert mix(entropy, mask, expert_mask=torch.tensor([True, True]))[0].item() == 0.0
