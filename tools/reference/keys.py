"""The page of all keys of the configuration, from the schema: `docs/keys.md`."""

from __future__ import annotations

from typing import Any

from tools.reference.text import code, finished, head, table
from trinity.common.config.base import is_derived
from trinity.common.config.config import Config
from trinity.common.config.dotted import registry_of
from trinity.common.config.help_texts import help_of
from trinity.common.config.schema_index import annotation_at, field_at, fields_of, model_at
from trinity.common.config.tree import Path, dotted
from trinity.explain.keys import explained_key

NAME = "keys"
LEFT_OUT = ("stages", "written")
"""The keys of a stage are those of the file; what a run writes into its own file is no key of a user."""

TEXTS = {
    "en": {
        "title": "Every key of the configuration",
        "intro": """
Every key with its values, default and meaning, made from the schema by `python -m tools.reference`. `trinity explain KEY`
says the same of one key on the terminal, and `trinity config schema` prints all of it as JSON. [Main settings](settings.md)
has the ones that most runs set, [Configuration](configuration.md) says how a file is read, and
[Files of veRL and ModelArts](dialects.md) what happens to theirs.

`[0]` stands for an item of a list, `NAME` for an entry of a mapping. A derived default is computed from other keys, and
`trinity validate` shows it. The keys of an item of `stages` are those of the file, and `stage_name`.""",
        "top": "Top level",
        "head": ("Key", "Values", "Default", "Meaning"),
        "same": "The same keys as [`{other}`](#{anchor}).",
        "derived": "derived",
        "named": "name of a [{kind}](plugin-classes.md)",
        "served": "Served: {values}; others are refused ({why}).",
        "verl": "In veRL: {names}.",
        "between": " ",
        "or": " or ",
        "any": "any",
    },
    "zh": {
        "title": "全部配置项",
        "intro": """
每个配置项的取值、默认值和含义，由 `python -m tools.reference` 从配置的 schema 生成。`trinity explain KEY` 在终端上说明单个配置项，
`trinity config schema` 以 JSON 打印全部内容。[常用配置项](settings.zh.md)列出多数运行会设置的配置项，
[配置](configuration.zh.md)说明文件怎样被读取，[veRL 与 ModelArts 的文件](dialects.zh.md)说明它们的键会变成什么。

`[0]` 表示列表中的一项，`NAME` 表示映射中的一项。“推导”的默认值由其他配置项算出，`trinity validate` 会显示它。
`stages` 中每一项的配置项与文件本身相同，另有 `stage_name`。""",
        "top": "顶层",
        "head": ("配置项", "取值", "默认值", "含义"),
        "same": "与 [`{other}`](#{anchor}) 的配置项相同。",
        "derived": "推导",
        "named": "[{kind}](plugin-classes.zh.md) 的名字",
        "served": "支持：{values}；其他值会被拒绝（{why}）。",
        "verl": "在 veRL 中：{names}。",
        "between": "",
        "or": " 或 ",
        "any": "任意",
    },
}
TYPES = {
    "string": "文本",
    "integer": "整数",
    "number": "数字",
    "boolean": "布尔值",
    "array": "列表",
    "object": "映射",
}


def page(language: str) -> str:
    """Return the page in `en` or `zh`."""
    text = TEXTS[language]
    lines = head(NAME, language, text["title"], text["intro"])
    known: dict[type, str] = {}
    told: list[Path] = []
    for section, names in sections().items():
        if any(section[: len(other)] == other for other in told):
            continue
        model, place = model_at(section), dotted(section)
        level = "##" if len(section) < 2 else "###"
        lines += ["", f"{level} `{place}`" if section else f"## {text['top']}"]
        if model in known:
            other = known[model]
            told.append(section)
            lines += ["", text["same"].format(other=other, anchor=anchor(other))]
            continue
        if section and (meaning := help_of(section, language)):
            lines += ["", meaning]
        if model is not None and section:
            known[model] = place
        lines += table(text["head"], (_row((*section, name), language) for name in names))
    return finished(lines)


def sections() -> dict[Path, list[str]]:
    """Return the names of the keys that hold values, by the path of their section, in the order of the schema."""
    found: dict[Path, list[str]] = {(): []}
    for path, _ in fields_of(Config):
        place = an_instance_of(path)
        if place[0] in LEFT_OUT:
            continue
        if (section := _section_at(place)) is not None:
            found.setdefault(section, [])
        else:
            found.setdefault(place[:-1], []).append(str(place[-1]))
    return {path: names for path, names in found.items() if names}


def an_instance_of(path: Path) -> Path:
    """Return a path with an item of every list, and an entry of every mapping."""
    made: Path = ()
    for part in path:
        item = (*made, 0)
        made = (*made, part) if part != "*" else item if annotation_at(item) is not None else (*made, "NAME")
    return made


def anchor(title: str) -> str:
    """Return what a link names of a heading that is a path."""
    return "".join(letter for letter in title.lower() if letter.isalnum() or letter in "_-")


def _section_at(path: Path) -> Path | None:
    """Return the path of the section that is, or whose items are, at a path."""
    return next(((*path, *end) for end in ((), (0,), ("NAME",)) if model_at((*path, *end)) is not None), None)


def _row(path: Path, language: str) -> tuple[str, str, str, str]:
    text, found = TEXTS[language], explained_key(dotted(path), language)
    field = field_at(path)
    assert field is not None, "sections() yields fields"
    meaning = [found["description"]]
    if found["refused"]:
        values = ", ".join(code(value) for value in dict.fromkeys(map(_hashable, found["served"])))
        meaning.append(text["served"].format(values=values, why=found["refused"]))
    if found["names_in_verl"]:
        meaning.append(text["verl"].format(names=", ".join(map(code, found["names_in_verl"]))))
    default = text["derived"] if is_derived(field) else code(found["default"])
    meaning = [each for each in meaning if each]
    return code(dotted(path)), _values(path, found["values"], language), default, text["between"].join(meaning)


def _values(path: Path, values: list[str], language: str) -> str:
    text, registry = TEXTS[language], registry_of(path)
    shown = []
    for value in values:
        if value == "null" or " | " in value:
            shown.append(", ".join(code(each) for each in value.split(" | ")))
        elif value == "string" and registry:
            shown.append(text["named"].format(kind=registry))
        else:
            name, _, limits = value.partition(" ")
            shown.append(f"{TYPES.get(name, name) if language == 'zh' else name} {limits}".strip())
    return text["or"].join(shown) or text["any"]


def _hashable(value: Any) -> Any:
    return str(value) if isinstance(value, list | dict) else value
