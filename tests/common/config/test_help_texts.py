"""Every key of the shipped schema is explained in Chinese, too."""

from __future__ import annotations

import pytest

from tests.translations import CHINESE, assert_same_names, assert_translated
from trinity.common.config import Config
from trinity.common.config.base import OWN, Section, key
from trinity.common.config.help_texts import english_texts, field_help, help_of, translations
from trinity.common.config.overrides import parse_path
from trinity.common.config.schema_index import fields_of
from trinity.common.config.tree import dotted


def texts_of_keys() -> dict[str, str]:
    """Return every text that a key has, with the first such key."""
    found: dict[str, str] = {}
    for path, field in fields_of(Config):
        for text in english_texts(field):
            found.setdefault(text, dotted(path))
    return found


def test_every_text_of_a_key_has_a_translation_and_every_translation_a_text() -> None:
    assert_translated(texts_of_keys(), translations(), "trinity/common/config/help_zh.json")


def test_every_key_is_explained_in_chinese() -> None:
    english = [
        dotted(path)
        for path, field in fields_of(Config)
        if "<" not in field_help(field) and not CHINESE.search(field_help(field, "zh"))
    ]
    assert not english


def test_names_of_keys_and_values_are_the_same_in_both_languages() -> None:
    assert_same_names(translations())


@pytest.mark.parametrize(
    ("name", "chinese"),
    [
        ("buffer.batch_size", "每个探索步的任务数，>= 1。"),
        ("stages[0].buffer.batch_size", "每个探索步的任务数，>= 1。"),
        ("checkpoint_root_dir", "所有作业目录的根目录；相对路径以工作目录为准；空：checkpoints。"),
        ("algorithm.optimizer.warmup_style", "algorithm.optimizer.lr_scheduler_type 的旧名称。"),
        ("algorithm.rollout_correction.bypass_mode", "对数概率在损失中修正；null：由预设决定，没有则为否。"),
        ("algorithm.rollout_correction.rollout_is_batch_normalize", "权重是否除以其均值；null：否。"),
        ("explorer.rollout_model.seed", "采样的随机种子；null：seed。"),
        ("explorer.rollout_model.temperature", "同 model.temperature；null：继承其值。"),
        ("trainer.trainer_config.trainer.project_name", "由 project 设定。"),
        ("trainer.trainer_config.critic.ppo_micro_batch_size_per_gpu", "每次前向计算的经验数；null：8。"),
    ],
)
def test_a_text_says_where_the_value_of_an_absent_key_is_from(name: str, chinese: str) -> None:
    path = parse_path(name)
    assert path is not None and help_of(path, "zh").endswith(chinese)


def test_a_key_without_a_translation_is_explained_in_english() -> None:
    class Added(Section):
        own: int = key(1, "How many of ours.", OWN)
        inherited: int | None = key(None, "", OWN, default_from="seed")

    assert field_help(Added.model_fields["own"], "zh") == "How many of ours."
    assert field_help(Added.model_fields["inherited"], "zh") == "同 seed；null：继承其值。"
