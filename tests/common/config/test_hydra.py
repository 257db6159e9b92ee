"""Hydra's overrides: the grammar of values, removals with a value, and `defaults:` lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.common.config.test_dialects import SMALL, put
from trinity.common.config.dialects import Opened, open_source
from trinity.common.config.dialects.hydra_values import NotAValueError, hydra_value
from trinity.common.config.dialects.table import children

MODEL, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("null", None),
        ("True", True),
        ("1e-6", 1e-6),
        ("-1", -1),
        ("1_000", 1000),
        ("007", 7.0),
        ("a:b", "a:b"),
        ("yes", "yes"),
        (r"/d/a\=b.parquet", "/d/a=b.parquet"),
        (r"C:\data", r"C:\data"),
        ("{a:0.1,b:3}", {"a": 0.1, "b": 3}),
        ("{ a : {b:[1,x], c:{}} , d: null}", {"a": {"b": [1, "x"], "c": {}}, "d": None}),
        ("{2:2,true:x}", {2: 2, True: "x"}),
        ("{'a b': \"c,d\", e: hdfs://n:9/f}", {"a b": "c,d", "e": "hdfs://n:9/f"}),
        (r"[a\,b, c\]]", ["a,b", "c]"]),
        ("['console','wandb']", ["console", "wandb"]),
        ("[]", []),
        ("[${oc.select:a,[1]}, {b:${c}}]", ["${oc.select:a,[1]}", {"b": "${c}"}]),
        (r"'it\'s \n \\'", r"it's \n " + "\\"),
        ("'5'", "5"),
        ("a=b", "a=b"),
    ],
)
def test_values_are_read_as_hydra_reads_them(text: str, value: Any) -> None:
    found = hydra_value(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("text", ["[a", "{a:1", "{a}", "[a]b", "'a", "{a:1,a:2}", "[a,,b]", "{a:b{c}}", "{a:}", "[,]"])
def test_what_hydra_cannot_read_is_refused(text: str) -> None:
    with pytest.raises(NotAValueError):
        hydra_value(text)
    found = open_source(SMALL, [f"+{MODEL}.override_config={text}"]).problems
    assert [(problem.code, problem.key) for problem in found] == [("E1944", f"{MODEL}.override_config")]


def test_a_section_in_braces_is_a_section() -> None:
    words = [f"+{MODEL}.override_config={{attention_dropout:0.1,hidden_size:3}}",
             f"{ROLLOUT}.name=vllm", f"+{ROLLOUT}.engine_kwargs.vllm={{swap_space:4}}",
             "+algorithm.rollout_correction={rollout_is:token}", r"data.train_files=/d/a\=b.parquet"]  # fmt: skip
    opened = open_source(SMALL, words)
    assert opened.problems == []
    assert put(opened, f"trainer.trainer_config.{MODEL}.override_config") == {
        "attention_dropout": 0.1,
        "hidden_size": 3,
    }
    assert put(opened, "explorer.rollout_model.extra_engine_args.swap_space") == 4
    assert put(opened, "algorithm.rollout_correction") == {"rollout_is": "token"}
    assert put(opened, "buffer.explorer_input.taskset.path") == "/d/a=b.parquet"


def test_a_removal_with_a_value_needs_that_value() -> None:
    assert put(open_source(SMALL, ["~data.train_batch_size=8", "~data.shuffle=true"]), "buffer.batch_size") == 1024
    for word in ("data.train_batch_size=99", "data.shuffle=false"):
        opened = open_source(SMALL, [f"~{word}"])
        assert [problem.code for problem in opened.problems] == ["E1944"], word
        assert put(opened, "buffer.batch_size") == 8


def test_as_many_prompts_are_sampled_as_are_trained() -> None:
    for word in ("8", "${data.train_batch_size}", "null"):
        assert open_source(SMALL, [f"+data.gen_batch_size={word}"]).problems == [], word
    found = open_source(SMALL, ["+data.gen_batch_size=16"]).problems
    assert [(p.code, p.key, p.suggestion) for p in found] == [("E1940", "data.gen_batch_size", "remove it, or write 8")]


def test_an_empty_section_counts_as_absent() -> None:
    sections = sorted(name for name in children() if name)
    assert "critic" in sections and f"{ROLLOUT}.engine_kwargs.vllm" in sections
    for name in sections:
        found = [p for p in open_source(SMALL, [f"++{name}=null"]).problems if p.code == "E1941"]
        assert found == [], name
    values = {**SMALL, "critic": None, "data": None}
    opened = open_source(values, ["data.train_batch_size=16"])
    assert opened.problems == [] and put(opened, "buffer.batch_size") == 16


def test_files_of_a_defaults_list_have_lists_of_their_own(tmp_path: Path) -> None:
    for name, text in {
        "a": "defaults: [b, data/c]\ndata: {max_prompt_length: 5}\n",
        "b": "data: {max_prompt_length: 4, max_response_length: 7, seed: 1}\n",
        "data/c": "defaults: [{/shared@data: d}, optional none, _self_]\ndata: {seed: 2}\n",
        "shared/d": "train_batch_size: 32\nseed: 3\n",
        "again": "defaults: [again]\n",
    }.items():
        (tmp_path / f"{name}.yaml").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text)
    file = tmp_path / "run.yaml"

    def opened(*entries: Any) -> Opened:
        values = {**SMALL, "data": {"train_files": "a.parquet"}}
        file.write_text(yaml.safe_dump({"defaults": list(entries), **values}))
        return open_source(file)

    whole = opened("ppo_trainer", "a", "optional extra", {"optional data": "extra"}, "_self_")
    assert whole.problems == []
    assert [put(whole, f"model.max_{name}_tokens") for name in ("prompt", "response")] == [5, 7]
    assert put(whole, "buffer.batch_size") == 32
    assert put(whole, "buffer.explorer_input.taskset.data_selector.seed") == 2, "the later file wins"
    for entry, hint in {"ppo_tariner": "ppo_trainer", "again": None, "run": None}.items():
        problems = opened(entry).problems
        assert [problem.code for problem in problems] == ["E1944"], entry
        assert hint is None or problems[0].suggestion == f"did you mean `{hint}`?"
    typo = opened({"actor@actor_rollout_ref.actor": "dp_acter"}).problems
    assert [(p.code, p.suggestion) for p in typo] == [("E1944", "did you mean `dp_actor`?")]
    own = [
        {"actor@actor_rollout_ref.actor": "dp_actor"},
        {"model_engine": "dp"},
        {"override hydra/job_logging": "none"},
    ]
    assert opened(*own).problems == []
