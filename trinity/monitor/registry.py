"""Table of contents of the monitors."""

from __future__ import annotations

from trinity.utils.registry import Entry, Registry

MONITOR_CONTENTS: dict[str, Entry] = {
    "tensorboard": Entry(
        "trinity.monitor.tensorboard:TensorboardMonitor",
        doc="Event files under `<job>/monitor/tensorboard/<actor>`.",
    ),
    "wandb": Entry(
        "trinity.monitor.wandb:WandbMonitor",
        args={"base_url": None, "api_key": None, "api_key_env": None},
        doc="Weights & Biases; one run an actor, grouped by the name of the experiment.",
    ),
    "mlflow": Entry(
        "trinity.monitor.mlflow:MlflowMonitor",
        args={"uri": "http://localhost:5000", "username": None, "password": None, "password_env": None},
        doc="MLflow; one run an actor in the experiment of the project. `@` in a name becomes `_at_`.",
    ),
}

MONITOR = Registry("monitor", MONITOR_CONTENTS)
