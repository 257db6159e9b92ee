"""Which runtime a configuration gets, and what does not go with it."""

from __future__ import annotations

import pytest

from tests.common.config.conftest import MINIMAL, Examine


@pytest.mark.difference("Ray")
@pytest.mark.parametrize(
    ("overrides", "runtime", "reason"),
    [
        ((), "local", "the processes of one machine need no cluster"),
        (("cluster.node_num=2",), "ray", "several machines need a cluster"),
        (("cluster.ray_address=10.0.0.1:6379",), "ray", "cluster.ray_address names a cluster"),
        (("cluster.ray_address=local",), "ray", "cluster.ray_address names a cluster"),
        (("cluster.gpu_per_node=1",), "local", "the processes of one machine need no cluster"),
        (("cluster.gpu_per_node=4",), "ray", "Ray gives each component its GPUs"),
    ],
)
def test_auto_takes_ray_where_one_machine_with_one_gpu_does_not_do(
    examined: Examine, overrides: tuple[str, ...], runtime: str, reason: str
) -> None:
    plan, problems = examined(MINIMAL, *overrides)
    assert not [problem.render() for problem in problems if problem.is_error]
    (stage,) = plan.stages
    assert stage.config.cluster.runtime == runtime
    (derived,) = (each for each in stage.derived if each.key == "cluster.runtime")
    assert derived.reason == reason


@pytest.mark.difference("One GPU")
@pytest.mark.parametrize("mode", ["both", "explore", "train"])
def test_the_mode_with_one_gpu_is_the_one_that_is_written(examined: Examine, mode: str) -> None:
    plan, _ = examined(MINIMAL, "cluster.gpu_per_node=1", f"mode={mode}")
    (stage,) = plan.stages
    assert stage.config.mode == mode and not [each for each in stage.derived if each.key == "mode"]


@pytest.mark.parametrize(
    ("overrides", "code", "key", "words"),
    [
        (("cluster.runtime=local", "cluster.gpu_per_node=4"), "E3406", "cluster.runtime", "1 x 4"),
        (("cluster.runtime=local", "cluster.node_num=2"), "E3406", "cluster.runtime", "2 x 0"),
        (("cluster.runtime=local", "cluster.ray_address=a:1"), "E3406", "cluster.ray_address", "uses none"),
        (("monitor.enable_ray_timeline=true",), "W3407", "monitor.enable_ray_timeline", "no effect"),
    ],
)
def test_what_a_runtime_cannot_do_is_told(
    examined: Examine, overrides: tuple[str, ...], code: str, key: str, words: str
) -> None:
    problems = examined(MINIMAL, *overrides)[1]
    assert [(problem.code, problem.key) for problem in problems] == [(code, key)]
    assert words in problems[0].message


def test_ray_with_its_timeline_and_logs_by_machine_is_no_problem(examined: Examine) -> None:
    keys = ("cluster.runtime=ray", "monitor.enable_ray_timeline=true", "log.group_by_node=true")
    assert examined(MINIMAL, *keys)[1] == []
