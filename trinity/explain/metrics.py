"""What a metric means, from `metrics.yaml`.

An entry has unit, formula, step axis, healthy values and names elsewhere. Every metric that is written here has one, a
family of them where a part of the name depends on the run.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import yaml

from trinity.common.errors import ConfigError
from trinity.monitor.verl_names import SAME
from trinity.summary.words import Text

SPREAD = ("mean", "max", "min")
DETAILED = ("std", "p10", "p50", "p90")
"""Further ends with `monitor.detailed_stats`; what is evaluated has those of `SPREAD` then, too."""

PARTS: Mapping[str, str] = {"<part>": "usual|expert", "<number>": r"\d+", "<n>": r"\d+", "<k>": r"\d+"}
"""What a placeholder stands for; all others for one part of a name."""

ALIKE = (
    (r"bench/(.+)", r"eval/\1"),
    (r"eval/[^/]+/((?:.+_count|time/.+))", r"rollout/\1"),
    (r"rollout/[^/]+/((?:finished_task_count|[^/]+/(?:mean|max|min|std|p[159]0)))", r"rollout/\1"),
    (r"experience_pipeline/[^/]+/(.+)", r"experience_pipeline/\1"),
    (r"sample/expert_(overlong_count|quarantined_row_count)", r"sample/\1"),
)
"""Names that mean the same as others, of another set of tasks or rows or of one operator."""

WORDS = {
    "unit": Text("unit: ", "单位："),
    "formula": Text("formula: ", "公式："),
    "steps": Text("step axis: ", "步的含义："),
    "healthy": Text("healthy: ", "健康范围："),
    "in_trl": Text("in TRL: ", "在 TRL 中："),
    "in_verl": Text("in veRL: ", "在 veRL 中："),
    "near": Text("near to it: ", "相近的名字："),
    "plain": Text("none", "无"),
    "colon": Text(": ", "："),
    "explore": Text("explore steps", "探索步"),
    "training": Text("training steps", "训练步"),
    "both": Text("explore steps (explorer) or training steps (trainer)", "探索步（explorer）或训练步（trainer）"),
}
"""What is said around an explained metric."""


@dataclass(frozen=True)
class Metric:
    """A metric, or a family of them.

    Attributes:
        name: with placeholders such as `<taskset>`; without `/mean` and the like.
        meaning: what it is.
        unit: empty for a plain number.
        formula: how it is computed; empty: the meaning says it.
        spread: there are mean, maximum and minimum.
        healthy: what a good run shows; None: nothing in particular.
        trl: name in TRL; empty: it has none.
        verl: name in veRL, if it differs.
        is_open: plugins choose the names; what is written here has an entry of its own.
        steps: key of `WORDS`: what is counted on the axis.
    """

    name: str
    meaning: Text
    steps: str
    unit: str = ""
    formula: str = ""
    spread: bool = False
    healthy: Text | None = None
    trl: str = ""
    verl: str = ""
    is_open: bool = False

    @property
    def shown(self) -> str:
        """The name with all its ends."""
        return f"{self.name}/{{{','.join(SPREAD)}}}" if self.spread else self.name

    @property
    def num_placeholders(self) -> int:
        """How many parts of the name depend on the run."""
        return self.name.count("<")

    def fits(self, name: str) -> bool:
        """Return whether a written name is of this metric."""
        return self._pattern.fullmatch(name) is not None

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        words = re.split(r"(<\w+>)", self.name)
        parts = [f"(?:{PARTS.get(word, '[^/]+')})" if word.startswith("<") else re.escape(word) for word in words]
        ends = f"(?:/(?:{'|'.join((*SPREAD, *DETAILED))}))?" if self.spread or "@" in self.name else ""
        return re.compile("".join(parts) + ends)


@dataclass(frozen=True)
class MetricGroup:
    """Metrics that belong together.

    Attributes:
        title: a heading.
        about: what holds for all of them.
        steps: key of `WORDS`: what is counted on the axis.
        metrics: in the order of the file.
    """

    title: Text
    about: Text
    steps: str
    metrics: tuple[Metric, ...] = field(default=())


@functools.cache
def groups() -> tuple[MetricGroup, ...]:
    """Return all metrics by group."""
    text = files(__package__).joinpath("metrics.yaml").read_text(encoding="utf-8")
    return tuple(_group(row) for row in yaml.safe_load(text))


def find(name: str) -> Metric | None:
    """Return the metric that a written name is of; None: it is unknown.

    Of several it is the one with the fewest placeholders. One of names that plugins choose is found last of all.
    """
    fitting = [metric for metric in _metrics() if metric.fits(name) or name == metric.name]
    ours = [metric for metric in fitting if not metric.is_open]
    if ours:
        return min(ours, key=lambda metric: metric.num_placeholders)
    for pattern, other in ALIKE:
        if re.fullmatch(pattern, name) and (found := find(re.sub(pattern, other, name))) is not None:
            return found
    same = next((ours for ours, theirs in SAME.items() if theirs == name), None)
    if same is not None:
        return find(same)
    return min(fitting, key=lambda metric: metric.num_placeholders, default=None)


def explained_metric(name: str, language: str = "en") -> dict[str, Any]:
    """Return what is known of a metric, in JSON types.

    Args:
        name: as it is written, such as `actor/kl_loss`.
        language: `en` or `zh`.

    Raises:
        ConfigError: nothing writes such a metric (E1015); with the nearest names.
    """
    metric = find(name)
    near = difflib.get_close_matches(name, [each.name for each in _metrics()], n=3)
    if metric is None:
        meant = f"; near to it: {', '.join(near)}" if near else ""
        raise ConfigError(
            f"{name!r} is no metric of this version{meant}; docs/metrics.md has all of them", code="E1015"
        )
    return {
        "metric": name,
        "family": metric.shown,
        "description": said(metric.meaning, language),
        "unit": metric.unit,
        "formula": metric.formula,
        "steps": said(WORDS["training" if name.startswith("bench/") else metric.steps], language),
        "healthy": "" if metric.healthy is None else said(metric.healthy, language),
        "name_in_trl": metric.trl,
        "name_in_verl": verl_name(metric),
        "near": ", ".join(near) if metric.is_open else "",
    }


def metric_lines(found: Mapping[str, Any], language: str = "en") -> Iterator[str]:
    """Yield an explained metric as text."""
    yield f"{found['metric']}{said(WORDS['colon'], language)}{found['description']}"
    yield f"  {said(WORDS['unit'], language)}{found['unit'] or said(WORDS['plain'], language)}"
    yield f"  {said(WORDS['steps'], language)}{found['steps']}"
    for name, word in (
        ("formula", "formula"), ("healthy", "healthy"), ("name_in_trl", "in_trl"), ("name_in_verl", "in_verl"),
        ("near", "near"),
    ):  # fmt: skip
        if found[name]:
            yield f"  {said(WORDS[word], language)}{found[name]}"


def verl_name(metric: Metric) -> str:
    """Return what veRL calls a metric, if it is not the same."""
    return metric.verl or SAME.get(metric.name, "")


def said(text: Text, language: str) -> str:
    """Return a text in a language."""
    return text.zh if language == "zh" else text.en


def _metrics() -> Iterator[Metric]:
    for group in groups():
        yield from group.metrics


def _group(row: Mapping[str, Any]) -> MetricGroup:
    steps = row["steps"]
    return MetricGroup(
        Text(**row["part"]), Text(**row["about"]), steps, tuple(_metric(each, steps) for each in row["metrics"])
    )


def _metric(row: Mapping[str, Any], steps: str) -> Metric:
    rest = {name: row[name] for name in ("unit", "formula", "spread", "trl", "verl") if name in row}
    healthy = Text(**row["healthy"]) if "healthy" in row else None
    meaning = Text(row["en"], row["zh"])
    return Metric(row["name"], meaning, steps, healthy=healthy, is_open=row.get("open", False), **rest)
