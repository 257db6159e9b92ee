"""Times in the tables of the examples."""

from __future__ import annotations

from tools.example_table import with_time

PAGE = """Times: 3 s.

| [a](a/README.md) | One | `grpo` | 12 s |
| [a_b](a_b/README.md) | Two, 5 s | `grpo` | 3 min |
"""


def test_a_time_is_written_into_the_row_of_its_example_alone() -> None:
    assert with_time(PAGE, "a", 7) == PAGE.replace("12 s", "7 s")
    assert with_time(PAGE, "a_b", 7) == PAGE.replace("3 min", "7 s")
    assert with_time(PAGE, "b", 7) == PAGE
