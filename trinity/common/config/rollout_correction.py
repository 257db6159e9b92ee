"""Section `algorithm.rollout_correction` for off-policy rollouts; presets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from trinity.common.config.base import VERL, IdleWith, Section, key

_GEO_RS = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
_K3_RS = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": "0.01"}
_TOKEN = {"rollout_is": "token", "rollout_is_threshold": "2.0"}
_SEQUENCE = {"rollout_is": "sequence", "rollout_is_threshold": "2.0"}
_ICEPOP = {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}
_CLIP = {"bypass_mode": True, "loss_type": "ppo_clip"}
_REINFORCE = {"bypass_mode": True, "loss_type": "reinforce"}

# veRL's presets with its defaults. A key that is written goes before the preset's.
PRESETS: dict[str, dict[str, Any]] = {
    "disabled": {},
    "decoupled_token_is": _TOKEN,
    "decoupled_seq_is": _SEQUENCE,
    "decoupled_token_icepop": _ICEPOP,
    "decoupled_seq_is_rs": {**_SEQUENCE, "rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"},
    "decoupled_geo_rs": _GEO_RS,
    "decoupled_geo_rs_seq_tis": {**_SEQUENCE, **_GEO_RS},
    "decoupled_geo_rs_token_tis": {**_TOKEN, **_GEO_RS},
    "decoupled_k3_rs": _K3_RS,
    "decoupled_k3_rs_seq_tis": {**_SEQUENCE, **_K3_RS},
    "decoupled_k3_rs_token_tis": {**_TOKEN, **_K3_RS},
    "bypass_ppo_clip": _CLIP,
    "bypass_ppo_clip_geo_rs": {**_CLIP, **_GEO_RS},
    "bypass_ppo_clip_k3_rs": {**_CLIP, **_K3_RS},
    "bypass_pg_is": {**_REINFORCE, **_SEQUENCE},
    "bypass_pg_token_icepop": {**_REINFORCE, **_ICEPOP},
    "bypass_pg_geo_rs": {**_REINFORCE, **_GEO_RS},
    "bypass_pg_geo_rs_seq_tis": {**_REINFORCE, **_SEQUENCE, **_GEO_RS},
    "bypass_pg_geo_rs_token_tis": {**_REINFORCE, **_TOKEN, **_GEO_RS},
}

Preset = Literal[
    "disabled",
    "decoupled_token_is",
    "decoupled_seq_is",
    "decoupled_token_icepop",
    "decoupled_seq_is_rs",
    "decoupled_geo_rs",
    "decoupled_geo_rs_seq_tis",
    "decoupled_geo_rs_token_tis",
    "decoupled_k3_rs",
    "decoupled_k3_rs_seq_tis",
    "decoupled_k3_rs_token_tis",
    "bypass_ppo_clip",
    "bypass_ppo_clip_geo_rs",
    "bypass_ppo_clip_k3_rs",
    "bypass_pg_is",
    "bypass_pg_token_icepop",
    "bypass_pg_geo_rs",
    "bypass_pg_geo_rs_seq_tis",
    "bypass_pg_geo_rs_token_tis",
]


def _text(value: Any) -> Any:
    """Return a bound as text; keep a boolean, which is then refused."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _joined(value: Any) -> Any:
    """Return a list as the equivalent text."""
    if isinstance(value, list | tuple) and value and not any(isinstance(part, bool) for part in value):
        return ",".join(str(part) for part in value)
    return _text(value)


Bound = Annotated[str, BeforeValidator(_text)]
List = Annotated[str, BeforeValidator(_joined)]


class RolloutCorrectionConfig(Section):
    """Weights on the policy loss, and tokens and rows that it leaves out.

    rho = exp(old_logprob - rollout_logprob)
    """

    preset: Preset | None = key(None, "A named choice of the keys below, which win over it.", VERL)
    rollout_is: Literal["token", "sequence"] | None = key(
        None, "Weights: rho of each token, or its product over the response; null: of the preset, else none.", VERL
    )
    rollout_is_threshold: Bound | None = key(
        None,
        "Largest weight, or 'low_high' outside of which it is 0; null: of the preset.",
        VERL,
        fallback="2.0",
        idle_with=(IdleWith("rollout_is", (None,)),),
    )
    rollout_is_batch_normalize: bool | None = key(
        None,
        "Divide the weights by their mean.",
        VERL,
        fallback=False,
        idle_with=(IdleWith("rollout_is", (None,)),),
    )
    rollout_rs: List | None = key(
        None, "Rejection: token_k1, seq_mean_k3, ..., several as a list; null: of the preset, else none.", VERL
    )
    rollout_rs_threshold: List | None = key(
        None,
        "Bound of the rejection, or one for each; 'low_high' for k1; null: of the preset.",
        VERL,
        idle_with=(IdleWith("rollout_rs", (None, "")),),
    )
    bypass_mode: bool | None = key(
        None, "Correct in the loss, on the rollout's log-probabilities; null: of the preset.", VERL, fallback=False
    )
    loss_type: Literal["ppo_clip", "reinforce"] | None = key(
        None,
        "Loss of bypass_mode; null: of the preset.",
        VERL,
        fallback="ppo_clip",
        idle_with=(IdleWith("bypass_mode", (None, False)),),
    )
