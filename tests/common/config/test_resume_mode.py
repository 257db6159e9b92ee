"""`resume_mode` and `resume_from_path` beside `continue_from_checkpoint`."""

from __future__ import annotations

import pytest

from tests.common.config.conftest import MINIMAL, Examine

MODE = "trainer.trainer_config.trainer.resume_mode"
PATH = "trainer.trainer_config.trainer.resume_from_path"
STEP = "out/a/b/global_step_4"


@pytest.mark.difference("`resume_mode`, `resume_from_path`")
@pytest.mark.parametrize(
    ("overrides", "code", "key", "hint"),
    [
        ((f"{MODE}=disable", "continue_from_checkpoint=true"), "E1846", MODE, "continue_from_checkpoint: false"),
        (
            (f"{MODE}=resume_path", f"{PATH}={STEP}", "continue_from_checkpoint=false"),
            "E1846",
            MODE,
            "continue_from_checkpoint: true",
        ),
        ((f"{PATH}={STEP}",), "E1847", PATH, "resume_mode: resume_path"),
        ((f"{MODE}=resume_path",), "E1847", PATH, "global_step_<N>"),
        ((f"{MODE}=resume_path", f"{PATH}=out/a/b/actor"), "E1847", PATH, "global_step_<N>"),
    ],
)
def test_what_contradicts_is_named(
    examined: Examine, overrides: tuple[str, ...], code: str, key: str, hint: str
) -> None:
    problems = examined(MINIMAL, *overrides)[1]
    (found,) = [problem for problem in problems if problem.code == code]
    assert found.key == key and hint in (found.suggestion or ""), found.render()


@pytest.mark.difference("`resume_mode`, `resume_from_path`")
@pytest.mark.parametrize(
    ("overrides", "continues"),
    [
        ((), True),
        ((f"{MODE}=auto",), True),
        ((f"{MODE}=auto", "continue_from_checkpoint=false"), False),
        ((f"{MODE}=disable",), False),
        ((f"{MODE}=disable", "continue_from_checkpoint=false"), False),
        ((f"{MODE}=resume_path", f"{PATH}={STEP}"), True),
    ],
)
def test_what_a_run_continues_from(examined: Examine, overrides: tuple[str, ...], continues: bool) -> None:
    plan, problems = examined(MINIMAL, *overrides)
    assert not [problem.render() for problem in problems if problem.key in (MODE, PATH)]
    assert plan.stages[0].config.continue_from_checkpoint is continues


def test_an_evaluation_of_checkpoints_needs_tasks_and_no_taskset(examined: Examine) -> None:
    text = MINIMAL.replace("    taskset:\n", "    eval_tasksets:\n    - ").replace("    - " + " " * 6, "    - ")
    assert not [p.render() for p in examined(text, "mode=bench")[1] if p.is_error]
    (found,) = [p for p in examined(MINIMAL, "mode=bench")[1] if p.is_error]
    assert (found.code, found.key) == ("E1845", "buffer.explorer_input.eval_tasksets")
