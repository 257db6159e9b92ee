"""`trinity convert`: files of one tool as files of another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.options import ConfigFile, File, Overrides, Words, chosen_with_words, ended_with
from trinity.common.errors import ExitCode
from trinity.utils.log import redact

_DTYPES = ("keep", "float32", "bfloat16", "float16")

convert_app = typer.Typer(help="Convert configuration files and checkpoints between tools.", no_args_is_help=True)


@convert_app.command("config")
def convert_config(
    file: File = None,
    words: Words = None,
    config: ConfigFile = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: print it.")] = None,
    to: Annotated[
        str, typer.Option("--to", help="Format to convert to: trinity, verl or modelarts.", show_default=True)
    ] = "trinity",
    set_: Overrides = None,
) -> None:
    """Convert a configuration file of Trinity, veRL or ModelArts."""
    from trinity.launch.dialects import DIALECTS, Converted, from_foreign, to_foreign

    if to not in DIALECTS:
        raise typer.BadParameter(f"{to} is none of {', '.join(DIALECTS)}", param_hint="--to")
    with ended_with():
        path, overrides = chosen_with_words(file, config, words, set_)
        made: Converted = from_foreign(path, overrides) if to == "trinity" else to_foreign(path, overrides, to=to)
        for problem in made.problems:
            typer.echo(problem.render(), err=True)
        errors = [problem for problem in made.problems if problem.is_error]
        text = redact(made.text)
        if output is None:
            typer.echo(text, nl=False)
        elif not errors:
            if to == "trinity":
                from trinity.explain.editor_schema import SCHEMA_LINE, write_schema

                text = f"{SCHEMA_LINE}\n{text}"
                typer.echo(f"{write_schema(output.parent)}: what editors know of its keys")
            output.write_text(text, encoding="utf-8")
            typer.echo(f"{output}: written from {path} ({made.source})")
        raise typer.Exit(int(errors[0].exit_code if errors else ExitCode.DONE))


@convert_app.command("checkpoint")
def convert_checkpoint(
    source: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Checkpoint folder global_step_N of Trinity or veRL, or a job folder."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
    part: Annotated[str, typer.Option("--part", help="Model to convert: actor or critic.")] = "actor",
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Step of the checkpoint, for a job folder; default: the newest.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Folder of the model that was trained; needed if the checkpoint lacks its config files."
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="Data type of the weights: keep, float32, bfloat16 or float16.")
    ] = "keep",
    max_shard_size: Annotated[
        str, typer.Option("--max-shard-size", help="Largest size of a weight file, such as 5GB.")
    ] = "5GB",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Allow the model folder's own Python code to run.")
    ] = False,
    push: Annotated[
        str | None, typer.Option("--push", help="Upload the result to the Hugging Face Hub, as owner/name.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert a checkpoint of Trinity or veRL to Hugging Face format."""
    for value, known, hint in ((part, ("actor", "critic"), "--part"), (dtype, _DTYPES, "--dtype")):
        if value not in known:
            raise typer.BadParameter(f"must be one of {', '.join(known)}, got {value!r}", param_hint=hint)
    with ended_with():
        from trinity.launch.conversion.exporting import ExportRequest, export_checkpoint
        from trinity.launch.conversion.pushing import check_target
        from trinity.launch.conversion.pushing import push as push_to_hub

        if push is not None:
            check_target(push)
        asked = ExportRequest(source, output, part, step, model, dtype, max_shard_size, trust_remote_code)
        done = export_checkpoint(asked)
        told = done.as_json() | {"pushed": None}
        if push is not None:
            message = f"Checkpoint of step {done.step}" if done.step is not None else "Checkpoint"
            told["pushed"] = push_to_hub(output, push, is_private=private, message=message)
        if is_json:
            typer.echo(json.dumps(told, indent=2, sort_keys=True))
            return
        size = sum(facts["size"] for facts in done.files.values()) / 2**20
        ranks = f", from {done.num_ranks} ranks" if done.num_ranks else ""
        typer.echo(f"{output}: {done.num_tensors} tensors, {size:.1f} MiB in {len(done.files)} files{ranks}")
        if done.num_kept:
            typer.echo(f"{done.num_kept} files were there already")
        for name, rows in done.cut.items():
            typer.echo(f"{name}: {rows} rows kept, as config.json has them; the others are padding")
        if told["pushed"]:
            typer.echo(f"pushed to {told['pushed']}")
