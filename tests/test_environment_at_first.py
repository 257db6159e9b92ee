"""Every file of tests begins with the environment that the first one had."""

from __future__ import annotations

import os

import pytest

from tests.conftest import environment_as_at_first


def test_a_variable_that_a_thread_of_an_earlier_file_has_set_or_removed_is_taken_back() -> None:
    before = dict(os.environ)
    name = next(name for name in sorted(before) if not name.startswith("PYTEST_"))
    os.environ["SET_LATE"] = "1"
    del os.environ[name]
    changed = ", ".join(sorted((name, "SET_LATE")))
    with pytest.warns(UserWarning, match=rf"an earlier file has changed {changed} in the environment"):
        environment_as_at_first()
    assert dict(os.environ) == before
