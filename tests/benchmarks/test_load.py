"""The load on the endpoint, with few requests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

Scripts = Callable[[str], ModuleType]


@pytest.mark.slow
def test_every_answer_has_one_record_with_and_without_refusals(
    script: Scripts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["load.py", "--requests", "40", "--bound", "4", "--json"])
    script("load").main()
    all_at_once, few = json.loads(capsys.readouterr().out)
    assert all_at_once["statuses"] == {"200": 40}
    assert few["statuses"]["200"] == 40 and few["statuses"]["429"] > 0
    assert set(few["statuses"]) == {"200", "429"}


def test_tokens_are_read_from_wholes_and_from_streams(script: Scripts) -> None:
    load = script("load")
    assert load.tokens_of('{"choices": [{"token_ids": [1, 2]}]}', is_stream=False) == [1, 2]
    events = ['{"choices": [{"token_ids": [1]}]}', '{"choices": [{"token_ids": [2]}]}', '{"choices": []}', "[DONE]"]
    assert load.tokens_of("".join(f"data: {event}\n\n" for event in events), is_stream=True) == [1, 2]
    with pytest.raises(AssertionError, match="a stream ends"):
        load.tokens_of('data: {"choices": []}\n\n', is_stream=True)
