"""Typing errors in keys of veRL, also in sections that are taken as a whole: the key that was meant is named."""

from __future__ import annotations

import random

import pytest

from tests.common.config.test_dialects import SMALL, codes, planned, put
from tests.common.config.test_properties import _edit
from trinity.common.config.dialects import open_source
from trinity.common.config.dialects.algorithms import LOSSES
from trinity.common.config.dialects.table import by_name, inner_keys, row_of


def _typos(draw: random.Random) -> dict[str, str]:
    """Return a typing error for every key, also those in sections, and the key."""
    typos: dict[str, str] = {}
    names = {name for name in (*by_name(), *inner_keys()) if "*" not in name}
    for name in sorted(names):
        above, _, word = name.rpartition(".")
        tried = ((f"{above}." if above else "") + _edit(word, draw) for _ in range(50))
        typos[next(
            typo for typo in tried if typo not in names | {*typos, f"{above}."}
            and (name in inner_keys() or row_of(typo) != row_of(name))
        )] = name  # fmt: skip
    return typos


def test_the_suggestion_for_a_typing_error_in_any_key_is_right() -> None:
    """Keys of one letter are among them."""
    typos = _typos(random.Random(7))
    assert len(typos) == len(inner_keys()) + sum("*" not in name for name in by_name()) and len(inner_keys()) > 40
    found = open_source(SMALL, [f"+{typo}=1" for typo in typos]).problems
    hints = {problem.key: problem.suggestion or "" for problem in found if problem.code == "E1941"}
    wrong = [
        (typo, hints.get(typo))
        for typo, name in typos.items()
        if not any(f"`{right}`" in hints.get(typo, "") for right in (name, name.rpartition(".")[2]))
    ]
    assert len(wrong) <= 0.05 * len(typos), wrong


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("algorithm.rollout_correction.rollout_iss", "rollout_is"),
        ("algorithm.filter_groups.enabel", "enable"),
        ("actor_rollout_ref.rollout.multi_turn.enabel", "enable"),
        ("reward_model.reward_kwargs.overlong_buffer_cfg.penalty_facter", "penalty_factor"),
        ("reward.reward_kwargs.overlong_buffer_cfg.enabel", "enable"),
        ("actor_rollout_ref.model.override_config.atn_implementation", "attn_implementation"),
        ("actor_rollout_ref.actor.policy_loss.los_mode", "loss_mode"),
    ],
)
def test_a_typing_error_in_a_section_names_the_key_that_was_meant(typo: str, meant: str) -> None:
    section, _, word = typo.rpartition(".")
    for text in (f"+{typo}=gspo", f"+{section}={{{word}:gspo}}"):
        found = open_source({"defaults": ["ppo_trainer"], **SMALL}, [text]).problems
        told = [(p.code, p.key, p.suggestion) for p in found if p.code != "W1942"]
        assert told == [("E1941", typo, f"did you mean `{meant}`?")], found
    two = ["+algorithm.rollout_correction={rollout_is:token}", "+algorithm.rollout_correction.rollout_is_treshold=2"]
    assert [p.key for p in planned(SMALL, *two)[1] if p.is_error] == [
        "algorithm.rollout_correction.rollout_is_treshold"
    ]


def test_other_keys_of_a_model_and_of_a_policy_loss_are_known() -> None:
    place = "trainer.trainer_config.actor_rollout_ref.model.override_config"
    assert put(open_source(SMALL, ["+actor_rollout_ref.model.override_config.hidden_act=silu"]), place) == {
        "hidden_act": "silu"
    }
    section = "actor_rollout_ref.actor.policy_loss"
    read = {name for names in LOSSES.values() for name in names if name.startswith("policy_loss.")}
    assert {f"{section}.loss_mode", *(f"actor_rollout_ref.actor.{name}" for name in read)} == {
        name for name, row in inner_keys().items() if row.name == section
    }
    wrong = open_source(SMALL, [f"+{section}.loss_mode=gsop"]).problems
    assert codes(wrong) == {section: "E1301"} and f"`{section}.loss_mode` must be" in wrong[0].message
    old = ["+algorithm.rollout_correction.rollout_token_veto_threshold=1e-4"]
    assert codes(open_source(SMALL, old).problems) == {"algorithm.rollout_correction": "E1940"}
