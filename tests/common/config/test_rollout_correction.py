"""Section `algorithm.rollout_correction`: what a file makes of it, and each mistake with its way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from tests.common.config.conftest import MINIMAL
from trinity.catalogue import BUILT_IN
from trinity.common.config import Config, Finding, examine
from trinity.common.config.rollout_correction import PRESETS, Preset
from trinity.utils.correction_options import band, rejection_bounds


def _problems(folder: Path, algorithm: dict[str, Any] | str) -> list[Finding]:
    path = folder / "run.yaml"
    text = algorithm if isinstance(algorithm, str) else yaml.safe_dump({"algorithm": algorithm})
    path.write_text(MINIMAL + text, encoding="utf-8")
    return [p for p in examine(path, (), catalogue=BUILT_IN, cwd=folder)[1] if p.code not in ("W1301", "E1301")]


def _resolved(folder: Path, algorithm: dict[str, Any]) -> Config:
    path = folder / "run.yaml"
    path.write_text(MINIMAL + yaml.safe_dump({"algorithm": algorithm}), encoding="utf-8")
    plan, problems = examine(path, (), catalogue=BUILT_IN, cwd=folder)
    assert not [p.render() for p in problems if p.is_error or p.code == "W1902"]
    return plan.stages[0].config


@pytest.mark.difference("`rollout_correction`")
def test_every_preset_is_a_choice_and_has_bounds_that_hold() -> None:
    assert set(PRESETS) == set(get_args(Preset))
    for values in PRESETS.values():
        assert values.get("rollout_is") is None or band(values["rollout_is_threshold"], "it")[1] >= 2.0
        if "rollout_rs" in values:
            assert rejection_bounds(values["rollout_rs"], values["rollout_rs_threshold"])


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_says_where_the_old_log_probabilities_come_from_and_which_loss(tmp_path: Path, preset: str) -> None:
    algorithm = _resolved(tmp_path, {"rollout_correction": {"preset": preset}}).algorithm
    assert algorithm.rollout_correction is not None
    shown = algorithm.rollout_correction.model_dump()
    assert {name: shown[name] for name in PRESETS[preset]} == PRESETS[preset]
    is_bypass = preset.startswith("bypass")
    assert algorithm.bypass_old_logprobs == shown["bypass_mode"] == is_bypass
    assert algorithm.policy_loss_fn == ("bypass_mode" if is_bypass else "ppo")
    if is_bypass:
        args = algorithm.policy_loss_fn_args
        assert args is not None
        assert {name: args[name] for name in PRESETS[preset] if name != "bypass_mode"} == {
            name: value for name, value in PRESETS[preset].items() if name != "bypass_mode"
        }


def test_a_written_key_goes_before_the_preset(tmp_path: Path) -> None:
    chosen = {"preset": "decoupled_seq_is_rs", "rollout_is_threshold": 3, "rollout_rs": ["token_k2", "seq_max_k3"],
              "rollout_rs_threshold": [0.5, 2]}  # fmt: skip
    section = _resolved(tmp_path, {"rollout_correction": chosen}).algorithm.rollout_correction
    assert section is not None
    assert (section.rollout_is, section.rollout_is_threshold) == ("sequence", "3")
    assert (section.rollout_rs, section.rollout_rs_threshold) == ("token_k2,seq_max_k3", "0.5,2")
    assert section.rollout_is_batch_normalize is False


def test_the_clip_range_of_the_type_is_that_of_the_bypass(tmp_path: Path) -> None:
    dapo = {"algorithm_type": "dapo", "rollout_correction": {"preset": "bypass_ppo_clip"}}
    args = _resolved(tmp_path, dapo).algorithm.policy_loss_fn_args
    assert args is not None and (args["clip_ratio_low"], args["clip_ratio_high"]) == (0.2, 0.28)


@pytest.mark.parametrize("section", [None, {}])
def test_nothing_chosen_changes_nothing(tmp_path: Path, section: Any) -> None:
    algorithm = _resolved(tmp_path, {"rollout_correction": section}).algorithm
    assert algorithm.bypass_old_logprobs and algorithm.policy_loss_fn == "ppo"


TOKEN = {"rollout_is": "token"}
SECTION = "algorithm.rollout_correction"
REFUSED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no number": ({"rollout_correction": {**TOKEN, "rollout_is_threshold": "high"}}, "E1850",
                  f"{SECTION}.rollout_is_threshold", "must be a positive number, or two in rising order"),
    "falling band": ({"rollout_correction": {**TOKEN, "rollout_is_threshold": "2_0.5"}}, "E1850",
                     f"{SECTION}.rollout_is_threshold", "got '2_0.5'"),
    "unknown rejection": ({"rollout_correction": {"rollout_rs": "token_k4", "rollout_rs_threshold": 1}}, "E1850",
                          f"{SECTION}.rollout_rs", "must be made of token_k1"),
    "no bound": ({"rollout_correction": {"rollout_rs": "token_k2"}}, "E1850", f"{SECTION}.rollout_rs_threshold",
                 "needs rollout_rs_threshold, got none"),
    "two bounds for one": ({"rollout_correction": {"rollout_rs": "token_k2", "rollout_rs_threshold": "1,2"}}, "E1850",
                           f"{SECTION}.rollout_rs_threshold", "one for each of 1 options"),
    "band for k3": ({"rollout_correction": {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": "0.5_2"}}, "E1850",
                    f"{SECTION}.rollout_rs_threshold", "for k3 must be one number"),
    "empty band for k1": ({"rollout_correction": {"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5}}, "E1850",
                          f"{SECTION}.rollout_rs_threshold", "for k1 must be at least 1"),
    "old ones of the rollout": ({"rollout_correction": TOKEN, "bypass_old_logprobs": True}, "E1851",
                                "algorithm.bypass_old_logprobs", "is true, but algorithm.rollout_correction compares"),
    "old ones recomputed": ({"rollout_correction": {"preset": "bypass_pg_is"}, "bypass_old_logprobs": False}, "E1851",
                            "algorithm.bypass_old_logprobs", "is false, but the policy loss bypass_mode takes"),
    "bypass loss alone": ({"policy_loss_fn": "bypass_mode", "bypass_old_logprobs": False}, "E1851",
                          "algorithm.bypass_old_logprobs", "is false, but"),
    "loss without weights": ({"rollout_correction": TOKEN, "algorithm_type": "opmd"}, "E1852",
                             f"{SECTION}.rollout_is", "does not fit policy_loss_fn opmd, which takes no weights"),
    "bypass with a written loss": ({"rollout_correction": {"preset": "bypass_ppo_clip"}, "policy_loss_fn": "ppo"},
                                   "E1852", f"{SECTION}.bypass_mode", "because it is a policy loss of its own"),
    "bypass with another loss": ({"rollout_correction": {"preset": "bypass_ppo_clip"}, "algorithm_type": "gspo"},
                                 "E1852", f"{SECTION}.bypass_mode", "does not fit policy_loss_fn gspo"),
    "bypass loss decoupled": ({"rollout_correction": TOKEN, "policy_loss_fn": "bypass_mode"}, "E1851",
                              "algorithm.bypass_old_logprobs", "is false, but the policy loss bypass_mode"),
    "mean of the batch": ({"rollout_correction": {"preset": "bypass_pg_is", "rollout_is_batch_normalize": True}},
                          "E1853", f"{SECTION}.rollout_is_batch_normalize", "know no mean of the batch"),
    "demonstrations": ({"rollout_correction": TOKEN, "algorithm_type": "sft"}, "E1853", SECTION,
                       "does not fit algorithm_type sft, which trains on a dataset"),
    "two places": ({"rollout_correction": {"preset": "bypass_pg_is"}, "policy_loss_fn": "bypass_mode",
                    "policy_loss_fn_args": {"rollout_is": "token"}}, "E1815",
                   "algorithm.policy_loss_fn_args.rollout_is", "is token, but algorithm.rollout_correction.rollout_is"),
    "unknown key": ({"rollout_correction": {"rollout_token_veto_threshold": 1e-4}}, "E1203",
                    f"{SECTION}.rollout_token_veto_threshold", "unknown key"),
    "unknown preset": ({"rollout_correction": {"preset": "decoupled_token"}}, "E1301", f"{SECTION}.preset",
                       "must be one of"),
    "boolean bound": ({"rollout_correction": {**TOKEN, "rollout_is_threshold": True}}, "E1101",
                      f"{SECTION}.rollout_is_threshold", "must be text"),
}  # fmt: skip


@pytest.mark.difference("`bypass_mode` over micro-batches", "`bypass_mode: true`")
@pytest.mark.parametrize(("algorithm", "code", "key", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, algorithm: dict[str, Any], code: str, key: str, message: str
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL + yaml.safe_dump({"algorithm": algorithm}), encoding="utf-8")
    found = examine(path, (), catalogue=BUILT_IN, cwd=tmp_path)[1]
    problem = next((p for p in found if p.code == code and p.key == key), None)
    assert problem is not None and message in problem.message, [p.render() for p in found]
    assert problem.is_error and (problem.suggestion or code == "E1101")


def test_two_numbers_that_yaml_reads_as_one_are_refused(tmp_path: Path) -> None:
    text = "algorithm:\n  rollout_correction:\n    rollout_is: token\n    rollout_is_threshold: 0.5_2\n"
    (problem,) = [p for p in _problems(tmp_path, text) if p.is_error]
    assert problem.code == "E1850" and problem.suggestion == "write '0.5_2' in quotes"
    assert problem.line == 16
    quoted = text.replace("0.5_2", "'0.5_2'")
    assert not [p.render() for p in _problems(tmp_path, quoted)]
    flow = "algorithm: {rollout_correction: {rollout_is: token, rollout_is_threshold: 2.0}}  # not 0.5_2\n"
    assert not [p.render() for p in _problems(tmp_path, flow)]


UNUSED = {
    "threshold": ({"rollout_rs": "token_k2", "rollout_rs_threshold": 1, "rollout_is_threshold": 3.0},
                  "rollout_is_threshold", "without rollout_is"),
    "mean": ({"rollout_rs": "token_k2", "rollout_rs_threshold": 1, "rollout_is_batch_normalize": True},
             "rollout_is_batch_normalize", "without rollout_is"),
    "bound": ({**TOKEN, "rollout_rs_threshold": 1}, "rollout_rs_threshold", "without rollout_rs"),
    "loss type": ({**TOKEN, "loss_type": "reinforce"}, "loss_type", "without bypass_mode"),
    "nothing on": ({"rollout_is_threshold": 3.0}, "rollout_is_threshold", "without rollout_is"),
    "weights of a clip": ({"bypass_mode": True, **TOKEN}, "rollout_is", "it is only measured"),
}  # fmt: skip


@pytest.mark.parametrize(("section", "name", "message"), UNUSED.values(), ids=UNUSED)
def test_an_option_of_a_part_that_is_off_is_named(
    tmp_path: Path, section: dict[str, Any], name: str, message: str
) -> None:
    (problem,) = _problems(tmp_path, {"rollout_correction": section})
    assert (problem.code, problem.key) == ("W1902", f"{SECTION}.{name}") and message in problem.message


@pytest.mark.difference("`loss_agg_mode` with a loss that aggregates in its own way")
@pytest.mark.parametrize("loss", ["rec", "verl_sapo", "geo_mean"])
def test_an_aggregation_that_the_policy_loss_does_not_have_is_named(tmp_path: Path, loss: str) -> None:
    algorithm = {"policy_loss_fn": loss, "loss_agg_mode": "seq-mean-token-mean"}
    (problem,) = _problems(tmp_path, algorithm)
    assert (problem.code, problem.key) == ("W1902", "algorithm.loss_agg_mode")
    assert f"no effect on the policy loss {loss}" in problem.message
    assert not _problems(tmp_path, {"policy_loss_fn": loss})


def test_the_place_that_verl_has_for_it_names_ours(tmp_path: Path) -> None:
    text = "trainer: {trainer_config: {algorithm: {rollout_correction: {rollout_is: token}}}}\n"
    (found,) = _problems(tmp_path, text)
    assert found.code == "E1900" and found.suggestion == "write `algorithm.rollout_correction`"
