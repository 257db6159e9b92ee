"""The configuration guide's and the asynchronous example's files, and the completeness of the schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.common.config.conftest import MINIMAL, Examine
from tests.docs.pages import ROOT, Page
from trinity.common.config import Catalogue, examine, json_schema
from trinity.common.config.config import Config
from trinity.common.config.reading import read_file
from trinity.common.config.schema_index import annotation_at, fields_of
from trinity.common.config.tree import dotted
from trinity.explain.effective_loss import effective_loss

DATA = Path(__file__).resolve().parents[2] / "seeds"
GUIDE: set[str] = set()
EXPLORER: set[str] = set()


@pytest.fixture(autouse=True)
def _paths(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL_PATH", "TRINITY_TASKSET_PATH", "TRINITY_SFT_DATASET_PATH", "TRINITY_DATASET_PATH"):
        monkeypatch.setenv(name, f"/data/{name.lower()}")


@pytest.mark.parametrize(
    ("name", "overrides", "later"),
    [
        ("guide.yaml", (), GUIDE),
        ("guide.yaml", (f"trainer.trainer_config_path={DATA / 'train_guide.yaml'}",), GUIDE),
        ("explorer.yaml", (), EXPLORER),
        ("explorer_new.yaml", (), EXPLORER),
        ("trainer.yaml", (), set()),
    ],
)
def test_published_files_are_valid(
    catalogue: Catalogue, name: str, overrides: tuple[str, ...], later: set[str]
) -> None:
    plan, problems = examine(DATA / name, overrides, catalogue=catalogue, schema_only=True)
    assert not [p.render() for p in problems if p.is_error]
    assert {p.key for p in problems if p.code == "E1900"} == later
    assert {p.code for p in problems} <= {"E1900", "W1301", "W1501", "W1946"}
    _, strict = examine(DATA / name, overrides, catalogue=catalogue)
    assert {p.key for p in strict if p.is_error} == later
    assert len(plan.stages) == (2 if name == "guide.yaml" else 1)


def test_a_file_that_asks_for_what_comes_later_is_shown_complete(catalogue: Catalogue) -> None:
    later = ("model.repetition_penalty=1.5",)
    plan, problems = examine(DATA / "guide.yaml", later, catalogue=catalogue, schema_only=True)
    assert {p.code for p in problems} >= {"E1900"} and not [p for p in problems if p.is_error]
    for stage in plan.stages:
        actor = stage.config.trainer.trainer_config.actor_rollout_ref.actor
        assert (actor.ppo_micro_batch_size_per_gpu, actor.loss_agg_mode) == (4, "token-mean")
        assert effective_loss(stage).text()


def test_the_veRL_file_is_read_in_place_of_trainer_config(catalogue: Catalogue) -> None:
    override = f"trainer.trainer_config_path={DATA / 'train_guide.yaml'}"
    tree = examine(DATA / "guide.yaml", (override,), catalogue=catalogue, schema_only=True)[0].stages[1].tree
    ref = tree.get(("trainer", "trainer_config", "actor_rollout_ref", "ref"))
    assert ref["log_prob_max_token_len_per_gpu"] == 16384
    assert tree.get(("trainer", "trainer_config", "critic", "forward_max_token_len_per_gpu")) == 32768


def test_the_way_out_of_missing_hardware_is_a_set_argument(catalogue: Catalogue) -> None:
    later = ("model.repetition_penalty=1.5",)
    _, problems = examine(DATA / "guide.yaml", later, catalogue=catalogue)
    hints = {p.key: p.suggestion for p in problems}
    assert hints["model.repetition_penalty"] == "available: 1.0"


@pytest.mark.parametrize("name", ["guide.yaml", "train_guide.yaml"])
def test_every_published_key_is_in_the_schema(name: str) -> None:
    prefix = ("trainer", "trainer_config") if name.startswith("train_") else ()
    tree = read_file(DATA / name)
    free = [path for path in tree.origins if path and annotation_at((*prefix, *path)) is None]
    assert [dotted(path) for path in free] == []


def test_every_field_says_what_it_is_and_where_its_default_comes_from() -> None:
    silent = [
        dotted(path)
        for path, field in fields_of(Config)
        if not field.description
        or not field.description.endswith((".", "?"))
        or not isinstance(field.json_schema_extra, dict)
        or not field.json_schema_extra.get("source")
    ]
    assert silent == []


def test_the_json_schema_covers_stages_and_refuses_unknown_keys() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert "stages" in schema["properties"]
    assert schema["additionalProperties"] is False
    assert "algorithm" in schema["$defs"]["StageConfig"]["properties"]
    assert schema["$defs"]["OptimizerConfig"]["properties"]["lr"]["source"] == "configuration guide"


OUTPUT = "buffer.trainer_input.experience_buffer"
VERL_ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
VERL_MODEL = "trainer.trainer_config.actor_rollout_ref.model"
LATER = {
    "mode=colocate": "mode",
    "model.lora_configs=[{lora_dtype: bfloat16}]": "model.lora_configs[0].lora_dtype",
    "explorer.rollout_model.lora_configs=[{}]": "explorer.rollout_model.lora_configs",
    "model.rope_scaling={a: 1}": "model.rope_scaling.a",
    "model.tinker.enable=true": "model.tinker.enable",
    "explorer.rollout_model.engine_type=sglang": "explorer.rollout_model.engine_type",
    "explorer.rollout_model={engine_type: vllm, use_v1: false}": "explorer.rollout_model.use_v1",
    "explorer.rollout_model={engine_type: vllm, nnodes: 2}": "explorer.rollout_model.nnodes",
    "explorer.rollout_model.enable_return_routed_experts=true": "explorer.rollout_model.enable_return_routed_experts",
    "explorer.rollout_model.repetition_penalty=1.5": "explorer.rollout_model.repetition_penalty",
    "model.repetition_penalty=1.5": "model.repetition_penalty",
    "model.rope_theta=1.0e6": "model.rope_theta",
    "model.logprobs=4": "model.logprobs",
    "explorer.auxiliary_models=[{model_path: m, engine_type: tinker}]": "explorer.auxiliary_models[0].engine_type",
    "explorer.auxiliary_models=[{model_path: m}, {model_path: n, logprobs: 2}]": (
        "explorer.auxiliary_models[1].logprobs"
    ),
    f"{VERL_MODEL}.lora_rank=8": f"{VERL_MODEL}.lora_rank",
    f"{VERL_ACTOR}.sum_pi_squared_checkpointing=true": f"{VERL_ACTOR}.sum_pi_squared_checkpointing",
}


@pytest.mark.parametrize(("override", "key"), LATER.items())
def test_later_functions_are_refused_and_never_ignored(examined: Examine, override: str, key: str) -> None:
    strict = examined(MINIMAL, override)[1]
    assert [p.severity for p in strict if p.code == "E1900" and p.key == key] == ["error"]
    soft = examined(MINIMAL, override, schema_only=True)[1]
    assert [p.severity for p in soft if p.code == "E1900" and p.key == key] == ["warning"]


def test_defaults_written_out_need_nothing(examined: Examine) -> None:
    text = MINIMAL + "explorer: {dynamic_timeout: {enable: no}, rollout_model: {engine_num: 1}}\nlog: {level: info}\n"
    assert not [p.render() for p in examined(text)[1] if p.code == "E1900"]


DENIED = {
    "SGLang": "explorer.rollout_model.engine_type=sglang",
    "Tinker": "model.tinker.enable=true",
}
SERVED = {
    "`explore`": "mode=explore",
    "`bench`": "mode=bench",
    "`serve`": "mode=serve",
    "Ray": "cluster.runtime=ray",
    "vLLM": "explorer.rollout_model.engine_type=vllm",
    "nodes": "cluster.node_num=2",
    "tasks of a database": "buffer.explorer_input.taskset.storage_type=sql",
    "sync styles": "synchronizer.sync_style=fully_async",
    "over-rollout": "explorer.over_rollout.ratio=0.1",
    "Data-Juicer": "service.data_juicer.auto_start=true",
    "dynamic timeouts": "explorer.dynamic_timeout.enable=true",
}
PAGES = {
    page: Page(ROOT / page).text.partition("## Not in this version")[2].partition("\n## ")[0]
    for page in ("README.md", "docs/configuration.md")
}


@pytest.mark.parametrize(("words", "override"), DENIED.items())
def test_what_the_page_says_is_not_there_is_refused(examined: Examine, words: str, override: str) -> None:
    assert words in " ".join(PAGES["docs/configuration.md"].split())
    assert "E1900" in {problem.code for problem in examined(MINIMAL, override)[1]}


@pytest.mark.parametrize(("word", "override"), SERVED.items())
def test_what_is_there_is_not_denied(examined: Examine, word: str, override: str) -> None:
    assert "E1900" not in {problem.code for problem in examined(MINIMAL, override)[1]}
    assert not [page for page, section in PAGES.items() if not section or word in section]
