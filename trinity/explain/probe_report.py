"""Results of the loss and task probes: findings, table and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trinity.catalogue import builtin_catalogue
from trinity.catalogue import plugin_dirs as all_plugin_dirs
from trinity.common.config import Finding, Plan, plugin_dirs_of
from trinity.common.config.keys import KEYS
from trinity.common.config.problems import shown_value, unique
from trinity.explain.probe import ProbeReport, ProbeRow, probe_stage
from trinity.explain.task_probe import probe_tasks
from trinity.utils.formula import number
from trinity.utils.plugin_loader import load_plugins


def probe_plan(
    plan: Plan, overrides: tuple[str, ...] = (), *, plugin_dirs: tuple[Path, ...] = ()
) -> tuple[list[ProbeReport], list[Finding]]:
    """Return the loss probe's report per stage, and both probes' findings.

    Raises:
        TrinityError: a plugin cannot be imported.
    """
    plugin_dirs = (*plugin_dirs, *plugin_dirs_of(plan.source, overrides))
    load_plugins(all_plugin_dirs(plugin_dirs))
    catalogue = builtin_catalogue(plugin_dirs)
    reports: list[ProbeReport] = []
    findings: list[Finding] = []
    for index, stage in enumerate(plan.stages):
        report = probe_stage(plan.source, overrides, catalogue=catalogue, index=index)
        reports.append(report)
        findings += [stage.placed(finding) for finding in (*_of_loss(report), *probe_tasks(stage.config))]
    return reports, unique(findings)


def _of_loss(report: ProbeReport) -> Iterator[Finding]:
    if report.failure:
        message = f"the loss of this configuration on the probe's synthetic batch: {report.failure}"
        yield Finding("W1911", str(KEYS.algorithm.policy_loss_fn), message)
    for row in report.rows:
        if row.is_written and row.is_inert:
            message = f"`{row.key}` has no effect on the loss or its gradient: {row.reason}"
            yield Finding("W1910", row.key, message, value=row.value, suggestion="remove it, or change what hides it")


def facts(report: ProbeReport) -> dict[str, Any]:
    """Return a report ready for JSON."""
    rows = [
        {
            "key": row.key,
            "value": shown_value(row.key, row.value),
            "perturbed_to": row.perturbed,
            "gradient_change": _finite(row.gradient),
            "loss_change": _finite(row.loss),
            "moves_nothing": row.is_inert,
            "is_written": row.is_written,
            "reason": row.reason,
        }
        for row in report.rows
    ]
    own = {name: value for name, value in vars(report).items() if name != "rows"}
    return own | {"settings": rows}


def text(report: ProbeReport) -> str:
    """Return a report as a table."""
    title = f"probe of stage {report.stage}" if report.stage else "probe"
    lines = [f"{title}: {report.num_experiences} synthetic experiences, {report.model}"]
    if report.loss is not None and report.gradient_norm is not None:
        lines[0] += f"; loss {report.loss:.6g}, norm of the gradient {report.gradient_norm:.4g}"
    if report.failure:
        lines.append(f"  {report.failure}")
    table = [("setting", "value", "changed to", "gradient", "loss", ""), *(_cells(row) for row in report.rows)]
    widths = [max(len(row[column]) for row in table) for column in range(5)]
    for cells in table if report.rows else []:
        padded = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False))
        lines.append(f"  {padded}  {cells[-1]}".rstrip())
    return "\n".join(lines)


def _cells(row: ProbeRow) -> tuple[str, ...]:
    if row.gradient is None:
        return row.key, _shown(row.value), "-", "-", "-", "no other value could be tried"
    note = ""
    if row.is_inert:
        reason = row.reason or ("" if row.is_written else "a default")
        note = f"NO EFFECT: {reason}" if row.is_written else f"no effect: {reason}"
    return row.key, _shown(row.value), _shown(row.perturbed), _change(row.gradient), _change(row.loss), note


def _shown(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _change(value: float | None) -> str:
    return "0" if not value else ("-" if not math.isfinite(value) else f"{value:.1e}")


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None
