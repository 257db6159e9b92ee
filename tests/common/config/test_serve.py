"""Rules of mode serve."""

from __future__ import annotations

import pytest

from tests.common.config.conftest import MINIMAL, Examine

SERVE = MINIMAL.replace("mode: both", "mode: serve") if "mode: both" in MINIMAL else MINIMAL + "mode: serve\n"


def _found(examined: Examine, *overrides: str) -> set[tuple[str, str]]:
    return {(problem.code, problem.key) for problem in examined(SERVE, *overrides)[1]}


def test_no_tasks_are_needed_and_it_listens_on_this_machine_alone(examined: Examine) -> None:
    stages, problems = examined(SERVE, "buffer.explorer_input.taskset=null")
    assert not [problem.render() for problem in problems if problem.is_error]
    explorer = stages.stages[0].config.explorer
    assert (explorer.listen_address, explorer.proxy_port, explorer.min_running_model_num) == ("127.0.0.1", 8010, 1)
    assert explorer.db_url is None and explorer.rollout_model.history_limit == 16384


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("deterministic=true", ("E1899", "deterministic")),
        ("explorer.min_running_model_num=2", ("E1899", "explorer.min_running_model_num")),
        ("explorer.db_url='sqlite:///:memory:'", ("E1829", "explorer.db_url")),
        ("explorer.proxy_port=70000", ("E1302", "explorer.proxy_port")),
        ("explorer.service_status_check_interval=0", ("E1302", "explorer.service_status_check_interval")),
        ("explorer.rollout_model.history_limit=0", ("E1302", "explorer.rollout_model.history_limit")),
    ],
)
def test_what_it_cannot_do_is_refused(examined: Examine, override: str, problem: tuple[str, str]) -> None:
    assert problem in _found(examined, override)


@pytest.mark.difference("A machine with one GPU")
def test_one_gpu_does_not_make_it_another_mode(examined: Examine) -> None:
    for gpus in (1, 2):
        plan, problems = examined(SERVE, "cluster.node_num=1", f"cluster.gpu_per_node={gpus}")
        assert not [problem.render() for problem in problems if problem.is_error]
        assert plan.stages[0].config.mode == "serve"


def test_tasks_that_nobody_attempts_are_a_warning(examined: Examine) -> None:
    assert ("W1902", "buffer.explorer_input") in _found(examined)
    assert ("W1902", "buffer.explorer_input") not in _found(examined, "buffer.explorer_input=null")


def test_a_relative_database_is_below_the_working_directory(examined: Examine) -> None:
    plan, problems = examined(SERVE, "explorer.db_url=calls.db")
    assert not [problem.render() for problem in problems if problem.is_error]
    url = str(plan.stages[0].config.explorer.db_url)
    assert url.startswith("sqlite:////") and url.endswith("/calls.db")


@pytest.mark.parametrize("key", ["proxy_port=1", "listen_address=0.0.0.0", "min_running_model_num=1", "db_url=a.db"])
def test_its_keys_change_nothing_in_another_mode(examined: Examine, key: str) -> None:
    problems = examined(MINIMAL, f"explorer.{key}")[1]
    assert [p.severity for p in problems if p.code == "W1902" and p.key == f"explorer.{key.partition('=')[0]}"] == [
        "warning"
    ]
