"""The name of the model in a request: one that is not served is refused, in each interface (B110)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.explorer.api.test_endpoint import Served
from tests.explorer.api.test_lengths import FORMS, asked


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"), name="policy")
    yield made
    made.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_asked_for_by_one_of_its_names(served: Served, form: str) -> None:
    model = served.rollout()
    path = served.config.model.model_path
    for name in ("policy", path, Path(path).name, None):
        assert asked(model, form, "1+1=", model=name, max_tokens=20).status_code == 200, name
    for name in ("any", "Policy", "", path + "/", "x" * 5000):
        refused = asked(model, form, "1+1=", model=name, max_tokens=20)
        assert refused.status_code == 400 and "'policy' or " in refused.text and path in refused.text
        assert len(refused.text) < 1500 and "explorer.rollout_model.name" in refused.text
        if form != "messages":  # whose errors have a type and a message alone
            error = refused.json()["error"]
            assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert len(model.history) == 4
