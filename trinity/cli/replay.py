"""`trinity replay`: a training step once more, and with other settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trinity.cli.options import Job, Overrides, PluginDirs, ended_with

if TYPE_CHECKING:
    from trinity.launch.reuse.replay import Computed, Replayed

MOST_SHOWN = 10
HEADLINES = ("actor/final_loss", "actor/grad_norm", "actor/pg_clipfrac", "actor/ppo_kl", "actor/kl_loss")


def replay(
    job: Job,
    step: Annotated[int, typer.Option("--step", min=1, help="The training step.")],
    set_: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Parquet file for the tokens of the step, to query with SQL.")
    ] = None,
    number: Annotated[int, typer.Option("-n", min=0, help="How many experiences to show.")] = MOST_SHOWN,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    url: Annotated[
        str | None, typer.Option("--url", help="Database URL; needed if config.yaml hides its password.")
    ] = None,
    plugin_dir: PluginDirs = None,
) -> None:
    """Compute a training step again; with --set under other settings.

    The run itself is not changed. The weights before the step come from the newest earlier checkpoint; steps in
    between are trained again. Relative paths are those of the run: call it in the same folder.
    """
    with ended_with():
        from trinity.launch.reuse.past_run import PastRun
        from trinity.launch.reuse.replay import replayed

        run = PastRun.of(job, url=url, plugin_dirs=tuple(plugin_dir or ()))
        found = replayed(run, step, overrides=tuple(set_ or ()))
        written = None
        if output is not None:
            from trinity.launch.reuse.tokens import write_tokens

            written = write_tokens(found, output)
        if as_json:
            typer.echo(json.dumps(_facts(found), indent=2, ensure_ascii=True))
            return
        for line in _lines(found, number):
            typer.echo(line)
        if written is not None:
            typer.echo(f"{output}: {written} tokens")


def _lines(found: Replayed, number: int) -> Iterator[str]:
    yield f"step {found.step}: {len(found.experiences)} experiences, from {found.weights}"
    if found.trained_again:
        yield f"trained again on the way: steps {found.trained_again[0]} to {found.trained_again[-1]}"
    yield _exactness(found)
    if found.other is not None:
        yield f"with {' '.join(found.overrides)}"
        if found.other.num_left_out:
            yield f"{found.other.num_left_out} experiences are left out: their advantage function drops them"
    yield ""
    yield from _metric_lines(found)
    if number:
        yield ""
        yield from _sample_lines(found, number)


def _exactness(found: Replayed) -> str:
    if not found.logged:
        return "the run logged no metrics of this step: nothing to compare with"
    differing, common = found.differing(), len(found.logged.keys() & found.own.metrics.keys())
    if not differing:
        return f"all {common} metrics of the trainer are bitwise identical to those of the run"
    name, (logged, computed) = max(differing.items(), key=lambda item: abs(item[1][0] - item[1][1]))
    reason = found.reason or "software, machine or files are not those of the run"
    most = f"{name} most: {logged:g}, here {computed:g}"
    return f"{len(differing)} of {common} metrics differ from the run's, {most} ({reason})"


def _metric_lines(found: Replayed) -> Iterator[str]:
    own, other = found.own.metrics, {} if found.other is None else found.other.metrics
    names = [name for name in HEADLINES if name in own or name in other]
    rest = sorted(own.keys() | other.keys() - set(names))
    names += [name for name in rest if name not in names and (found.other is None or own.get(name) != other.get(name))]
    width = max(map(len, names))
    yield f"{'':{width}}  {'run':>14}" + (f"  {'changed':>14}" if other else "")
    for name in names:
        values = [own.get(name), *([other.get(name)] if other else [])]
        yield f"{name:{width}}  " + "  ".join(f"{'-' if each is None else format(each, '.6g'):>14}" for each in values)
    if other and own == other:
        yield "these settings have no effect in this step"


def _sample_lines(found: Replayed, number: int) -> Iterator[str]:
    samples = _samples(found)
    yield f"experiences with the largest {'change of their' if found.other else ''} part of the policy loss:".replace(
        "  ", " "
    )
    for each in samples[:number]:
        known = {"reward": each["reward"], "weights": each["model_version"]}
        facts = "  ".join([each["uid"], *(f"{name} {value}" for name, value in known.items() if value is not None)])
        own, other = each["run"], each.get("changed")
        line = f"{facts}  loss {own['loss']:.6g}  clipped {own['clipped']}"
        if found.other is not None:
            line += "  ->  left out" if other is None else f"  ->  loss {other['loss']:.6g}  clipped {other['clipped']}"
        yield line


def _facts(found: Replayed) -> dict[str, Any]:
    return {
        "step": found.step,
        "weights": found.weights,
        "trained_again": found.trained_again,
        "settings": list(found.overrides),
        "logged": found.logged,
        "run": found.own.metrics,
        "changed": None if found.other is None else found.other.metrics,
        "differing": {name: list(pair) for name, pair in found.differing().items()},
        "samples": _samples(found),
    }


def _samples(found: Replayed) -> list[dict[str, Any]]:
    """Return the experiences' parts of the loss, the largest change first."""
    own, other = _parts(found.own), None if found.other is None else _parts(found.other)
    nothing = {"loss": 0.0, "clipped": 0}
    samples = []
    for each in found.experiences:
        uid = each.eid.uid
        sample: dict[str, Any] = {"uid": uid, "reward": each.reward, "model_version": each.info.get("model_version")}
        sample["run"] = own.get(uid, nothing)
        if other is not None:
            sample["changed"] = other.get(uid, nothing)
        samples.append(sample)

    def size(sample: dict[str, Any]) -> float:
        base = sample["run"]["loss"]
        return abs(base if other is None else sample["changed"]["loss"] - base)

    return sorted(samples, key=size, reverse=True)


def _parts(computed: Computed) -> dict[str, dict[str, Any]]:
    """Return each experience's loss and clipped tokens over the step."""
    found: dict[str, dict[str, Any]] = {}
    steps = max((row.optimizer_step for row in computed.rows), default=1)
    for row in computed.rows:
        part = found.setdefault(row.uid, {"loss": 0.0, "clipped": 0})
        part["loss"] += row.loss / steps
        part["clipped"] += row.num_clipped
    return found
