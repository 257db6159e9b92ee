"""The adapter that is trained in the place of whole weights."""

from __future__ import annotations

from trinity.common.config.draft import Draft

LORA = "model.lora_configs"
FIRST = f"{LORA}[0]"
_OF_ADAPTER = ("lora_rank", "lora_alpha", "target_modules", "exclude_modules")


def resolve_adapter(draft: Draft) -> None:
    """Check `model.lora_configs`, and say whether the adapter is made by the run."""
    configs = draft.get(LORA)
    if not configs:
        return
    if len(configs) > 1:
        draft.problem(
            "E1870",
            LORA,
            f"`{LORA}` has {len(configs)} entries, and a run trains one adapter",
            rule="one entry",
            suggestion="keep one entry",
        )
        return
    path = draft.get(f"{FIRST}.path")
    if path is None:
        draft.derive(f"{FIRST}.is_dummy", True, "no path: the run makes the adapter, which adds nothing at first")
        return
    if draft.get(f"{FIRST}.is_dummy"):
        draft.problem(
            "E1872",
            f"{FIRST}.is_dummy",
            f"`{FIRST}.is_dummy: true` means an adapter that the run makes, but path names {path}",
            involves=(f"{FIRST}.path",),
            suggestion="remove `is_dummy`, which is filled in",
        )
    for name in _OF_ADAPTER:
        if draft.is_own(f"{FIRST}.{name}"):
            draft.problem(
                "W1902", f"{FIRST}.{name}", f"`{FIRST}.{name}` has no effect: the adapter of path has its own"
            )
