"""The page of the algorithms agrees with the tables of contents, and what it prints is what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.docs.pages import page
from tests.docs.test_examples import BASE
from tests.trees import merged
from trinity.algorithm import ADVANTAGE_CONTENTS, ALGORITHM_CONTENTS
from trinity.cli.app import app
from trinity.explain.functions import sources

PAGES = {"docs/algorithms.md": "none", "docs/algorithms.zh.md": "无"}
each_language = pytest.mark.parametrize(("name", "nothing"), PAGES.items())


def _cells(name: str) -> list[list[str]]:
    rows = re.findall(r"^\| (.*) \|$", page(name).prose, flags=re.MULTILINE)
    return [row.split(" | ") for row in rows]


def _expected(algorithm: str, nothing: str) -> list[str]:
    entry = ALGORITHM_CONTENTS[algorithm]
    parts = [entry.args[role] for role in ("advantage_fn", "policy_loss_fn", "kl_loss_fn")]
    works = sources(entry)
    if not works and parts[0] is not None:
        works = sources(ADVANTAGE_CONTENTS[parts[0]])
    names = [nothing if part in (None, "none") else f"`{part}`" for part in parts]
    return [f"`{algorithm}`", *names, str(entry.args["repeat_times"]), "; ".join(works) or nothing]


def _output(*words: str) -> list[str]:
    result = CliRunner(env={"COLUMNS": "250", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def _assert_excerpt(shown: str, printed: list[str]) -> None:
    """Assert that the lines shown were printed in this order, next to each other where no `...` is between."""
    place = 0
    for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE):
        lines = part.splitlines()
        starts = [i for i in range(place, len(printed)) if printed[i : i + len(lines)] == lines]
        assert starts, part
        place = starts[0] + len(lines)


@each_language
def test_the_table_has_a_row_for_every_type_as_in_the_tables_of_contents(name: str, nothing: str) -> None:
    rows = {row[0].strip("`"): row for row in _cells(name) if len(row) == 6}
    header = rows.pop("algorithm.algorithm_type")
    assert header[4] == "`algorithm.repeat_times`"
    assert [row for key, row in rows.items() if set(key) != {"-", "|"}] == [
        _expected(algorithm, nothing) for algorithm in ALGORITHM_CONTENTS
    ]


@each_language
def test_the_choice_and_the_places_of_the_advantage_name_known_types(name: str, nothing: str) -> None:
    by_place = [row[1] for row in _cells(name) if len(row) == 2]
    chosen = [row[1] for row in _cells(name) if len(row) == 3]
    told = [set(re.findall(r"`(\w+)`", " ".join(cells))) & set(ALGORITHM_CONTENTS) for cells in (by_place, chosen)]
    from_rollouts = {key for key, entry in ALGORITHM_CONTENTS.items() if entry.args["mode"] == "both"}
    assert told[0] == from_rollouts
    assert {"grpo", "ppo", "gigpo", "dpo", "sft", "on_policy_distill", "topr"} <= told[1]
    named = set(re.findall(r"`([a-z_]+)`", " ".join(chosen)))
    assert named <= set(ALGORITHM_CONTENTS)


def test_what_the_page_shows_is_what_the_commands_print(tmp_path: Path) -> None:
    algorithms, effective, _ = page("docs/algorithms.md").code("text")
    _assert_excerpt(algorithms, _output("algorithms", "gspo"))
    example = next(code for code in page("docs/algorithms.md").code("yaml") if "gspo" in code)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(merged(yaml.safe_load(BASE), yaml.safe_load(example))))
    _assert_excerpt(effective, _output("config", "show", "--config", str(tmp_path / "run.yaml"), "--effective-loss"))


def test_the_settings_of_the_probe_on_the_page_are_those_of_the_example() -> None:
    *_, probe = page("docs/algorithms.md").code("text")
    example = next(code for code in page("docs/algorithms.md").code("yaml") if "gspo" in code)
    written = yaml.safe_load(example)["algorithm"]["policy_loss_fn_args"]
    rows = {line.split()[0]: line.split()[1] for line in probe.splitlines() if line.startswith("  algorithm.")}
    ours = {key.rpartition(".")[2]: value for key, value in rows.items() if ".policy_loss_fn_args." in key}
    assert ours == {key: str(written[key]) for key in ours} and set(ours) == {"clip_range", "clip_range_low"}
