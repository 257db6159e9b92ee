"""Names that become folders, files, parts or rows of a database lead nowhere else (X17, X19)."""

from __future__ import annotations

import json

import pytest

from tests.common.config.conftest import MINIMAL, Examine

NAMES = ("../x", "..", "a/../../b", "/etc/x", ".hidden", "a\\b", "a;b", "'; drop table x; --", "a%b", "a\nb", "n" * 121)
KEYS = (
    "project",
    "group",
    "name",
    "explorer.name",
    "trainer.name",
    "buffer.explorer_input.taskset.name",
    "buffer.explorer_input.eval_tasksets[0].name",
    "buffer.trainer_input.experience_buffer.name",
    "buffer.trainer_input.auxiliary_buffers.other.name",
    "stages[0].stage_name",
)
TWO = (
    "    eval_tasksets: [{name: test, path: data.jsonl, default_workflow_type: math_workflow}]\n"
    "  trainer_input: {auxiliary_buffers: {other: {path: x.jsonl}}}\n"
)


@pytest.mark.parametrize("key", KEYS)
def test_a_name_that_leads_elsewhere_is_refused(examined: Examine, key: str) -> None:
    text = MINIMAL + TWO + ("stages: [{stage_name: one}]\n" if key.startswith("stages") else "")
    assert not [each for each in examined(text, f"{key}=fine")[1] if each.key == key and each.code == "E1304"]
    for name in NAMES:
        found = [each for each in examined(text, f"{key}={json.dumps(name)}")[1] if each.is_error]
        assert [each.code for each in found if each.key == key] == ["E1304"], (name, found)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b"])
def test_a_key_that_names_a_buffer_is_a_name_too(examined: Examine, name: str) -> None:
    text = MINIMAL + f"  trainer_input: {{auxiliary_buffers: {{{name}: {{path: x.jsonl}}}}}}\n"
    assert "E1304" in [each.code for each in examined(text)[1]]
