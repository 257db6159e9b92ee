"""The configuration guide's file as it is published, both of its stages, run to finished steps on a CPU."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from tests import prepared
from tests.judge import write_judge
from tests.prepared import ROOT
from tests.tiny import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FILE = ROOT / "tests" / "seeds" / "guide.yaml"
RECIPE = "examples/grpo_gsm8k_experience_pipeline/dj_scoring_exp.yaml"
JUDGE = "model_path: judge, engine_type: torch, max_model_len: 2048, max_prompt_tokens: 2000, max_response_tokens: 8"
# Model paths, data paths, sizes, engine types, GPUs, the monitor, and the port of the service.
SMALL = (
    "model.max_model_len=1024", "model.max_prompt_tokens=1000", "model.max_response_tokens=8",
    "cluster.gpu_per_node=0", "buffer.batch_size=2", "buffer.train_batch_size=16", "trainer.total_steps=1",
    "stages[0].buffer.train_batch_size=4", "stages[0].buffer.total_steps=1",
    "explorer.rollout_model.engine_type=torch", "monitor.monitor_type=tensorboard", "monitor.monitor_args=null",
    "buffer.explorer_input.taskset.path=tasks", "buffer.explorer_input.eval_tasksets[0].path=test.jsonl",
    f"explorer.auxiliary_models=[{{name: qwen2.5-7b-instruct, {JUDGE}}}, {{name: judge, {JUDGE}}}]",
    "data_processor.task_pipeline.num_process=2",
)  # fmt: skip


def write_rows(file: Path, count: int) -> None:
    """Write tasks of the game that the guide's reward function knows."""
    rows = [
        {"question": f"{a}+{a + 1}=", "answer": json.dumps({"target": 2 * a + 1, "numbers": [a, a + 1]})}
        for a in range(1, count + 1)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_both_stages_of_the_published_file_train_a_step(tmp_path: Path) -> None:
    tiny_model(tmp_path / "model", "llama", seed=1, scale=3.0, max_position_embeddings=1024)
    write_judge(tmp_path / "judge")
    write_rows(tmp_path / "train.jsonl", 6)
    write_rows(tmp_path / "test.jsonl", 2)
    texts = [{"prompt": f"{a}+{a}=", "response": str(2 * a)} for a in range(4)]
    (tmp_path / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    (tmp_path / RECIPE).parent.mkdir(parents=True)
    shutil.copy(ROOT / RECIPE, tmp_path / RECIPE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service = (f"service.data_juicer.server_url=http://127.0.0.1:{port}", f"service.data_juicer.port={port}")
    environment = {
        "MODEL_PATH": "model",
        "TRINITY_TASKSET_PATH": str(tmp_path / "train.jsonl"),
        "TRINITY_SFT_DATASET_PATH": "train.jsonl",
        "TRINITY_DATASET_PATH": "sft.jsonl",
    }
    words = ["run", "--config", str(FILE)] + [word for each in (*SMALL, *service) for word in ("--set", each)]
    process = prepared.start(words, cwd=tmp_path, environment=environment)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output[-6000:]
    job = tmp_path / "checkpoints" / "Trinity-RFT" / "example"
    lines = {
        stage: [json.loads(line) for line in (job / stage / "metrics.jsonl").read_text().splitlines()]
        for stage in ("sft_warmup", "rft")
    }
    trained = {stage: next(line for line in of if line["actor"] == "trainer") for stage, of in lines.items()}
    assert trained["sft_warmup"]["actor/sft_loss"] > 0
    assert trained["rft"]["critic/vf_loss"] > 0 and trained["rft"]["sample/experience_count"] == 16
    explored = {name for line in lines["rft"] if line["actor"] == "explorer" for name in line}
    assert any(name.startswith("eval/countdown_eval/") for name in explored)
    assert "experience_pipeline/reward_shaping_mapper/reward_diff/mean" in explored
