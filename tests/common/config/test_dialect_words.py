"""Findings of a translated file speak of that file: its keys, its lines, its values."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.common.config.test_dialects import BASES, MODELARTS, SMALL
from trinity.catalogue import BUILT_IN
from trinity.common.config import Finding, examine
from trinity.common.config.dialects.modelarts import BACKEND
from trinity.common.config.dialects.table import by_name, is_section, row_of, words
from trinity.common.config.overrides import parse_path
from trinity.common.config.reading import parse_text
from trinity.common.config.schema_index import annotation_at, homes
from trinity.common.config.tree import dotted

GROUP = 100
"""Keys that one file has wrong at once."""
SWITCHES = {"critic.enable", "reward_model.enable", "algorithm.adv_estimator"}
"""Keys without which others are not read."""
BAD: tuple[Any, ...] = ([{"a": 1}], "zzz", -7)
_TOKEN = re.compile(r"(?<![\w./-])(--set )?([a-z_]+(?:\.\w+|\[\d+\])+|[a-z]+(?:_[a-z0-9]+)+)(?![\w/]|\.\w)")
ANY_VALUE = {"actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space"}
"""Keys of which every value is fine here: vLLM examines its own arguments."""
OF_OUR_FILES = {"algorithm.filter_groups", "distillation"}
"""Keys whose way out is a file of ours, since no key of veRL's does that here."""


def ours_in(finding: Finding) -> list[str]:
    """Return the keys of ours that a finding names; those after `--set` can be given beside the file."""
    text = " ".join(filter(None, (finding.key, finding.message, finding.rule, finding.suggestion)))
    found = []
    for is_given, word in _TOKEN.findall(text.replace(f"{BACKEND}.", "")):
        path = parse_path(word)
        is_dotted = "." in word or "[" in word
        is_ours = annotation_at(path) is not None if is_dotted and path else word in homes()
        name = re.sub(r"\[\d+\]", "", word)
        is_theirs = (row_of(name) is not None or is_section(name)) if is_dotted else word in words()
        if is_ours and not is_theirs and not is_given:
            found.append(word)
    return found


def nested(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a file with other values of dotted keys."""
    result: dict[str, Any] = yaml.safe_load(yaml.safe_dump(values))
    for name, value in changes.items():
        *above, last = name.split(".")
        node = result
        for part in above:
            node = node.setdefault(part, {})
        node[last] = value
    return result


def verl_text(changes: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """Return a veRL file with these keys, and their lines."""
    text = yaml.safe_dump(nested(BASES[1], changes), sort_keys=False, width=2**20)
    tree = parse_text(text, "run.yaml")
    return text, {name: tree.origins[tuple(name.split("."))][0].line or 0 for name in changes}


def modelarts_text(changes: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """Return a ModelArts file with these keys, one a line, and their lines."""
    base = yaml.safe_load(yaml.safe_dump(BASES[1]))
    tree = parse_text(yaml.safe_dump(base), "")
    flat = {dotted(path): tree.get(path) for path in tree.leaves() if not any(isinstance(p, int) for p in path)}
    flat |= {"data.val_files": "b.parquet"}
    above = tuple(f"{name}." for name in changes)
    flat = {name: value for name, value in flat.items() if not name.startswith(above)} | changes
    names = list(flat)
    lines = ["af_output_dir: /out", *(f"{BACKEND}.{name}: {json.dumps(flat[name])}" for name in names)]
    return "\n".join(lines), {f"{BACKEND}.{name}": names.index(name) + 2 for name in changes}


def groups() -> list[list[str]]:
    """Return the names of all keys in groups of which none is inside of another."""
    switches = [row.name for row in by_name().values() if SWITCHES & {row.name, row.newer}]
    names = [name.replace("*", "swap_space") for name in by_name() if name not in switches]
    made: list[list[str]] = []
    for name in names:
        newer = by_name()[name].newer if name in by_name() else ""
        for group in made:
            is_free = all(not f"{a}.".startswith(f"{b}.") for one in group for a, b in ((one, name), (name, one)))
            shares = any(by_name()[one].newer in (name, newer) for one in group if one in by_name() and newer)
            is_free = is_free and not {f"{name}_per_gpu", name.removesuffix("_per_gpu")} & {*group}
            if len(group) < GROUP and is_free and newer not in group and not shares:
                group.append(name)
                break
        else:
            made.append([name])
    return [*made, *([name] for name in switches)]


@pytest.mark.parametrize("make", [verl_text, modelarts_text])
def test_a_wrong_value_of_any_key_is_told_at_its_line_in_the_words_of_the_file(make: Any, tmp_path: Path) -> None:
    file, missed, foreign = tmp_path / "run.yaml", set[str](), set[tuple[str, ...]]()
    for group in groups():
        for value in BAD:
            text, lines = make(dict.fromkeys(group, value))
            file.write_text(text)
            _, problems = examine(file, catalogue=BUILT_IN, schema_only=True, cwd=tmp_path)
            foreign |= {(problem.code, problem.key, *found) for problem in problems if (found := ours_in(problem))}
            told = {(problem.key, problem.line) for problem in problems}
            for name, line in lines.items():
                at = {key for key, place in told if place == line}
                if any(key == name or key.startswith((f"{name}.", f"{name}[")) for key in at):
                    missed.discard(name)
                elif value is BAD[0]:
                    missed.add(name)
    assert {name.removeprefix(f"{BACKEND}.") for name in missed} == ANY_VALUE
    assert {key.removeprefix(f"{BACKEND}.") for _, key, *_ in foreign} == OF_OUR_FILES, foreign


ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


def test_what_the_machine_lacks_is_told_in_the_words_of_the_file(tmp_path: Path) -> None:
    plan, _ = examine(MODELARTS, catalogue=BUILT_IN, schema_only=True)
    said = "`model.critic_model_path`: /x does not exist; format.messages_key is 'nope'"
    found = plan.stages[0].placed(Finding("E4004", "buffer.explorer_input.taskset.path", said))
    place = "backend_config.data.train_files"
    assert (found.key, found.line, ours_in(found)) == (place, 2, [])
    said = "`backend_config.critic.model.path`: /x does not exist; backend_config.data.prompt_key is 'nope'"
    assert found.message == said


@pytest.mark.parametrize(
    ("source", "changes", "code", "key", "said", "way_out"),
    [
        (SMALL, [f"{ACTOR}.ppo_micro_batch_size_per_gpu=5"], "E1803", "data.train_batch_size",
         f"`data.train_batch_size x {ROLLOUT}.n` (24) must be", "make the product 20 or 25"),
        (SMALL, ["buffer.train_batch_size=10"], "E1945", f"{ACTOR}.ppo_mini_batch_size", "(4, here 12)", "remove it"),
        (SMALL, [f"{ROLLOUT}.n=1"], "E1801", f"{ROLLOUT}.n", "algorithm.adv_estimator grpo compares",
         f"`{ROLLOUT}.n: 8`"),
        (MODELARTS, [f"backend_config.{ROLLOUT}.n=1"], "E1801", f"backend_config.{ROLLOUT}.n",
         ">= 2 for backend_config.algorithm.adv_estimator grpo", f"`backend_config.{ROLLOUT}.n: 8`"),
        (SMALL, ["~data.train_files"], "E1809", "data.train_files", "a run that trains needs `data.train_files`",
         "write `data.train_files: data.jsonl`"),
        (SMALL, ["~data.val_files", "+trainer.val_only=true"], "E1845", "data.val_files",
         "`trainer.val_only: true` needs", "write `data.val_files: test.jsonl`"),
        (SMALL, [f"+{ROLLOUT}.max_model_len=10"], "E1802", "data.max_response_length",
         "data.max_prompt_length (512) + data.max_response_length (512)", f"`{ROLLOUT}.max_model_len: 1024`"),
        (SMALL, ["+reward_model.enable=true"], "E1860", "reward_model.model.path", "`reward_model.model.path` is", ""),
        (SMALL, [f"+{ACTOR}.megatron.bogus=2"], "E1203", f"{ACTOR}.megatron.bogus",
         f"unknown key `{ACTOR}.megatron.bogus`", "known here: context_parallel_size"),
        (SMALL, [f"+{ACTOR}.ulysses_sequence_parallel_size=2"], "E1835", f"{ACTOR}.ulysses_sequence_parallel_size",
         "does not divide", "`--set trainer.num_workers=...`"),
        (SMALL, ["+actor_rollout_ref.model.lora_rank=4", f"+{ACTOR}.strategy=megatron",
                 f"+{ACTOR}.megatron.tensor_model_parallel_size=2"], "E1857", "actor_rollout_ref.model.lora_rank",
         f"not done together with {ACTOR}.megatron", f"`{ACTOR}.strategy: fsdp2`"),
        (SMALL, [f"+{ROLLOUT}.do_sample=false"], "E1801", f"{ROLLOUT}.do_sample", f"`{ROLLOUT}.do_sample: false` must",
         f"write `{ROLLOUT}.n: 8` and `{ROLLOUT}.do_sample: true`"),
        (SMALL, ["algorithm.adv_estimator=gdpo"], "E1883", "algorithm.gdpo_reward_keys", "a list of metrics",
         "write `algorithm.gdpo_reward_keys: [accuracy, format_score]`"),
        (SMALL, ["+critic.enable=true"], "E1816", "critic.enable", "algorithm.adv_estimator",
         "write `algorithm.adv_estimator: gae`"),
        (SMALL, [f"+{ACTOR}.checkpoint.async_save=true"], "E1900", f"{ACTOR}.checkpoint.async_save", "not available",
         "remove `async_save`"),
        (SMALL, ["model.lora_configs=3"], "E1101", "model.lora_configs", "must be a list", "lora_configs=[...]"),
        (SMALL, ["+data.seed=${data.train_file}"], "E1402", "data.seed", "`data.train_file`", "`train_files`"),
        (SMALL, ["+data.seed=${trainer.save_interval}"], "E1402", "data.seed", "does not exist", "save_freq"),
        (SMALL, ["data.train_files=null", "+reward_model.enable=true", "+reward_model.model.path=/m"], "E1809",
         "data.train_files", "needs `data.train_files`", "data.train_files"),
    ],
)  # fmt: skip
def test_a_rule_of_ours_is_told_in_the_words_of_the_file(
    source: Any, changes: list[str], code: str, key: str, said: str, way_out: str
) -> None:
    problems = examine(source, changes, catalogue=BUILT_IN, schema_only=True)[1]
    found = {problem.code: problem for problem in problems}[code]
    assert found.key == key and said in found.message and way_out in (found.suggestion or ""), found
    assert {problem.code for problem in problems if problem.is_error} <= {code, "E1824", "E1830", "E1848"}, problems
