"""Which operators of Data-Juicer the server runs unasked.

Imported by the server too, in an environment that has neither this package nor its dependencies: so it imports
nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

PROTOCOL = 2
"""Of requests and answers; client and server must have the same."""

_CODE = "it runs code that its arguments give"
_COMMAND = "its arguments are those of a program that it starts"
_FETCHES = "it fetches from addresses that the rows name"
_SENDS = "it sends the rows to another machine"
_CLUSTER = "it starts engines on a cluster of its own"
_FILES = "it writes files"

REFUSED: Mapping[str, str] = {
    "python_lambda_mapper": _CODE,
    "python_file_mapper": _CODE,
    "image_ohem_selector": _CODE,
    "general_fused_op": "it runs operators that are not looked at",
    "audio_ffmpeg_wrapped_mapper": _COMMAND,
    "video_ffmpeg_wrapped_mapper": _COMMAND,
    "download_file_mapper": _FETCHES,
    "s3_download_file_mapper": _FETCHES,
    "s3_upload_file_mapper": _SENDS,
    "human_preference_annotation_mapper": _SENDS,
    "export_to_lerobot_mapper": _FILES,
    "llm_ray_vllm_engine_pipeline": _CLUSTER,
    "vlm_ray_vllm_engine_pipeline": _CLUSTER,
}
"""Operators that run only where `allowed_operators` names them, and why."""

_LOADS = "it loads a model with the code that comes with it"
REFUSED_ARGUMENTS: Mapping[str, str] = {
    "trust_remote_code": _LOADS,
    "is_hf_model": _LOADS,
    "enable_vllm": _LOADS,
    "runtime_env": "it installs packages",
    "stats_export_path": _FILES,
    "original_data_save_path": _FILES,
    "work_dir": _FILES,
    "save_dir": _FILES,
    "output_dir": _FILES,
    "score_file": _CODE,
    "seed_file": "it reads a file",
}
"""Arguments with which an operator runs only where `allowed_operators` names it."""

JOINING = ("Grouper", "Aggregator", "Pipeline")
"""Bases of operators whose rows are no longer those that came."""


def refusal(name: str, args: Mapping[str, Any], *, allowed: Collection[str]) -> str:
    """Return why an operator is not run; empty if it is.

    Args:
        name: of the operator.
        args: its arguments.
        allowed: operators that may do anything.
    """
    if name in allowed:
        return ""
    if name in REFUSED:
        return f"the operator {name} is refused: {REFUSED[name]}"
    params = args.get("model_params")
    given = {**args, **params} if isinstance(params, Mapping) else args
    for argument, why in REFUSED_ARGUMENTS.items():
        if given.get(argument):
            return f"the argument {argument} of the operator {name} is refused: {why}"
    return ""


class Refused(Exception):
    """A request that the server does not serve.

    Args:
        status: of the HTTP answer.
        message: why.
        kind: one word for programs.
    """

    def __init__(self, status: int, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind
