"""`trinity algorithms` and `trinity config show --effective-loss`: all from tables and file."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from tests.common.config.conftest import MINIMAL
from tests.trees import merged
from tests.yardstick import import_seconds
from trinity.algorithm import ADVANTAGE_FN, ALGORITHM_CONTENTS, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN
from trinity.catalogue import BUILT_IN
from trinity.cli.app import app
from trinity.common.config import examine
from trinity.common.errors import ExitCode
from trinity.explain.algorithms import facts, page
from trinity.explain.functions import sources
from trinity.trainer.verl.settings import actor_settings, loss_of
from trinity.utils.formula import arguments, in_numbers, in_symbols, number
from trinity.utils.registry import Entry, Registry

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 0.5
REGISTRIES = (ADVANTAGE_FN, POLICY_LOSS_FN, KL_FN, ENTROPY_LOSS_FN)
ENTRIES = [(registry, name) for registry in REGISTRIES for name in registry]
# Arguments that a formula does not show: where data lie, how the batch is split, and what every KL term has.
NOT_IN_FORMULAS = {
    "step_reward_key", "env_state_hash_key", "chunk_size", "loss_agg_mode", "sft_loss_agg_mode", "grpo_loss_agg_mode",
    "use_dynamic_bsz", "ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu", "ngpus_trainer", "kl_coef",
    "train_batch_size_usual", "train_batch_size_expert",
    "rollout_is_batch_normalize", "entropy_coef", "adaptive", "target_kl", "horizon",
}  # fmt: skip
DATASET = "buffer.trainer_input.experience_buffer.path=data.jsonl"


def invoke(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "250", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, list(words))


def losses(tmp_path: Path, *settings: str) -> dict[str, Any]:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    words = [word for setting in settings for word in ("--set", setting)]
    result = invoke("config", "show", "--config", str(tmp_path / "run.yaml"), "--effective-loss", "--json", *words)
    assert result.exit_code == ExitCode.DONE, result.output
    (found,) = json.loads(result.output)
    return dict(found)


@pytest.mark.parametrize(("registry", "name"), ENTRIES, ids=[f"{r.name}:{n}" for r, n in ENTRIES])
def test_every_entry_has_a_formula_that_reads_its_arguments(registry: Registry, name: str) -> None:
    entry = registry.contents[name]
    read = arguments(entry.formula)
    assert entry.formula and read <= set(entry.args)
    assert set(entry.args) - read <= NOT_IN_FORMULAS, (
        "an argument changes the numbers, and the formula does not say how"
    )
    assert not any(
        "{" in line or "?" in line for line in [*in_symbols(entry.formula), *in_numbers(entry.formula, entry.args)]
    )


@pytest.mark.parametrize("name", ALGORITHM_CONTENTS)
def test_the_page_shows_formulas_components_defaults_sources_and_yaml(name: str) -> None:
    text, found = page(name), facts(name)
    for role, part in found["functions"].items():
        if part["name"] == "none":
            continue
        assert f"{role} {part['name']}\n" in text
        assert all(line.removeprefix("= ") in text for line in part["formula"])
        assert all(f"    {key}: " in found["yaml"] for key in part["args"])
    assert all(source in text for source in found["sources"])
    assert found["yaml"] in text and found["description"] in text


def test_gspo() -> None:
    lines = [line.strip() for line in invoke("algorithms", "gspo").output.splitlines()]
    assert lines[0] == "gspo: ratios of whole sequences (arXiv:2507.18071v2, eq. 5)"
    assert "loss = agg[P] + kl_coef agg[K] - agg[E]" in lines
    assert "P = max(-A s, -A clip(s, 1 - clip_range_low, 1 + clip_range_high))" in lines
    assert "clip_range_low, where it is null: clip_range, else 0.0003" in lines
    assert "A = (R - mean(R)) / (std(R) + epsilon)" in lines
    assert "K = d^2 / 2" in lines
    assert (
        "defaults: clip_range null, clip_range_low null, clip_range_high null, loss_agg_mode seq-mean-token-mean"
        in lines
    )
    assert lines[lines.index("Sources") + 1 : lines.index("YAML, every default written out") - 1] == [
        "arXiv:2507.18071v2, eq. 5",
        "arXiv:2402.03300v3, section 4.1.2",
        "arXiv:2507.18071v2, eq. 13 and 14",
        'Schulman, "Approximating KL Divergence" (2020)',
    ]
    assert {"algorithm_type: gspo", "repeat_times: 8", "kl_coef: 0.001", "epsilon: 1.0e-06"} <= set(lines)


def test_the_defaults_of_a_type_are_merged_over_those_of_its_functions() -> None:
    assert facts("dapo")["functions"]["policy_loss_fn"]["args"] == {
        "clip_range": 0.2,
        "clip_range_low": 0.2,
        "clip_range_high": 0.28,
        "clip_ratio_c": 3.0,
        "loss_agg_mode": "token-mean",
        "enable_sequence_masking": False,
        "delta_sequence_masking": 0.1,
        "fallback_to_policy_gradient": False,
    }
    assert "Not used: KL term K, KL penalty in the reward" in invoke("algorithms", "dapo").output


def test_dpo_and_sft() -> None:
    dpo, sft = page("dpo"), page("sft")
    assert "arXiv:2305.18290, eq. 7" in dpo and "P = mean over the pairs of l(x)" in dpo
    assert "with label_smoothing = 0: l(x) = -ln sigmoid(x)" in dpo
    assert "loss = agg[P]\n" in sft and "P = -logprob\n" in sft and "mode: train\n" in sft
    assert "advantage_fn:" not in sft and "none beside the formula" in sft


@pytest.mark.parametrize(
    ("doc", "works"),
    [
        ("whitened (arXiv:2501.03262v9, eq. 4 and 5)", ["arXiv:2501.03262v9, eq. 4 and 5"]),
        ("the reward (arXiv:2503.20783v2, section 3.2)", ["arXiv:2503.20783v2, section 3.2"]),
        ("a (arXiv:1707.06347v2, eq. 7) b (arXiv:1912.09729, eq. 3, 5, 7 and 8)",
         ["arXiv:1707.06347v2, eq. 7", "arXiv:1912.09729, eq. 3, 5, 7 and 8"]),
        ("c (arXiv:2505.17826; after arXiv:2501.12599v4, section 2.3.2, eq. 3), d",
         ["arXiv:2505.17826", "arXiv:2501.12599v4, section 2.3.2, eq. 3"]),
        ("negative log-likelihood", []),
    ],
)  # fmt: skip
def test_sources_are_read_with_version_and_place(doc: str, works: list[str]) -> None:
    assert sources(Entry("", doc=doc)) == works


def test_a_paper_without_a_place_is_left_out_where_another_names_one() -> None:
    assert "arXiv:2306.13649" not in facts("jsd")["sources"] and "arXiv:2306.13649v3, eq. 1" in facts("jsd")["sources"]
    assert facts("opmd")["sources"][:2] == ["arXiv:2505.17826", "arXiv:2501.12599v4, eq. 3"]
    assert "arXiv:2108.05828" in facts("sppo")["sources"]


def test_the_table_lists_all_types() -> None:
    first, *rows = invoke("algorithms").output.splitlines()
    assert first.split() == ["name", "advantage", "loss", "KL", "entropy", "repeat_times", "description"]
    assert [row.split()[0] for row in rows] == list(ALGORITHM_CONTENTS)
    grpo = next(row for row in rows if row.startswith("grpo "))
    assert grpo.split()[:6] == ["grpo", "grpo", "ppo", "k2", "default", "8"]
    assert grpo.endswith("group relative policy optimisation (arXiv:2402.03300v3, eq. 3)")


def test_json() -> None:
    found = json.loads(invoke("algorithms", "--json").output)
    assert [row["name"] for row in found] == list(ALGORITHM_CONTENTS)
    one = json.loads(invoke("algorithms", "rloo", "--json").output)
    assert one == found[list(ALGORITHM_CONTENTS).index("rloo")]
    assert one["functions"]["advantage_fn"]["formula"][0] == "R - mean(R of the other rollouts)"
    assert one["repeat_times"] == 8 and one["mode"] == "both" and one["sources"][0] == "arXiv:2402.14740v2, section 2.3"


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_an_unknown_name_gets_the_nearest(flags: tuple[str, ...]) -> None:
    result = invoke("algorithms", "gsop", *flags)
    assert result.exit_code == ExitCode.USAGE
    assert result.output.startswith("error[E1301]: unknown algorithm_type `gsop`; known: sft, ")
    assert result.output.endswith("did you mean `gspo`?\n")
    assert "`trinity algorithms` lists all" in invoke("algorithms", "zzzzzzzz").output


@pytest.mark.parametrize("name", list(ALGORITHM_CONTENTS))
def test_the_yaml_of_a_type_selects_exactly_its_defaults(tmp_path: Path, name: str) -> None:
    found = facts(name)
    written, plain = tmp_path / "written.yaml", tmp_path / "plain.yaml"
    also = "\n".join(ALGORITHM_CONTENTS[name].also_needed)
    short = f"mode: {found['mode']}\nalgorithm:\n  algorithm_type: {name}\n{also}\n"
    for path, text in ((written, found["yaml"]), (plain, short)):
        path.write_text(yaml.safe_dump(merged(yaml.safe_load(MINIMAL), yaml.safe_load(text))))
    overrides = (DATASET, "buffer.train_batch_size=4") if found["mode"] == "train" else ()
    plans = [examine(path, overrides, catalogue=BUILT_IN, schema_only=True) for path in (written, plain)]
    assert [problem.render() for _, problems in plans for problem in problems if problem.is_error] == []
    full, plain_one = (plan.stages[0].config.algorithm.model_dump() for plan, _ in plans)
    assert full == plain_one


def test_the_effective_loss_of_grpo(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    result = invoke("config", "show", "--config", str(tmp_path / "run.yaml"), "--effective-loss")
    assert result.output.splitlines() == [
        "algorithm grpo",
        "loss = P + 0.001 K",
        "P = mean over the mini-batch's tokens of max(-A r, -A clip(r, 1 - 0.2, 1 + 0.2))",
        "    where A < 0 at most -A 3 (dual clip)",
        "    r = exp(logprob - old_logprob)",
        "K = mean over the mini-batch's tokens of k2(logprob, ref_logprob) = d^2 / 2",
        "    d = logprob - ref_logprob",
        "A = (R - mean(R)) / (std(R) + 1e-6), over 8 rollouts of a task",
        "training step:",
        "    32 experiences in mini-batches of 32, 1 epoch: 1 optimizer step",
        "    logprob, ref_logprob and entropy at temperature 1",
        "    a mini-batch is computed in parts of at most 256 tokens, each with its share: means and sums are of the "
        "whole mini-batch",
        "    the gradient is clipped to a norm of 1; AdamW at a learning rate of 1e-6 (constant), weight decay 0.01",
        "    old_logprob is that of the rollout (`bypass_old_logprobs: true`)",
        "drops out:",
        "    entropy term default: `entropy_loss_fn_args.entropy_coef` is 0, it is only measured",
        "    KL penalty in the reward: `kl_penalty_fn: none`",
        "models:",
        "    policy: yes, trained",
        "    reference: yes, the KL term k2 reads it",
        "    critic: no, nothing reads its values",
    ]


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("algorithm.policy_loss_fn_args.clip_range_high=0.28", "clip(r, 1 - 0.2, 1 + 0.28))"),
        ("algorithm.policy_loss_fn_args.clip_range=0.3", "clip(r, 1 - 0.3, 1 + 0.3))"),
        ("algorithm.policy_loss_fn_args.clip_ratio_c=5", "where A < 0 at most -A 5 (dual clip)"),
        ("algorithm.policy_loss_fn_args.enable_sequence_masking=true", "old_logprob - logprob is above 0.1"),
        ("algorithm.loss_agg_mode=seq-mean-token-mean", "mean over the mini-batch's responses of their means"),
        ("algorithm.loss_agg_mode=seq-mean-token-sum-norm", "sum over the mini-batch's tokens, divided by 64, of"),
        ("algorithm.kl_loss_fn=k3", "k3(logprob, ref_logprob) = exp(-d) - 1 + d"),
        ("algorithm.kl_loss_fn_args.kl_coef=0.01", "P + 0.01 K"),
        ("algorithm.kl_loss_fn_args.kl_coef=0", "reference: no, nothing reads it"),
        ("algorithm.kl_loss_fn=none", "KL term: `kl_loss_fn: none`"),
        ("algorithm.entropy_loss_fn_args.entropy_coef=0.01", "P + 0.001 K - 0.01 H"),
        ("algorithm.advantage_fn_args.std_threshold=0.0", "tasks with std <= 0 or one rollout are dropped"),
        ("algorithm.repeat_times=4", "over 4 rollouts of a task"),
        ("algorithm.rollout_correction.preset=decoupled_token_is", "multiplied by rho, at most 2.0"),
        ("algorithm.rollout_correction.preset=decoupled_k3_rs", "seq_mean_k3 rejects (bounds 0.01) have a loss of 0"),
        ("algorithm.rollout_correction.preset=bypass_pg_is", "importance weights w by sequence, bound 2.0"),
        ("algorithm.bypass_old_logprobs=false", "every ratio is 1 there: clipping does nothing"),
        ("model.temperature=0.5", "entropy at temperature 0.5"),
        ("trainer.trainer_config.actor_rollout_ref.actor.ppo_epochs=2", "2 epochs: 2 optimizer steps"),
        ("trainer.use_dynamic_bsz=false", "in parts of at most 4 experiences, each with its share"),
        ("trainer.max_token_len_per_gpu=512", "in parts of at most 512 tokens"),
        ("trainer.grad_clip=0.5", "clipped to a norm of 0.5"),
        ("algorithm.optimizer.clip_grad=0", "the gradient is not clipped"),
        ("algorithm.optimizer.lr=3.0e-5", "AdamW at a learning rate of 3e-5 (constant)"),
        ("algorithm.optimizer.lr_scheduler_type=cosine", "(cosine)"),
    ],
)
def test_a_setting_changes_the_effective_loss(tmp_path: Path, setting: str, line: str) -> None:
    before, after = json.dumps(losses(tmp_path)), json.dumps(losses(tmp_path, setting))
    assert line not in before and line in after


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("algorithm.kl_loss_fn_args.kl_coef=0",),
        ("algorithm.kl_loss_fn=none", "algorithm.entropy_loss_fn=none"),
        ("model.temperature=0.7",),
        ("mode=train", "algorithm.algorithm_type=sft", "model.temperature=0.7", DATASET, "buffer.train_batch_size=4"),
    ],
)
def test_what_is_said_of_the_loss_is_what_the_trainer_builds(tmp_path: Path, settings: tuple[str, ...]) -> None:
    found = losses(tmp_path, *settings)
    plan, _ = examine(tmp_path / "run.yaml", settings, catalogue=BUILT_IN, schema_only=True)
    loss = loss_of(plan.stages[0].config)
    assert ("K" in found["loss"]) is loss.with_kl
    assert found["batch"][1].endswith(f"at temperature {number(actor_settings(plan.stages[0].config).temperature)}")
    assert any(line.startswith("reference: yes") for line in found["models"]) is loss.needs_reference
    assert any("the entropy is not computed" in line for line in found["dropped"]) is not loss.with_entropy


@pytest.mark.parametrize("name", list(ALGORITHM_CONTENTS))
def test_the_effective_loss_of_every_type_is_the_one_that_is_built(tmp_path: Path, name: str) -> None:
    settings = [f"algorithm.algorithm_type={name}"]
    if ALGORITHM_CONTENTS[name].args["mode"] == "train":
        settings += ["mode=train", DATASET, "buffer.train_batch_size=4"]
    if name == "raft":
        settings.append("data_processor.experience_pipeline.operators=[{name: reward_filter}]")
    if name in ("mix", "mix_chord"):
        settings.append("buffer.trainer_input.auxiliary_buffers.sft_dataset.path=d.jsonl")
    if name in ("jsd", "on_policy_distill"):
        settings.append("explorer.auxiliary_models=[{model_path: m}]")
    found = losses(tmp_path, *settings)
    plan, _ = examine(tmp_path / "run.yaml", tuple(settings), catalogue=BUILT_IN, schema_only=True)
    config = plan.stages[0].config
    loss, split = loss_of(config), actor_settings(config)
    letters = "P" + "K" * loss.with_kl + "H" * (loss.entropy.entropy_coef != 0)
    assert "".join(letter for letter in found["loss"] if letter.isupper()) == letters
    assert any(f"at most {split.max_tokens} tokens" in line for line in found["batch"])
    assert any(f"clipped to a norm of {number(float(split.grad_clip or 0))}" in line for line in found["batch"])
    reads_advantages = "advantages" in loss.required
    assert any(term[0].startswith("A = ") for term in found["terms"]) is reads_advantages
    if "seq-mean-token-sum-norm" in (loss.policy_loss.loss_agg_mode, loss.loss_agg_mode):
        assert f"divided by {number(split.normalizer)}" in found["terms"][0][0]


def test_a_penalty_in_the_reward_loads_the_reference(tmp_path: Path) -> None:
    plain = ("algorithm.algorithm_type=rloo", "algorithm.kl_loss_fn=none")
    found = losses(tmp_path, *plain, "algorithm.kl_penalty_fn=k1", "algorithm.kl_penalty_fn_args.kl_coef=0.05")
    assert found["terms"][-1][:2] == ["reward of a token = score - 0.05 k1, k1 = d", "d = logprob - ref_logprob"]
    assert "reference: yes, the KL penalty k1 reads it" in found["models"]
    assert "reference: no, nothing reads it" in losses(tmp_path, *plain)["models"]


def test_the_effective_loss_of_ppo(tmp_path: Path) -> None:
    critic = "trainer.trainer_config.critic"
    found = losses(
        tmp_path, "algorithm.algorithm_type=ppo", "algorithm.advantage_fn_args.lam=0.95", f"{critic}.ppo_epochs=2",
        f"{critic}.cliprange_value=0.3", f"{critic}.optim.lr=2e-5", "trainer.critic_warmup=4",
    )  # fmt: skip
    assert found["terms"][-2:] == [
        [
            "A = whiten(sum over k of (1 0.95)^k delta(t + k))",
            "delta(t) = reward(t) + 1 value(t + 1) - value(t)",
            *found["terms"][-2][2:],
        ],
        [
            "value loss of the critic = mean over the mini-batch's tokens of "
            "max((v - G)^2, (clip(v, value - 0.3, value + 0.3) - G)^2) / 2",
            "v: prediction, value: prediction before the update, G = A before whitening + value",
        ],
    ]
    steps = "critic: 4 experiences, 2 optimizer steps at lr 2e-5; the first 4 training steps train it alone"
    assert found["batch"][-1] == steps
    assert "critic: yes, the advantage reads its values" in found["models"]


def test_the_page_of_ppo_shows_the_value_loss() -> None:
    text = page("ppo")
    assert "(clip(v, value - cliprange_value, value + cliprange_value) - G)^2) / 2]" in text
    assert "defaults: cliprange_value 0.5, optim.lr 1e-5" in text and "arXiv:2005.12729" in text
    assert facts("ppo")["critic"] and not facts("grpo")["critic"] and "value loss" not in page("grpo")


def test_a_file_with_errors_has_no_effective_loss(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    words = ("--config", str(tmp_path / "run.yaml"), "--effective-loss", "--set", "algorithm.repeat_times=1")
    result = invoke("config", "show", *words)
    assert result.exit_code == ExitCode.USAGE
    assert "E1801" in result.output and "no effective loss" in result.output and "loss =" not in result.output


def test_every_stage_has_its_loss(tmp_path: Path) -> None:
    stages = "stages:\n- {stage_name: a}\n- {stage_name: b, algorithm: {kl_loss_fn: none}}\n"
    (tmp_path / "run.yaml").write_text(MINIMAL + stages)
    text = invoke("config", "show", "--config", str(tmp_path / "run.yaml"), "--effective-loss").output
    assert "stage a, algorithm grpo\nloss = P + 0.001 K\n" in text
    assert "stage b, algorithm grpo\nloss = P\n" in text


@pytest.mark.parametrize(
    "words", [("algorithms",), ("algorithms", "gspo"), ("config", "show", "--effective-loss", "--config", "run.yaml")]
)
def test_no_torch_and_little_time(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        f"sys.argv = ['trinity', *{words!r}]\n"
        "from trinity.cli import main; main()"
    )
    seconds = []
    for _ in range(2):
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)
        assert result.stderr.strip() == "False" and "loss" in result.stdout
    # Reading and checking a file takes as long as `config show` does without the option.
    if words[0] == "algorithms":
        assert min(seconds) <= max(SECONDS, 5 * import_seconds()), seconds


def test_the_effective_loss_of_a_mixture_says_how_many_rows_are_the_experts(tmp_path: Path) -> None:
    settings = ("algorithm.algorithm_type=mix_chord", "algorithm.sample_strategy_args.expert_data_ratio=0.2",
                "buffer.trainer_input.auxiliary_buffers.sft_dataset.path=d.jsonl",
                "algorithm.policy_loss_fn_args.mu_peak=0.4")  # fmt: skip
    found = losses(tmp_path, *settings)
    assert found["batch"][:2] == [
        "40 experiences in mini-batches of 40, 1 epoch: 1 optimizer step",
        "of each batch, 8 are demonstrations of sft_dataset",
    ]
    assert any("mu rises from 0 to 0.4" in line for line in found["terms"][0])
