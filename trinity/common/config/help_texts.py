"""Help texts of the configuration's keys, in English and other languages.

The English text of a key stands at its declaration. `help_zh.json` has the Chinese of each such text; a text that it
lacks is shown in English.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from trinity.common.config.base import Facts, facts_of
from trinity.common.config.schema_index import field_at
from trinity.common.config.tree import Path
from trinity.utils.translations import chinese_texts

LANGUAGES = ("en", "zh")
_TRUTH = {False: "否", True: "是"}


def help_of(path: Path, language: str = "en") -> str:
    """Return what a key means; empty for a key without a text.

    Args:
        path: of the key, or of an item below it, whose text is that of its section.
        language: one of `LANGUAGES`; the text is English where the language has none.
    """
    field = field_at(path)
    return "" if field is None else field_help(field, language)


def field_help(field: FieldInfo, language: str = "en") -> str:
    """Return what a declared key means; empty for a key without a text."""
    english = field.description or ""
    return english if language != "zh" else _chinese(field) or english


def field_source(field: FieldInfo, language: str = "en") -> str:
    """Return where the default of a declared key comes from."""
    source = _extra(field).get("source", "")
    return str(source if language != "zh" else translations().get(source, source))


def english_texts(field: FieldInfo) -> tuple[str, ...]:
    """Return the texts of a declared key that have a translation each."""
    extra = _extra(field)
    return tuple(text for text in (extra.get("text", field.description or ""), extra.get("source", "")) if text)


def translations() -> Mapping[str, str]:
    """Return the Chinese of each English text."""
    return chinese_texts("trinity.common.config")


def _chinese(field: FieldInfo) -> str | None:
    """Return the Chinese text of a key; `None`: it has no translation."""
    extra, facts = _extra(field), facts_of(field)
    if "text" not in extra:
        return translations().get(field.description or "")
    if not extra["text"]:
        return _of_other_key(facts)
    text = translations().get(extra["text"])
    return None if text is None else text.removesuffix("。") + _addition(facts, field, text)


def _of_other_key(facts: Facts) -> str:
    """Return the text of a key that has none but its relation to another."""
    if facts.renamed is not None:
        said = {"older": "的旧名称", "veRL": "在 veRL 中的名称"}.get(facts.renamed.said, "的另一个名称")
        return f"{facts.renamed.new} {said}。"
    if facts.set_from is not None:
        return f"由 {facts.set_from} 设定。"
    return f"同 {facts.mirrors or facts.default_from}；null：继承其值。"


def _addition(facts: Facts, field: FieldInfo, text: str) -> str:
    """Return the end of a text: where the value of an absent key is from."""
    if facts.set_from is not None:
        return f"；由 {facts.set_from} 设定。"
    if facts.fallback is None:
        return f"；null：{facts.mirrors or facts.default_from}。"
    shown = _TRUTH[facts.fallback] if isinstance(facts.fallback, bool) else f" {facts.fallback}"
    joint = "，没有则为" if "null：" in text else "；null：" if field.default is None else "；空："
    shown = shown if joint.endswith("为") else shown.lstrip()
    return f"{joint}{shown}。"


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
