"""`trinity estimate`: the memory of a run by part, before it is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trinity.cli.options import ConfigFile, File, Overrides, PluginDirs, Words, chosen_with_words, ended_with
from trinity.utils.log import redact

if TYPE_CHECKING:
    from trinity.launch.estimation import StageEstimate
    from trinity.preflight.estimate.parts import PlacedMemory


def estimate(
    file: File = None,
    words: Words = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    like: Annotated[
        Path | None, typer.Option("--like", help="Folder of an earlier job, to estimate steps per hour from.")
    ] = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option("--gpu-memory", min=0.5, help="Memory of a GPU in GiB; default: that of this machine's GPUs."),
    ] = None,
    set_: Overrides = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Estimate the memory of a run, by part and process.

    It reads the models' `config.json`, no weights, and starts nothing.
    """
    path, overrides = chosen_with_words(file, config, words, set_)
    card = None if gpu_memory is None else int(gpu_memory * 2**30)
    with ended_with(shows_log=False):
        from trinity.launch.estimation import estimate as estimated

        folders = tuple(plugin_dir or ())
        stages, found = estimated(path, overrides, plugin_dirs=folders, like=like, card_bytes=card)
        if as_json:
            facts = {"stages": [stage.facts() for stage in stages], "problems": [each.to_dict() for each in found]}
            typer.echo(redact(json.dumps(facts, indent=2, ensure_ascii=False)))
        else:
            typer.echo(redact("\n\n".join("\n".join(_lines(stage)) for stage in stages)))


def _lines(stage: StageEstimate) -> list[str]:
    from trinity.utils.memory import shown_bytes

    model, limits = stage.models.policy, stage.limits
    lines = [f"stage {stage.stage}"] if stage.stage else []
    lines.append(
        f"model: {model.kind}, {model.num_parameters / 1e6:.6g} M parameters (counted by {model.counted_by}), "
        f"{model.layers} layers of {model.hidden}, vocabulary {model.vocabulary}"
    )
    for place in stage.places:
        lines += _table(place)
    have = f" of {shown_bytes(limits.host_bytes)}" if limits.host_bytes else ""
    lines.append(f"memory of the machine, all processes together: {shown_bytes(stage.host_bytes)}{have}")
    if stage.device_bytes:
        card = (
            f", of {shown_bytes(limits.card_bytes)} each" if limits.card_bytes else "; --gpu-memory says what one has"
        )
        lines.append(f"memory of all GPUs together: {shown_bytes(stage.device_bytes)}{card}")
    pace = f"{stage.speed.per_hour:.3g} ({stage.speed.num_steps} steps, " if stage.speed else ""
    lines.append(f"steps per hour: {pace}{stage.speed_note}{')' if stage.speed else ''}")
    lines += [f"advice: {each.text}" for each in stage.advice]
    return lines


def _table(place: PlacedMemory) -> list[str]:
    count = f"{place.count} x " if place.count > 1 else ""
    where = "" if place.place == "host" else f", {place.place}"
    lines = [f"{count}{place.process}{where}: {place.num_bytes / 2**20:,.0f} MiB"]
    for part in place.parts:
        when = "" if part.is_loading and part.is_working else ", while loading" if part.is_loading else ""
        rule = f", {part.rule}" if part.rule else ""
        lines.append(f"  {part.name:<30}{part.num_bytes / 2**20:>11,.1f} MiB  ({part.how}{when}{rule})")
    return lines
