"""Folders and namespaces of a run."""

from __future__ import annotations

from pathlib import Path

from trinity.common.config.draft import Draft

INPUT = "buffer.explorer_input"
AUXILIARY = "buffer.trainer_input.auxiliary_buffers"
LISTS = ("tasksets", "eval_tasksets")
DATABASES = ("sqlite", "postgresql")


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


def check_addresses(draft: Draft) -> None:
    """Refuse addresses such as `hdfs://...` where a folder or a file of this machine is meant."""
    datasets = [f"{INPUT}.taskset", *(f"{INPUT}.{many}[{i}]" for many in LISTS for i in range(_count(draft, many)))]
    keys = [
        "checkpoint_root_dir",
        "model.model_path",
        "model.critic_model_path",
        "trainer.trainer_config.trainer.resume_from_path",
        *(f"{name}.path" for name in datasets),
        *(f"{AUXILIARY}.{n}.path" for n, each in draft.get(AUXILIARY).items() if each.storage_type in (None, "file")),
    ]
    for key in keys:
        written = draft.get(key) if draft.is_given(key) else None
        scheme, mark, rest = written.partition("://") if isinstance(written, str) else ("", "", "")
        if mark and scheme.partition("+")[0] not in DATABASES:
            draft.problem(
                "E1896",
                key,
                f"`{key}` is an address of {scheme}; read and written are folders and files of this machine",
                value=written,
                rule="a folder or a file of this machine",
                suggestion=f"mount or download {rest} and write the path that it has here",
            )


def _count(draft: Draft, many: str) -> int:
    return len(draft.get(f"{INPUT}.{many}") or ())


def check_model_paths(draft: Draft) -> None:
    """Refuse a run without a model."""
    if not draft.get("model.model_path"):
        draft.problem(
            "E1821",
            "model.model_path",
            "`model.model_path` is missing",
            suggestion="write the folder of a Hugging Face model",
        )
