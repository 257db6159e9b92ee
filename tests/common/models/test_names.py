"""The names by which a model may be asked for."""

from __future__ import annotations

import pytest

from trinity.common.models.names import served_names

SNAPSHOT = "/cache/hub/models--Qwen--Qwen2.5-1.5B-Instruct/snapshots/0a1b2c"


@pytest.mark.parametrize(
    ("path", "others", "names"),
    [
        ("models/mine", (None,), ("models/mine", "mine")),
        ("models/mine/", ("models/mine/",), ("models/mine/", "mine")),
        ("Qwen/Qwen3-4B", ("policy", "adapter"), ("policy", "adapter", "Qwen/Qwen3-4B", "Qwen3-4B")),
        (SNAPSHOT, (), (SNAPSHOT, "Qwen/Qwen2.5-1.5B-Instruct", "Qwen2.5-1.5B-Instruct")),
        ("", ("judge",), ("judge",)),
    ],
)
def test_a_model_is_known_by_its_place_and_by_what_it_is_called(
    path: str, others: tuple[str | None, ...], names: tuple[str, ...]
) -> None:
    assert served_names(path, *others) == names
