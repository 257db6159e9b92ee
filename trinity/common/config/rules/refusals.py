"""What is refused inside free mappings and lists of veRL's keys, for a reason that stays."""

from __future__ import annotations

from collections.abc import Mapping

from trinity.common.config.draft import Draft
from trinity.common.config.noise import is_noise
from trinity.common.config.rules.critic import reads_values

TREE = "trainer.trainer_config"
_ACTOR = f"{TREE}.actor_rollout_ref.actor"
_REF = f"{TREE}.actor_rollout_ref.ref"
_MODEL = f"{TREE}.actor_rollout_ref.model"
_CRITIC = f"{TREE}.critic"
NOT_OVERRIDDEN: dict[str, tuple[str, str]] = {
    "attn_implementation": ("the attention over packed sequences is the trainer's own", "remove it"),
    "_attn_implementation": ("the attention over packed sequences is the trainer's own", "remove it"),
    "dtype": ("it is the number type of stored files", "write `fsdp_config.mixed_precision.param_dtype`"),
    "torch_dtype": ("it is the number type of stored files", "write `fsdp_config.mixed_precision.param_dtype`"),
    "model_type": ("it says which code computes the model", "write another `model.model_path`"),
    "architectures": ("it says which code computes the model", "write another `model.model_path`"),
    "use_cache": ("a training pass keeps no cache", "remove it"),
    "num_labels": ("a value model has one output", "remove it"),
}
_ROUTER_LOSS = (
    "output_router_logits", "aux_loss_coef", "aux_loss_coeff", "aux_loss_alpha", "moe_loss_weight", "z_loss_coef",
    "z_loss_coefficient",
)  # fmt: skip
LOSS_OF_EXPERTS = "the trainer minimises the loss of the algorithm alone"


def check_refusals(draft: Draft) -> None:
    """Refuse entries of a model's configuration and parts of checkpoints, and warn where one switch idles another."""
    _check_overrides(draft, f"{_MODEL}.override_config")
    if reads_values(draft):
        _check_overrides(draft, f"{_CRITIC}.model.override_config")
    _check_loaded(draft)
    _check_host(draft)


def _check_overrides(draft: Draft, key: str) -> None:
    """Refuse entries of the model's configuration that the trainer would undo."""
    for name, value in (draft.get(key) or {}).items():
        reason, way_out = NOT_OVERRIDDEN.get(str(name), (None, "remove it"))
        if reason is None and is_noise(str(name)) and value not in (0, None):
            reason = "with dropout, the log-probabilities of one policy would differ from pass to pass"
        if reason is None and str(name).endswith(_ROUTER_LOSS) and value not in (0, False, None):
            reason, way_out = f"{LOSS_OF_EXPERTS}, and adds none of the model's own", "remove it, or write 0"
        if isinstance(value, Mapping):
            _check_overrides(draft, f"{key}.{name}")
        if reason is not None:
            draft.problem("E1885", f"{key}.{name}", f"`{key}.{name}` is not overridden: {reason}", suggestion=way_out)


def _check_loaded(draft: Draft) -> None:
    """Refuse to load weights from what is written for others to read."""
    sections = (_ACTOR, _CRITIC) if reads_values(draft) else (_ACTOR,)
    for section in sections:
        key = f"{section}.checkpoint.load_contents"
        if "hf_model" in (draft.get(key) or ()):
            draft.problem(
                "E1887",
                key,
                f"`{key}` names hf_model, which is written for others to read: a run continues from the part `model`, "
                "which has the same weights",
                suggestion="remove hf_model; to start from such a folder, write it as `model.model_path`",
            )


def _check_host(draft: Draft) -> None:
    """Warn where one way to keep weights in host memory makes another one idle."""
    place = "fsdp" if draft.get(f"{_CRITIC}.fsdp") is not None else "model.fsdp_config"
    sections = [f"{_ACTOR}.fsdp_config", f"{_REF}.fsdp_config"]
    sections += [f"{_CRITIC}.{place}"] if reads_values(draft) else []
    for section in sections:
        if not draft.get(f"{section}.offload_policy"):
            continue
        for name in ("param_offload", "optimizer_offload"):
            names = (f"{section}.{name}", f"trainer.{name}")
            written = [key for key in names if draft.is_given(key) and draft.get(key)]
            if written and draft.get(f"{section}.{name}"):
                draft.problem(
                    "W1902",
                    written[0],
                    f"`{written[0]}` has no effect: {section}.offload_policy keeps weights and optimizer state in host "
                    "memory, also during a step",
                    suggestion="remove it",
                )
