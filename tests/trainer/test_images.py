"""Rows with images in the trainer, against Hugging Face's forward pass of each row alone."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessorPil

from tests.tiny_vision import picture, reference_logprobs, tiny_vision_model
from tests.trainer import rank_calls
from tests.trainer.conftest import make_experiences
from tests.trainer.rank_calls import ALONE
from tests.trainer.rank_pool import RankPool
from tests.trainer.test_update import TERMS, assert_same, gradients, worker
from trinity.buffer.dataset_reader import DatasetReader
from trinity.common.config import Config
from trinity.common.config.buffer import ExperienceBufferConfig
from trinity.common.config.model import ModelConfig
from trinity.common.errors import DataError, EnvironmentProblem
from trinity.common.experience import EID, Experience
from trinity.common.images.picture import ImageReader, as_inputs, expanded, plain
from trinity.common.models.chat_template import load_tokenizer
from trinity.trainer.batch import collate
from trinity.trainer.verl.worker import ActorWorker

Maker = Callable[..., Config]
IMAGES = [picture(1), picture(2, 32, 24), picture(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vision")
    tiny_vision_model(path, scale=2.0)
    return path


def vision_worker(make_config: Maker, folder: Path, **tree: Any) -> ActorWorker:
    return worker(make_config(model={"model_path": str(folder), "max_model_len": 128}, **tree), max_tokens=None)


def rows_with_images(folder: Path, image_token: int) -> list[Experience]:
    """Return three groups of four rows: one image, two of which one is the first group's, and the same words as the
    first group under another image; and a group without images."""
    reader = ImageReader(folder, merge_size=2)
    made: list[Experience] = []
    for task, images in enumerate(([IMAGES[0]], [IMAGES[1], IMAGES[0]], [IMAGES[2]])):
        pictures = [reader.read(image) for image in images]
        words = list(range(4, 24))
        keys = expanded(
            [token for _ in images for token in (30, image_token, 31)] + words, pictures, image_token=image_token
        )
        for run in range(4):
            generator = torch.Generator().manual_seed(10 * task + run)
            response = torch.randint(3, 40, (3 + run,), generator=generator)
            made.append(
                Experience(
                    EID(1, task, run),
                    torch.cat([torch.tensor(plain(keys, image_token)), response]),
                    len(keys),
                    logprobs=-torch.rand(len(response), generator=generator) - 3.0,
                    reward=float(run % 2),
                    advantages=torch.full((len(response),), 1.0 if run % 2 else -0.7),
                    info={"model_version": 0},
                    multi_modal_inputs=as_inputs(keys, pictures),
                )
            )
    return made + make_experiences(2, tasks=1)


def gradients_row_by_row(made: ActorWorker, folder: Path, experiences: list[Experience]) -> dict[str, Tensor]:
    """Return the gradients of the same loss by Hugging Face's forward pass, one row a call."""
    batch = made._with_logprobs(collate(experiences))
    rows = [reference_logprobs(made.model, folder, exp) for exp in experiences]
    logprob = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) * batch.action_mask
    shares = made.loss_fn.shares(batch, batch, normalizer=made.actor.settings.normalizer)
    tensors = {"action_mask": batch.action_mask} | batch.columns | batch.values
    made.optimizer.zero_grad()
    made.loss_fn(logprob, torch.zeros_like(logprob), tensors, shares)[0].backward()
    return {name: p.grad.clone() for name, p in made.model.named_parameters() if p.grad is not None}


def test_how_rows_with_images_are_computed_changes_neither_logprobs_nor_gradients(
    make_config: Maker, folder: Path
) -> None:
    made = vision_worker(make_config, folder)
    experiences = rows_with_images(folder, made.model.config.image_token_id)
    batch = collate(experiences)
    assert len(batch.images) == 3, "an image stands once in a batch"
    found = made.actor.compute_log_prob(batch)
    for row, exp in enumerate(experiences):
        expected = reference_logprobs(made.model, folder, exp) * exp.action_mask
        assert float((found[row, : exp.response_length] - expected).detach().abs().max()) < 2e-6
    assert made.actor.scorer.take_num_shared() > 100, "the rows of a group have their prompt once"

    expected = gradients(made, experiences)
    assert float(expected["model.visual.patch_embed.proj.weight"].abs().max()) > 1e-4
    assert_same(expected, gradients_row_by_row(made, folder, experiences), 1e-6)
    actor = made.actor
    for change in ({"max_rows": 1}, {"max_rows": 3}, {"max_rows": None, "max_tokens": 90}):
        actor.settings = actor.scorer.settings = dataclasses.replace(actor.settings, **change)
        assert_same(expected, gradients(made, experiences), 1e-6)
    order = torch.randperm(len(experiences), generator=torch.Generator().manual_seed(3)).tolist()
    assert_same(expected, gradients(made, [experiences[i] for i in order]), 1e-6)
    actor.decoder.recompute = True
    assert_same(expected, gradients(made, experiences), 1e-6)
    exact = gradients(made, experiences)
    stored = gradients(made, [Experience.deserialize(exp.serialize()) for exp in experiences])
    assert all(torch.equal(exact[name], stored[name]) for name in exact)


def test_a_frozen_vision_model_stays_and_the_reference_sees_images(make_config: Maker, folder: Path) -> None:
    made = vision_worker(
        make_config,
        folder,
        algorithm={"kl_loss_fn": "k2", "kl_loss_fn_args": {"kl_coef": 0.1}},
        trainer={"trainer_config": {"actor_rollout_ref": {"actor": {"freeze_vision_tower": True}}}},
    )
    experiences = rows_with_images(folder, made.model.config.image_token_id)
    assert made.reference is not None
    batch = collate(experiences)
    assert torch.equal(made.reference.compute_log_prob(batch), made.actor.compute_log_prob(batch))
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    made.train_step(experiences, 1)
    changed = {name for name, p in made.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed and not any(".visual." in name for name in changed)
    assert set(made.weights()) == set(before), "engines are given all weights"
    assert not torch.equal(made.reference.compute_log_prob(batch), made.actor.compute_log_prob(batch))


def test_a_saved_model_is_loaded_with_its_image_processor(make_config: Maker, folder: Path, tmp_path: Path) -> None:
    made = vision_worker(make_config, folder)
    experiences = rows_with_images(folder, made.model.config.image_token_id)
    made.train_step(experiences, 1)
    made.save(tmp_path / "saved", hf=True)
    again = vision_worker(make_config, tmp_path / "saved" / "actor" / "huggingface")
    batch = collate(experiences)
    assert torch.equal(made.actor.compute_log_prob(batch), again.actor.compute_log_prob(batch))


def demonstrations(folder: Path, rows: list[dict[str, Any]], **columns: Any) -> list[Experience]:
    """Return the rows of a parquet file as they are trained on, in their order."""
    path = folder / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    config = ExperienceBufferConfig.model_validate(
        {"name": "sft", "storage_type": "file", "path": str(path), "format": {"image_key": "images", **columns}}
    )
    tokenizer = load_tokenizer(ModelConfig(model_path=str(folder)))
    return DatasetReader(config, tokenizer=tokenizer, shuffle=False, total_epochs=1).read(100)


def loss_of_hugging_face(model: Any, folder: Path, asked: list[tuple[str, list[bytes], str]]) -> Tensor:
    """Return the mean loss of all answers: text, images as (text with places, images, answer)."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
    losses = []
    for text, images, answer in asked:
        given: dict[str, Any] = {}
        for image in images:
            found = processor(images=[Image.open(io.BytesIO(image)).convert("RGB")], return_tensors="pt")
            count = int(found["image_grid_thw"].prod()) // 4
            text = text.replace("<image>", "<|vision_start|>" + "<|image_pad|>" * count + "<|vision_end|>", 1)
            for name, tensor in found.items():
                given[name] = torch.cat([given[name], tensor]) if name in given else tensor
        prompt = tokenizer(text, return_tensors="pt").input_ids
        ids = torch.cat([prompt, tokenizer(answer + tokenizer.eos_token, return_tensors="pt").input_ids], 1)
        if images:
            given["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
        model.model.rope_deltas = None
        logits = model(input_ids=ids, use_cache=False, **given).logits[0, prompt.shape[1] - 1 : -1]
        losses.append(torch.nn.functional.cross_entropy(logits, ids[0, prompt.shape[1] :], reduction="none"))
    return torch.cat(losses).mean()


def test_demonstrations_with_images_have_the_loss_and_gradients_of_hugging_face(
    make_config: Maker, folder: Path
) -> None:
    asked = [
        ("<image>how many?", [IMAGES[0]], "12"),
        ("1<image>+<image>=", [IMAGES[1], IMAGES[0]], "345"),
        ("12+3=", [], "15"),
    ]
    rows = [
        {"prompt": text, "response": answer, "images": [{"bytes": image, "path": None} for image in images]}
        for text, images, answer in asked
    ]
    texts = demonstrations(folder, rows, prompt_key="prompt", response_key="response")
    chats = demonstrations(
        folder,
        [
            {
                "messages": [
                    {"role": "user", "content": row["prompt"]},
                    {"role": "assistant", "content": row["response"]},
                ],
                "images": row["images"],
            }
            for row in rows
        ],
        messages_key="messages",
    )
    for one, other in zip(texts, chats, strict=True):
        assert torch.equal(one.tokens, other.tokens) and one.prompt_length == other.prompt_length
    made = vision_worker(make_config, folder, algorithm={"algorithm_type": "sft", "kl_loss_fn": None})
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    expected = loss_of_hugging_face(plain, folder, asked)
    expected.backward()
    found = gradients(made, texts)
    assert_same({name: p.grad for name, p in plain.named_parameters() if p.grad is not None}, found)
    metrics = made.train_step(chats, 1)
    assert metrics["actor/final_loss"] == pytest.approx(float(expected.detach()), abs=1e-6)


@pytest.mark.difference("Images of an experience")
def test_images_that_do_not_fit_are_named(make_config: Maker, folder: Path) -> None:
    exp = rows_with_images(folder, 90)[0]
    inputs = exp.multi_modal_inputs or {}
    wrong: list[dict[str, Tensor]] = [
        {"pixel_values": torch.zeros(4, 96), "image_grid_thw": torch.tensor([[1, 2, 2]])},
        inputs | {"image_sizes": inputs["image_sizes"] + 1},
        inputs | {"image_places": inputs["image_places"] + 1000},
    ]
    for each in wrong:
        with pytest.raises(DataError) as caught:
            collate([dataclasses.replace(exp, multi_modal_inputs=each)])
        assert caught.value.code == "E4033"
    pair = Experience(tokens=exp.tokens, chosen=[4], rejected=[5], multi_modal_inputs=inputs)
    with pytest.raises(DataError, match="pair with images"):
        collate([pair])
    made = worker(make_config())
    with pytest.raises(DataError, match="reads none") as refused:
        made.train_step([exp], 1)
    assert refused.value.code == "E4034"
    actor = {"actor_rollout_ref": {"actor": {"freeze_vision_tower": True}}}
    with pytest.raises(EnvironmentProblem) as frozen:
        worker(make_config(trainer={"trainer_config": actor}))
    assert frozen.value.code == "E3133"


ADAPTED = {"lora_configs": [{"lora_rank": 4, "target_modules": ["q_proj", "v_proj", "down_proj", "qkv", "attn.proj"]}]}


def ranks_config(make_config: Maker, folder: Path, **model: Any) -> dict[str, Any]:
    """Return a configuration as it travels to another process."""
    section = {"model_path": str(folder), "max_model_len": 128, **model}
    return make_config(model=section, algorithm=TERMS).model_dump(exclude_unset=True)


def test_the_number_of_ranks_does_not_change_the_gradient_of_rows_with_images(
    make_config: Maker, folder: Path, pool: RankPool
) -> None:
    """The micro-batches of one rank have images while those of another have none."""
    rows = rows_with_images(folder, 85)
    trees = [ranks_config(make_config, folder), ranks_config(make_config, folder, **ADAPTED)]
    by_row = {"max_rows": 1, "max_tokens": None}
    calls = [(each, settings, rows) for each in trees for settings in (by_row, {"max_tokens": 90, "max_rows": None})]
    alone = rank_calls.gradients(ALONE, calls)
    for of_rank in pool.run(2, rank_calls.gradients, calls):
        for expected, found in zip(alone, of_rank, strict=True):
            assert_same(expected, found, 1e-6)
    assert any(".visual." in name and "lora_A" in name for name in alone[-1])
    assert float(alone[0]["model.visual.patch_embed.proj.weight"].abs().max()) > 1e-4


def test_an_adapter_of_a_vision_language_model_has_the_gradients_of_its_own_forward_pass(
    make_config: Maker, folder: Path
) -> None:
    made = worker(make_config(model={"model_path": str(folder), "max_model_len": 128} | ADAPTED, algorithm=TERMS))
    experiences = rows_with_images(folder, made.model.config.image_token_id)
    assert made.adapter is not None and made.reference is not None
    before = made.reference.compute_log_prob(collate(experiences))
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
    made.actor.stepper.refresh()
    found = made.actor.compute_log_prob(collate(experiences))
    for row, exp in enumerate(experiences):
        expected = reference_logprobs(made.model, folder, exp) * exp.action_mask
        assert float((found[row, : exp.response_length] - expected).detach().abs().max()) < 2e-6
    assert float((found - before).abs().max()) > 1e-2
    assert torch.equal(made.reference.compute_log_prob(collate(experiences)), before), "it is the model without adapter"
    merged = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).eval()
    merged.load_state_dict(dict(made.adapter.weights()), strict=False)
    for row, exp in enumerate(experiences):
        expected = reference_logprobs(merged, folder, exp) * exp.action_mask
        assert float((found[row, : exp.response_length] - expected).detach().abs().max()) < 1e-5


def test_an_adapter_in_a_frozen_vision_model_stays(make_config: Maker, folder: Path) -> None:
    actor = {"actor_rollout_ref": {"actor": {"freeze_vision_tower": True}}}
    config = make_config(
        model={"model_path": str(folder), "max_model_len": 128} | ADAPTED, trainer={"trainer_config": actor}
    )
    made = worker(config)
    trained = {name for name, p in made.model.named_parameters() if p.requires_grad}
    assert trained and not any(".visual." in name for name in trained)
