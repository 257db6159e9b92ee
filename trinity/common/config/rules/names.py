"""Folders and namespaces of a run."""

from __future__ import annotations

from pathlib import Path

from trinity.common.config.draft import Draft


def derive_names(draft: Draft) -> None:
    """Fill the experiment's name, the job folder, the namespace and the folders below the job."""
    if draft.stage_name:
        name = f"{draft.get('name')}/{draft.stage_name}"
        draft.derive("name", name, "the stage's name is the suffix of the experiment's name")
    root = str(draft.get("checkpoint_root_dir") or "checkpoints")
    absolute = Path(root).expanduser()
    if not absolute.is_absolute():
        absolute = draft.cwd / absolute
    draft.derive("checkpoint_root_dir", str(absolute), "absolute, from the working directory")
    parts = [draft.get("project"), *([draft.get("group")] if draft.get("group") else []), draft.get("name")]
    job = absolute.joinpath(*parts)
    draft.derive("checkpoint_job_dir", str(job), "<checkpoint_root_dir>/<project>[/<group>]/<name>")
    if not draft.get("ray_namespace"):
        draft.derive("ray_namespace", "/".join(parts), "<project>[/<group>]/<name>")
    draft.derive("buffer.cache_dir", str(job / "buffer"), "<job>/buffer")
    draft.derive("monitor.cache_dir", str(job / "monitor"), "<job>/monitor")
    draft.derive("buffer.tokenizer_path", draft.get("model.model_path"), "model.model_path")


def check_model_paths(draft: Draft) -> None:
    """Refuse a run without a model."""
    if not draft.get("model.model_path"):
        draft.problem(
            "E1821",
            "model.model_path",
            "`model.model_path` is missing",
            suggestion="write the folder of a Hugging Face model",
        )
