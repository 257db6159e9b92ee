"""The first lesson of a tiny model: demonstrations, some of them bad, so that reinforcement has something to choose."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLAIN = {"prompt_type": "plaintext", "prompt_key": "question", "response_key": "answer"}
CONVERSATIONS = {"prompt_type": "messages", "messages_key": "messages", "enable_concatenated_multi_turn": True}


@dataclass(frozen=True)
class Lesson:
    """What a model imitates.

    Attributes:
        start: folder of the model with random weights.
        file: demonstrations, JSON lines or parquet.
        form: keys of their columns.
        steps: training steps.
        max_tokens: longest conversation.
        batch: demonstrations a step.
        lr: peak learning rate.
        is_decayed: it falls to 0 linearly.
    """

    start: Path
    file: Path
    form: dict[str, Any]
    steps: int
    max_tokens: int
    batch: int = 64
    lr: float = 2e-3
    is_decayed: bool = True


def imitate(folder: Path, lesson: Lesson) -> None:
    """Write the model that has imitated to `folder/model`; the run is in `folder/work`."""
    import trinity

    logging.getLogger("trinity").setLevel(logging.WARNING)
    actor = {"fsdp_config": {"dtype": "float32"}}
    section = {"model": {"enable_gradient_checkpointing": False}, "actor": actor}
    data = {"name": "demonstrations", "storage_type": "file", "path": str(lesson.file), "format": lesson.form}
    schedule: dict[str, Any] = {"lr_warmup_steps": 20, "betas": [0.9, 0.98]}
    if lesson.is_decayed:
        schedule |= {"lr_scheduler_type": "linear", "min_lr_ratio": 0.0}
    report = trinity.run(
        {
            "project": "tiny",
            "name": "imitation",
            "mode": "train",
            "checkpoint_root_dir": str(folder / "work"),
            "model": {"model_path": str(lesson.start), "max_model_len": lesson.max_tokens},
            "algorithm": {"algorithm_type": "sft", "optimizer": {"lr": lesson.lr} | schedule},
            "buffer": {"train_batch_size": lesson.batch, "trainer_input": {"experience_buffer": data}},
            "trainer": {
                "total_steps": lesson.steps,
                "max_token_len_per_gpu": 8192,
                "save_interval": 0,
                "save_hf_checkpoint": "last",
                "trainer_config": {"actor_rollout_ref": section},
            },
        }
    )
    assert report.model_path is not None, "the run ends with a checkpoint"
    shutil.copytree(report.model_path, folder / "model")
