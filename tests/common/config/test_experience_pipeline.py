"""Rules of what comes into the experience pipeline, and of what leaves it."""

from __future__ import annotations

import pytest

from tests.common.config.conftest import MINIMAL, Examine

PIPELINE = "data_processor.experience_pipeline"
KEEP = f"{PIPELINE}.save_input=true"
OUTPUT = "buffer.trainer_input.experience_buffer"


def codes(examined: Examine, *overrides: str) -> list[str]:
    return sorted(p.code for p in examined(MINIMAL, *overrides)[1] if p.code not in ("W1301",))


def test_the_input_goes_to_a_log_of_its_own_or_to_lines_beside_it(examined: Examine) -> None:
    for written, suffix, copy in (
        (None, "/buffer/explorer_output.db", None),
        ("came.jsonl", "/buffer/explorer_output.db", "/came.jsonl"),
        ("kept/came.db", "/kept/came.db", None),
        ("sqlite:///came.db", "/came.db", None),
        ("postgresql://user@host/came", "postgresql://user@host/came", None),
    ):
        more = () if written is None else (f"{PIPELINE}.input_save_path={written}",)
        plan, problems = examined(MINIMAL, KEEP, *more)
        assert not [p.render() for p in problems if p.is_error]
        section = plan.stages[0].config.data_processor.experience_pipeline
        assert str(section.input_save_path).endswith(suffix), written
        assert (section.input_copy_path or "").endswith(copy or "") and bool(section.input_copy_path) == bool(copy)


@pytest.mark.difference("`save_input`")
def test_the_input_is_kept_only_where_it_is_asked_for(examined: Examine) -> None:
    assert not examined(MINIMAL)[0].stages[0].config.data_processor.experience_pipeline.save_input


@pytest.mark.difference("`inputs` and `output` of the experience pipeline")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((f"{PIPELINE}.input_save_path=came.jsonl",), ["W1902"]),
        ((KEEP, f"{PIPELINE}.input_save_path=folder"), ["E1951"]),
        ((KEEP, f"{PIPELINE}.input_save_path=mysql://host/came"), ["E1951"]),
        ((KEEP, f"{PIPELINE}.input_save_path=same.db", f"{OUTPUT}.path=sqlite:///same.db"), ["E1951"]),
        ((f"{PIPELINE}.inputs={{}}", f"{PIPELINE}.output=null"), []),
        ((KEEP, f"{PIPELINE}.inputs={{raw: {{path: came.db}}}}", f"{PIPELINE}.input_save_path=came.db"), []),
        ((f"{PIPELINE}.inputs={{more: {{path: other.db, storage_type: sql}}}}",), ["E1952"]),
        ((f"{PIPELINE}.inputs={{more: {{}}}}",), ["E1952"]),
        ((f"{OUTPUT}.path=out.db", f"{PIPELINE}.output={{path: out.db, storage_type: queue}}"), []),
        ((f"{OUTPUT}.path=out.jsonl", f"{PIPELINE}.output={{path: out.jsonl}}"), []),
        ((f"{OUTPUT}.path=out.db", f"{PIPELINE}.output={{path: other.db}}"), ["E1953"]),
        ((f"{PIPELINE}.output={{storage_type: sql}}",), ["E1953"]),
        ((f"{PIPELINE}.output={{shema: sql}}",), ["E1953"]),
    ],
)
def test_what_only_repeats_is_accepted_and_anything_else_refused(
    examined: Examine, overrides: tuple[str, ...], expected: list[str]
) -> None:
    assert codes(examined, *overrides) == expected


def test_modes_without_an_explorer_keep_nothing(examined: Examine) -> None:
    assert "W1902" in codes(examined, "mode=bench", KEEP)
