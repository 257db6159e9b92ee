"""Section `synchronizer`: how new weights reach the explorer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from trinity.common.config.base import GUIDE, OWN, TRINITY, Count, IdleWith, Natural, Positive, Section, key, only

METHOD_ALIASES = {"online": "nccl", "offline": "checkpoint"}
STYLE_ALIASES = {"explorer_driven": "dynamic_by_explorer", "trainer_driven": "dynamic_by_trainer"}


def _method(value: Any) -> Any:
    return METHOD_ALIASES.get(value, value) if isinstance(value, str) else value


def _style(value: Any) -> Any:
    return STYLE_ALIASES.get(value, value) if isinstance(value, str) else value


class SynchronizerConfig(Section):
    """Transport, interval and deadline of weight synchronisation."""

    sync_method: Annotated[Literal["auto", "nccl", "checkpoint", "memory"], BeforeValidator(_method)] = key(
        "auto", "Transport; auto: memory in one process, else checkpoint or nccl.", OWN
    )
    sync_style: Annotated[
        Literal["fixed", "dynamic_by_explorer", "dynamic_by_trainer", "fully_async"], BeforeValidator(_style)
    ] = key("fixed", "Who decides when weights are synchronised.", GUIDE)
    sync_interval: Count = key(1, "Steps between synchronisations, >= 1.", TRINITY)
    sync_offset: Natural = key(0, "Steps that the explorer runs ahead.", GUIDE)
    sync_timeout: Positive = key(3600.0, "Longest wait for the other side in seconds, > 0.", TRINITY)
    explorer_sync_interval: Count | None = key(
        None, "Explore steps between synchronisations.", TRINITY, default_from="synchronizer.sync_interval"
    )
    trainer_sync_interval: Count | None = key(
        None, "Training steps between synchronisations.", TRINITY, default_from="synchronizer.sync_interval"
    )
    max_staleness: Natural | None = key(
        None,
        "Styles other than fixed: versions between the weights that sample and those that are trained, on the mean "
        "with update_in_flight; null: any.",
        OWN,
    )
    update_in_flight: bool = key(
        False,
        "Style fully_async: samples under way continue across a weight update, and tasks begin one by one; tokens "
        "carry versions.",
        OWN,
    )
    checkpoint_delta: bool = key(
        False,
        "Transport checkpoint: write what changed since the version before, without loss.",
        OWN,
        idle_with=(IdleWith("sync_method", but=("checkpoint",)),),
    )
    group_name: str = key("rollout_weight_sync", "Name of the process group (nccl).", TRINITY)
    wait_for_checkpoint: bool = key(False, "Wait for the first checkpoint.", TRINITY, support=only(False))
