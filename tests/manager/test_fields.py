"""The studio's fields are those of the schema."""

from __future__ import annotations

import pytest

from trinity.common.config import Config
from trinity.common.config.base import is_derived
from trinity.common.config.schema_index import facts_at, fields_of, model_at
from trinity.common.config.tree import dotted
from trinity.manager.fields import PARTS, computed_keys, field_of_finding, fields_by_key, fields_by_name, form_fields
from trinity.manager.studio.words import ESSENTIAL, IMPORTANT


def test_every_key_that_a_user_may_choose_has_a_field() -> None:
    """The others are computed, an older name, or have one value."""
    fields, left_out = fields_by_key(), dict[str, str]()
    for path, field in fields_of(Config):
        if "*" in path or model_at(path) is not None or dotted(path) in fields or path[-1] == "written":
            continue
        facts = facts_at(path)[1]
        default = field.get_default()
        others = () if facts.support is None else [each for each in facts.support.only if each != default]
        reasons = {"computed": is_derived(field), "renamed": facts.renamed is not None}
        reasons["one value"] = facts.support is not None and not others
        left_out[dotted(path)] = next((name for name, holds in reasons.items() if holds), "")
    assert left_out and "" not in left_out.values(), [key for key, why in left_out.items() if not why]
    assert len(fields) > 250


def test_names_are_unique_and_the_last_part_of_the_key_nearest_to_the_top() -> None:
    fields = form_fields()
    assert len({field.name for field in fields}) == len({field.key for field in fields}) == len(fields)
    keys = {name: field.key for name, field in fields_by_name().items()}
    assert keys["train_batch_size"] == "buffer.train_batch_size" and keys["total_epochs"] == "buffer.total_epochs"
    assert keys["temperature"] == "model.temperature" and keys["name"] == "name"
    assert "explorer.rollout_model.temperature" in keys and computed_keys()["trainer_gpu_num"][0] == "cluster"


@pytest.mark.parametrize(
    ("key", "kind", "facts"),
    [
        ("buffer.batch_size", "integer", {"least": 1, "most": None, "default": 1}),
        ("algorithm.optimizer.lr", "number", {"least": 0, "default": 1e-6}),
        ("explorer.rollout_model.gpu_memory_utilization", "number", {"least": None, "most": 1}),
        ("mode", "choice", {"choices": ("both", "train", "explore", "bench", "serve"), "is_open": False}),
        ("deterministic", "choice", {"choices": (True, False)}),
        ("algorithm.algorithm_type", "choice", {"is_open": True}),
        ("buffer.explorer_input.taskset.path", "text", {"default": None}),
        ("buffer.explorer_input.eval_tasksets", "yaml", {}),
        ("algorithm.policy_loss_fn_args", "yaml", {}),
        ("algorithm.optimizer.betas", "yaml", {}),
        ("stages", "yaml", {}),
        ("explorer.rollout_model.api_key", "text", {"is_secret": True}),
        ("data_processor.task_pipeline.top_k", "integer", {"least": -1}),
    ],
)
def test_kind_choices_limits_and_default_are_those_of_the_schema(key: str, kind: str, facts: dict[str, object]) -> None:
    field = fields_by_key()[key]
    assert field.kind == kind and {name: getattr(field, name) for name in facts} == facts and field.help()


def test_a_value_that_a_widget_cannot_show_is_known() -> None:
    batch, lr, mode, path = (
        fields_by_key()[key]
        for key in ("buffer.batch_size", "algorithm.optimizer.lr", "mode", "buffer.explorer_input.taskset.path")
    )
    assert batch.holds(8) and not batch.holds(0) and not batch.holds("${oc.env:N}") and not batch.holds(True)
    assert not batch.holds(2**60) and lr.holds(1) and not lr.holds(-1.0) and lr.holds(None)
    assert mode.holds("both") and not mode.holds("colocate") and path.holds("a") and not path.holds(["a", "b"])


def test_parts_and_the_beginners_fields_are_of_the_schema() -> None:
    assert {section for sections in PARTS.values() for section in sections} <= set(Config.model_fields)
    assert {**ESSENTIAL, **IMPORTANT}.keys() <= fields_by_key().keys()


def test_a_problem_belongs_to_the_nearest_field_around_its_key() -> None:
    shown = {"stages": None, "buffer.explorer_input.taskset.path": None}
    assert field_of_finding("stages[1].model.x", shown) == "stages"
    assert field_of_finding("buffer.explorer_input.taskset.path[0]", shown) == "buffer.explorer_input.taskset.path"
    assert field_of_finding("buffer.explorer_input.taskset", shown) is None and field_of_finding("", shown) is None
