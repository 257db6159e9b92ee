"""The table of model families: one entry a family, and a reason for whatever is not served."""

from __future__ import annotations

from trinity.common.models.families import OWN, REFUSED, REFUSED_ON_CPU, families, vllm_problem

WITH_REASON = (REFUSED, REFUSED_ON_CPU, "not started")


def test_what_is_not_served_has_a_reason_and_nothing_else_has() -> None:
    for name, family in families().items():
        said = {"trainer": family.trainer, "engine": family.engine, "vllm": family.vllm}
        assert family.reasons.keys() == {who for who, word in said.items() if word in WITH_REASON}, name
        assert all(family.reasons.values()), name
        assert family.engine == REFUSED or not family.is_encoder, name


def test_both_decoders_of_our_own_are_for_the_same_families() -> None:
    assert {name for name, family in families().items() if family.trainer == "own"} == set(OWN)
    assert {name for name, family in families().items() if family.engine == "own"} == set(OWN)


def test_what_was_measured_on_a_cpu_alone_is_refused_there_alone() -> None:
    assert vllm_problem("bloom") is None and "(on a CPU)" in str(vllm_problem("bloom", is_cpu=True))
    for is_cpu in (False, True):
        assert "(on a CPU)" not in str(vllm_problem("jetmoe", is_cpu=is_cpu))
        assert vllm_problem("llama", is_cpu=is_cpu) is None and vllm_problem("tomorrow", is_cpu=is_cpu) is None
