"""Where the components run: in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from trinity.common.config.draft import Draft

RUNTIME = "cluster.runtime"
ADDRESS = "cluster.ray_address"
TIMELINE = "monitor.enable_ray_timeline"
UNNAMED = ("auto", "")


def resolve_runtime(draft: Draft) -> None:
    """Fill the runtime: Ray where a cluster is named, or several machines or GPUs are asked for."""
    nodes, gpus = draft.get("cluster.node_num"), draft.get("cluster.gpu_per_node")
    wanted = draft.get(RUNTIME)
    if wanted == "auto":
        if draft.get(ADDRESS) not in UNNAMED:
            draft.derive(RUNTIME, "ray", "cluster.ray_address names a cluster")
        elif nodes > 1:
            draft.derive(RUNTIME, "ray", "several machines need a cluster")
        elif gpus > 1:
            draft.derive(RUNTIME, "ray", "Ray gives each component its GPUs")
        else:
            draft.derive(RUNTIME, "local", "the processes of one machine need no cluster")
    elif wanted == "local":
        _check_local(draft, nodes=nodes, gpus=gpus)
    if draft.get(TIMELINE) and draft.get(RUNTIME) != "ray":
        draft.problem(
            "W3407",
            TIMELINE,
            f"`{TIMELINE}` has no effect: this run has no Ray",
            involves=(RUNTIME,),
            suggestion="remove it, or write `cluster.runtime: ray`",
        )


def _check_local(draft: Draft, *, nodes: int, gpus: int) -> None:
    if nodes > 1 or gpus > 1:
        draft.problem(
            "E3406",
            RUNTIME,
            f"`{RUNTIME}: local` has one machine and one GPU for all, asked for are {max(nodes, 1)} x {gpus}",
            involves=("cluster.node_num", "cluster.gpu_per_node"),
            suggestion="write `runtime: ray`, or `gpu_per_node: 1`",
        )
    elif draft.get(ADDRESS) not in UNNAMED:
        draft.problem(
            "E3406",
            ADDRESS,
            f"`{ADDRESS}` names a cluster, and `{RUNTIME}: local` uses none",
            involves=(RUNTIME,),
            suggestion="remove one of them",
        )
