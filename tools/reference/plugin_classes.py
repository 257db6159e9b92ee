"""The page of registries, base classes and registered names: `docs/plugin-classes.md`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.contents import PACKAGES
from tools.reference.signatures import called, in_language, methods, summary
from tools.reference.text import code, finished, head, table
from trinity.common.config.dotted import KEYS_OF_NAMES
from trinity.utils.entry import Entry
from trinity.utils.kinds import KINDS
from trinity.utils.registry import Registry

NAME = "plugin-classes"


@dataclass(frozen=True)
class Shown:
    """How the page shows a registry.

    Attributes:
        title: heading, in English and Chinese.
        bases: places of the base classes that plugins derive from.
        package: where plugins import the registry from; "": from the package that has its contents.
    """

    title: tuple[str, str]
    bases: tuple[str, ...]
    package: str = ""


SHOWN = {
    "workflow": Shown(
        ("Workflows", "工作流"),
        tuple(
            f"trinity.common.workflows.workflow:{name}" for name in ("Workflow", "SimpleWorkflow", "MultiTurnWorkflow")
        ),
    ),
    "reward_fn": Shown(("Reward functions", "奖励函数"), ("trinity.common.rewards:RewardFn",)),
    "reward_model": Shown(("Reward models", "奖励模型"), ("trinity.common.models.reward_models:RewardModel",)),
    "operator": Shown(
        ("Experience operators", "经验算子"),
        ("trinity.buffer.operators:ExperienceOperatorV1", "trinity.buffer.operators:ExperienceOperator"),
    ),
    "selector": Shown(("Task selectors", "任务选择器"), ("trinity.buffer.selector:BaseSelector",)),
    "algorithm_type": Shown(("Algorithm types", "算法类型"), ("trinity.algorithm:AlgorithmType",)),
    "advantage_fn": Shown(
        ("Advantage functions", "优势函数"),
        ("trinity.algorithm.advantage_fn:GroupAdvantage", "trinity.algorithm.advantage_fn:AdvantageFn"),
    ),
    "policy_loss_fn": Shown(("Policy losses", "策略损失"), ("trinity.algorithm.policy_loss_fn:PolicyLossFn",)),
    "kl_fn": Shown(("KL functions", "KL 函数"), ("trinity.algorithm.kl_fn:KLFn",)),
    "entropy_loss_fn": Shown(("Entropy losses", "熵损失"), ("trinity.algorithm.entropy_loss_fn:EntropyLossFn",)),
    "sample_strategy": Shown(("Sample strategies", "采样策略"), ("trinity.algorithm.sample_strategy:SampleStrategy",)),
    "priority_fn": Shown(("Priorities of replay", "回放优先级"), ("trinity.buffer.priority:PriorityFunction",)),
    "monitor": Shown(("Monitors", "监视器"), ("trinity.monitor:MonitorBackend",), "trinity.utils.monitor"),
}
"""The registries, by kind, in the order of the page."""

TEXTS = {
    "en": {
        "title": "Registries and base classes",
        "intro": """
Every registry with its base classes and registered names, made from the source by `python -m tools.reference`.
[Plugins](plugins.md) has the smallest complete plugin of every kind, and [Workflows](workflows.md#plugins) says what a class
declares. Descriptions are the first lines of the docstrings.""",
        "registry": "Registry: `{place}`. Named by: {keys}.",
        "base": "Base class `{place}`:",
        "methods": ("Method", "What it does"),
        "names": ("Name", "Arguments and defaults", "Needs", "What it is"),
        "types": ("Name", "What it is"),
        "operators": "`name` of an entry of `data_processor.experience_pipeline.operators`",
        "older": "older name of {name}",
        "required": "required",
        "between": "; ",
    },
    "zh": {
        "title": "注册表与基类",
        "intro": """
每个注册表及其基类和已注册的名字，由 `python -m tools.reference` 从源码生成。[插件](plugins.zh.md)有每一种插件的最小完整示例，
[工作流](workflows.zh.md#插件)说明一个类可以声明什么。说明取自源码文档字符串的第一行。""",
        "registry": "注册表：`{place}`。由这些配置项指定：{keys}。",
        "base": "基类 `{place}`：",
        "methods": ("方法", "作用"),
        "names": ("名字", "参数与默认值", "需要", "是什么"),
        "types": ("名字", "是什么"),
        "operators": "`data_processor.experience_pipeline.operators` 中一项的 `name`",
        "older": "{name} 的旧名字",
        "required": "必填",
        "between": "；",
    },
}


def registries() -> dict[str, tuple[str, Registry]]:
    """Return package and registry by kind."""
    found = {registry.kind: (package, registry) for package, each in PACKAGES.items() for registry in each}
    return {kind: found[kind] for kind in SHOWN}


def page(language: str) -> str:
    """Return the page in `en` or `zh`."""
    text = TEXTS[language]
    lines = head(NAME, language, text["title"], text["intro"])
    for kind, (package, registry) in registries().items():
        shown = SHOWN[kind]
        place = f"{shown.package or package}.{KINDS[kind].variable}"
        keys = [code(name) for name, of in KEYS_OF_NAMES.items() if of == kind] or [text["operators"]]
        lines += ["", f"## {shown.title[language == 'zh']}", ""]
        lines.append(text["registry"].format(place=place, keys=", ".join(keys)))
        for base in shown.bases:
            cls = loaded(base)
            lines += ["", text["base"].format(place=base.replace(":", "."))]
            lines += table(
                text["methods"], ((code(called(name, each)), summary(each, language)) for name, each in methods(cls))
            )
        lines += _names(kind, registry, language)
    return finished(lines)


def loaded(place: str) -> type:
    """Return the class at `package.module:Class`."""
    module, _, name = place.partition(":")
    cls: type = getattr(importlib.import_module(module), name)  # some modules import lazily
    return cls


def _names(kind: str, registry: Registry, language: str) -> list[str]:
    text = TEXTS[language]
    entries = entries_of(registry)
    if kind == "algorithm_type":
        return table(text["types"], ((code(name), _what(entry, language)) for name, entry in entries.items()))
    rows = (
        (
            code(name),
            ", ".join(_arguments(entry, text)),
            ", ".join(map(code, sorted(entry.reads))),
            _what(entry, language),
        )
        for name, entry in entries.items()
    )
    return table(text["names"], rows)


def entries_of(registry: Registry) -> dict[str, Entry]:
    """Return the entries of a registry that are of the package, by name: tests register others."""
    return {name: registry.contents[name] for name in registry.contents if not _is_plugin(registry.contents[name])}


def _is_plugin(entry: Entry) -> bool:
    return not entry.path.startswith("trinity.") or entry.path.startswith("trinity.plugins.")


def _arguments(entry: Entry, text: dict[str, Any]) -> Iterator[str]:
    for name in sorted(entry.required):
        yield f"{code(name)} ({text['required']})"
    for name, default in entry.args.items():
        yield f"{code(name)} = {code(default)}"


def _what(entry: Entry, language: str) -> str:
    text = TEXTS[language]
    parts = [in_language(entry.doc, language)] if entry.doc else []
    parts += [entry.source] if entry.source else []
    is_told = not entry.deprecated_for or entry.deprecated_for in entry.doc
    parts += [] if is_told else [text["older"].format(name=code(entry.deprecated_for))]
    return text["between"].join(part.rstrip(".。") for part in parts)
