"""Rules of the Data-Juicer service and of the task pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL, Examine

PIPELINE = "data_processor.task_pipeline"
FILTER = "operators: [{name: text_length_filter, args: {min_len: 3}}]"
TASKSET = "buffer.explorer_input.taskset.path"
FORMAT = "buffer.explorer_input.taskset.format"
SELECTOR = "buffer.explorer_input.taskset.data_selector={{selector_type: offline_easy2hard, feature_keys: {}}}"
EXPERIENCE = "data_processor.experience_pipeline.operators=[{name: data_juicer, args: {config_path: r.yaml}}]"


def codes(examined: Examine, *overrides: str) -> list[str]:
    return sorted(p.code for p in examined(MINIMAL, *overrides)[1] if p.code not in ("W1301",))


def test_what_the_pipeline_writes_is_what_the_explorer_reads(examined: Examine) -> None:
    raw = examined(MINIMAL)[0].stages[0].config.buffer.explorer_input.taskset
    assert raw is not None and raw.path
    for overrides, folder, inputs in (
        ((f"{PIPELINE}={{{FILTER}}}",), None, (raw.path,)),
        ((f"{PIPELINE}={{{FILTER}, inputs: [{raw.path}]}}",), None, (raw.path,)),
        ((f"{PIPELINE}={{{FILTER}, inputs: [other.jsonl]}}", f"{TASKSET}=made"), "made", ("other.jsonl",)),
        ((f"{PIPELINE}={{{FILTER}, output: {{path: there}}}}",), "there", (raw.path,)),
    ):
        plan, problems = examined(MINIMAL, *overrides)
        assert not [p.render() for p in problems if p.is_error]
        config = plan.stages[0].config
        taskset, pipeline = config.buffer.explorer_input.taskset, config.data_processor.task_pipeline
        assert taskset is not None and pipeline is not None
        expected = Path(folder) if folder else Path(config.checkpoint_job_dir) / "tasks"
        assert taskset.path == str(expected / "output.jsonl") and pipeline.inputs == inputs
        assert any(each.key == TASKSET for each in plan.stages[0].derived)
    plan, problems = examined(MINIMAL, f"{PIPELINE}={{{FILTER}}}", f"{TASKSET}=[{raw.path}, other.jsonl]")
    assert not [p.render() for p in problems if p.is_error]
    pipeline = plan.stages[0].config.data_processor.task_pipeline
    assert pipeline is not None and pipeline.inputs == (raw.path, "other.jsonl")


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ((f"{PIPELINE}={{num_process: 2}}",), "E1930"),
        ((f"{PIPELINE}={{{FILTER}, config_path: recipe.yaml}}",), "E1930"),
        ((f"{PIPELINE}={{{FILTER}, output: {{paht: there}}}}",), "E1935"),
        ((f"{PIPELINE}={{{FILTER}, output: {{path: there.jsonl}}}}",), "E1935"),
        ((f"{PIPELINE}={{{FILTER}, top_k: 0}}",), "E1302"),
        ((f"{PIPELINE}={{{FILTER}, priority_weights: {{quantity: 1.0}}}}",), "E1936"),
        (
            (
                f"{PIPELINE}={{{FILTER}, inputs: [x.jsonl]}}",
                "buffer.explorer_input.taskset=null",
                "buffer.explorer_input.default_workflow_type=math_workflow",
                "buffer.explorer_input.tasksets=[{name: a, path: b.jsonl}, {name: c, path: d.jsonl}]",
            ),
            "E1929",
        ),
        ((EXPERIENCE, "service.data_juicer={port: 5005}"), "E1937"),
        ((EXPERIENCE, "service.data_juicer={server_url: 'ftp://here'}"), "E1938"),
        ((EXPERIENCE, "service.data_juicer={server_url: 'http://[', auto_start: true}"), "E1938"),
        ((EXPERIENCE, "service.data_juicer={server_url: 'http://127.0.0.1:1', auto_start: true, port: 2}"), "E1939"),
        ((EXPERIENCE, "service.data_juicer={server_url: 'http://example.com:1', auto_start: true}"), "E1939"),
        (("service.data_juicer={auto_start: true}",), "W1902"),
    ],
)
def test_what_does_not_fit_is_named(examined: Examine, overrides: tuple[str, ...], code: str) -> None:
    assert codes(examined, *overrides) == [code]


@pytest.mark.parametrize(
    ("fields", "more", "missing"),
    [
        ("[question, answer]", (), []),
        ("[]", (), []),
        ("[answer]", (), ["question"]),
        ("[question]", (f"{FORMAT}.response_key=answer",), ["answer"]),
        ("[question, answer]", (f"{FORMAT}.workflow_key=kind", f"{FORMAT}.tools_key=tools"), ["tools", "kind"]),
        ("[question]", (f"{FORMAT}.messages_key=turns", f"{FORMAT}.prompt_type=messages"), ["turns"]),
        ("[question]", (SELECTOR.format("[priority, level]"),), ["level"]),
        ("[question]", (SELECTOR.format("[priority]"),), []),
    ],
)
def test_columns_that_are_read_are_kept(
    examined: Examine, fields: str, more: tuple[str, ...], missing: list[str]
) -> None:
    form = () if any("messages" in each for each in more) else (f"{FORMAT}.prompt_key=question",)
    problems = examined(MINIMAL, f"{PIPELINE}={{{FILTER}, target_fields: {fields}}}", *form, *more)[1]
    found = [p for p in problems if p.code == "E1954"]
    assert [p.message.split("'")[1] for p in found] == missing
    assert all(f", {name}]" in str(p.suggestion) for p, name in zip(found, missing, strict=True))


def test_the_published_service_section_is_one_server(examined: Examine) -> None:
    text = "service.data_juicer={server_url: 'http://127.0.0.1:5005', auto_start: true}"
    plan, problems = examined(MINIMAL, EXPERIENCE, text)
    assert not [p.render() for p in problems]
    service = plan.stages[0].config.service.data_juicer
    assert service is not None and service.port == 5005
