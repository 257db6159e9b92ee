"""What rows and formats of tasksets name is looked at before a run: workflows, reward functions and templates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL
from trinity.catalogue import BUILT_IN
from trinity.common.config import Finding, examine
from trinity.preflight.data import check_data

FORM = "buffer.explorer_input.taskset.format"


def found(folder: Path, rows: list[dict[str, str]], *overrides: str) -> list[Finding]:
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": "1+1=", "answer": "2"} | row) + "\n" for row in rows))
    (folder / "run.yaml").write_text(MINIMAL)
    columns = (f"{FORM}.prompt_key=prompt", f"{FORM}.response_key=answer")
    overrides = (f"buffer.explorer_input.taskset.path={data}", *columns, *overrides)
    plan, problems = examine(folder / "run.yaml", overrides, catalogue=BUILT_IN, cwd=folder)
    assert not [problem.render() for problem in problems if problem.is_error]
    return list(check_data(plan.stages[0].config, catalogue=plan.stages[0].catalogue))


@pytest.mark.parametrize(("key", "known"), [("workflow_key", "math_workflow"), ("reward_fn_key", "math_reward")])
def test_rows_that_name_nothing_known_are_refused_before_a_run(tmp_path: Path, key: str, known: str) -> None:
    column = f"{FORM}.{key}=kind"
    unknown = found(tmp_path, 4 * [{"kind": f"{known}s"}], column)
    assert {(each.code, each.key) for each in unknown} == {("E4050", "buffer.explorer_input.taskset.path")}
    assert f"data.jsonl:1: kind: unknown {key.removesuffix('_key')} '{known}s'; did you mean '{known}'?" in str(
        unknown[0].message
    )
    one = found(tmp_path, [{"kind": "nothing"}] + 40 * [{"kind": known}], column, "buffer.max_bad_row_ratio=0.1")
    assert [each.code for each in one] == ["W4050"], "as many as the run leaves out"
    assert found(tmp_path, 4 * [{"kind": known}], column) == []
    assert found(tmp_path, 4 * [{"kind": "own_package.module.Class"}], column) == [], "the run imports it"


def test_the_template_of_a_taskset_is_read_before_a_run(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, [{}], f"{FORM}.chat_template='{{{{ broken'")
    assert (finding.code, finding.key) == ("E3109", f"{FORM}.chat_template")
    assert found(tmp_path, [{}], f"{FORM}.chat_template='{{{{ messages }}}}'") == []
