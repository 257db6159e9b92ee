"""A run over datasets with images: a tiny vision-language model imitates, and learns by GRPO where a square is."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.shapes import accuracies, metrics, prepare, values_of
from tests import prepared
from tests.e2e.short_run import comparable_metrics
from tests.e2e.tiny_run import TinyRun
from tests.prepared import ROOT
from tests.tiny_vision import picture, tiny_vision_model
from trinity.cli.app import app
from trinity.common.images.reading import image_bytes
from trinity.utils.device import has_bf16_units

STEPS = 40


def test_a_vision_language_model_learns_from_images_by_grpo(tmp_path: Path) -> None:
    """Squares are in the two upper quarters: without the image, a greedy answer is right half of the time."""
    file = prepare(tmp_path, num_places=2, steps=STEPS, imitated=40, num_held_out=64, seed=0)
    run = prepared.start(["run", "--config", str(file)], cwd=ROOT, environment={})
    output, _ = run.communicate(timeout=240)
    assert run.returncode == 0, output
    records = metrics(tmp_path)
    before, after = accuracies(records)
    assert after - before > 0.2 and after > 0.85, (before, after)
    differences = values_of(records, "training/rollout_logprobs_diff_max")
    # Weights, products and scores of eight bits are rounded in another order by each side.
    limit = 0.2 if has_bf16_units(torch.device("cpu")) else 2e-6
    assert len(differences) > STEPS / 2 and max(differences) < limit


def tiny_run(folder: Path) -> TinyRun:
    """Return a run of three steps over four tasks with an image each."""
    run = TinyRun(folder)
    tiny_vision_model(folder / "model", seed=1, scale=3.0)
    rows = []
    for number in range(4):
        (folder / f"{number}.png").write_bytes(picture(number))
        rows.append({"question": f"<image>{number}+1=", "answer": str(number + 1), "images": [f"{number}.png"]})
    run.write_rows(rows)
    run.change(model__max_model_len=96, model__max_response_tokens=40)
    run.change(deterministic=True, buffer__total_steps=3, explorer__rollout_model__enable_multimodal=True)
    run.change(buffer__explorer_input__taskset__format__image_key="images")
    run.change(buffer__explorer_input__default_workflow_type="simple_mm_workflow")
    # So small a model earns no reward: the entropy makes every row count and every update move.
    return run.change(algorithm__entropy_loss_fn_args={"entropy_coef": 0.01})


def outcome(run: TinyRun) -> tuple[str, object]:
    weights = run.job / "global_step_3" / "actor" / "huggingface" / "model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest(), comparable_metrics(run.job)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["train.after_step=kill@2", "store.append.after_commit=kill@2"])
def test_a_run_with_images_that_was_killed_ends_with_the_bits_of_one_that_was_not(
    tmp_path_factory: pytest.TempPathFactory, undisturbed: tuple[str, object], point: str
) -> None:
    run = tiny_run(tmp_path_factory.mktemp("killed"))
    assert run.finish(failpoints=point).status == -signal.SIGKILL
    resumed = run.finish()
    assert resumed.status == 0, resumed.output
    assert outcome(run) == undisturbed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """The run when nobody disturbs it."""
    run = tiny_run(tmp_path_factory.mktemp("whole"))
    ended = run.finish(is_real=True)
    assert ended.status == 0, ended.output
    assert min(line["actor/grad_norm"] for line in run.lines("trainer")) > 0
    return run


@pytest.fixture(scope="module")
def undisturbed(whole: TinyRun) -> tuple[str, object]:
    """What the run ends with."""
    return outcome(whole)


@pytest.mark.slow
def test_images_are_in_what_is_exported_and_are_imitated_from_there(
    whole: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole.folder)
    known = {picture(number) for number in range(4)}
    for words in (["experience", "--to", "jsonl", "-o", "all.jsonl"], ["sft", "-o", "sft.jsonl"]):
        done = CliRunner().invoke(app, ["export", words[0], str(whole.job), *words[1:]])
        assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (whole.folder / "all.jsonl").read_text().splitlines()]
    assert len(rows) == 12 and {image_bytes(image) for row in rows for image in row["images"]} == known
    lines = [json.loads(line) for line in (whole.folder / "sft.jsonl").read_text().splitlines()]
    shown = [part["image"] for line in lines for part in line["messages"][0]["content"] if part["type"] == "image"]
    assert lines and len(shown) == len(lines) and {image_bytes(image) for image in shown} <= known
    run = TinyRun(whole.folder)
    tiny_vision_model(whole.folder / "model", seed=1, scale=3.0)
    run.tree |= {"mode": "train", "name": "imitated", "algorithm": {"algorithm_type": "sft"}, "buffer": {}}
    del run.tree["explorer"], run.tree["synchronizer"]
    buffer = {"path": "sft.jsonl", "format": {"prompt_type": "messages", "messages_key": "messages"}}
    run.change(buffer__train_batch_size=1, buffer__trainer_input__experience_buffer=buffer)
    run.change(model__max_model_len=96, trainer__total_steps=1)
    ended = run.finish()
    assert ended.status == 0, ended.output
    (line,) = (json.loads(each) for each in (run.job.parent / "imitated/metrics.jsonl").read_text().splitlines())
    assert line["actor/grad_norm"] > 0
