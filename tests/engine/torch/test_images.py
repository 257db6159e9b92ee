"""Prompts with images in the embedded engine, against Hugging Face's forward pass."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import PreTrainedModel

from tests.tiny import tiny_model
from tests.tiny_vision import asked, picture, reference_logprobs, tiny_vision_model
from trinity.common.config.model import ModelConfig
from trinity.common.errors import DataError, EngineError, EnvironmentProblem
from trinity.common.experience import Experience
from trinity.common.models import ModelWrapper
from trinity.common.models.whole import unfolded
from trinity.engine.settings import EngineSettings
from trinity.engine.torch.engine import TorchEngine
from trinity.utils.fused import choice

BOUND = 2e-6
LONG = "how many shapes are there in the image? 1234567890 1234567890"
ONE, TWO = picture(1), picture(2, 32, 24)
TEXT = [{"role": "user", "content": "12+3="}]
CONVERSATIONS = [asked(LONG, ONE), asked("and these?", ONE, TWO), asked(LONG, TWO), TEXT]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vision")


@pytest.fixture(scope="module")
def model(folder: Path) -> PreTrainedModel:
    return tiny_vision_model(folder)


def settings(folder: Path, **changes: Any) -> EngineSettings:
    model = ModelConfig(model_path=str(folder), max_model_len=160)
    return EngineSettings(model=model, **{"dtype": "float32", "device": "cpu", "is_multimodal": True, **changes})


class Asked:
    """An engine, asked from the thread of the test."""

    def __init__(self, made: EngineSettings) -> None:
        self.engine = TorchEngine(made)
        asyncio.run(self.engine.prepare())

    def answers(self, conversations: Sequence[list[dict[str, Any]]], *, n: int = 2) -> list[Experience]:
        async def all_of_them() -> list[Experience]:
            given = {"n": n, "max_tokens": 6, "seed": 5}
            asked = [self.engine.chat(each, **given) for each in conversations]
            return [one for each in await asyncio.gather(*asked) for one in each]

        return asyncio.run(all_of_them())

    def stats(self) -> dict[str, float]:
        return asyncio.run(self.engine.stats())


@pytest.fixture(scope="module")
def plain(folder: Path, model: PreTrainedModel) -> Iterator[Asked]:
    made = Asked(settings(folder))
    yield made
    asyncio.run(made.engine.shutdown())


def assert_equal(left: Sequence[Experience], right: Sequence[Experience]) -> None:
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.logprobs, other.logprobs)


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_samples_have_the_logprobs_of_a_forward_pass_with_and_without_the_prefix_cache(
    folder: Path, model: PreTrainedModel, is_deterministic: bool
) -> None:
    found = {}
    for has_cache in (True, False):
        made = Asked(settings(folder, is_deterministic=is_deterministic, has_prefix_cache=has_cache))
        found[has_cache] = made.answers(CONVERSATIONS)
        again = made.answers(CONVERSATIONS)
        stats = made.stats()
        if has_cache:
            assert stats["prefix_hit_tokens"] > 0, "the same prompt with the same image"
            assert stats["image_misses"] <= 4 and stats["image_hits"] >= 4, (
                "two images; two calls may prepare one at once"
            )
        if is_deterministic:
            assert_equal(found[has_cache], again)
        for exp in found[has_cache] + again:
            assert float((reference_logprobs(model, folder, exp) - exp.logprobs).abs().max()) < BOUND
        asyncio.run(made.engine.shutdown())
    if is_deterministic:
        assert_equal(found[True], found[False])


def test_compiled_steps_rotate_what_follows_an_image_as_the_library_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image has fewer rotary positions than tokens."""
    pytest.importorskip("numba")
    rotary = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
    model = tiny_vision_model(tmp_path, num_attention_heads=2, num_key_value_heads=1, rope_parameters=rotary)
    monkeypatch.setattr(choice, "LEAST_ELEMENTS", 0)
    made = Asked(settings(tmp_path))
    assert made.engine._loaded is not None and made.engine._loaded[0].is_compiled
    found = made.answers([*CONVERSATIONS, asked(LONG, picture(3, 64, 64))])
    assert all(len(exp.logprobs) > 1 for exp in found)
    for exp in found:
        assert float((reference_logprobs(model, tmp_path, exp) - exp.logprobs).abs().max()) < 2 * BOUND
    asyncio.run(made.engine.shutdown())


def test_another_image_under_the_same_words_is_no_hit(folder: Path, model: PreTrainedModel, plain: Asked) -> None:
    other = picture(7)  # the size of the first, so that all tokens but those of its content are equal
    plain.answers([asked(LONG, ONE)])
    before = plain.stats()["prefix_hit_tokens"]
    found = plain.answers([asked(LONG, other)])
    assert plain.stats()["prefix_hit_tokens"] == before
    assert torch.equal(
        found[0].tokens[: found[0].prompt_length], plain.answers([asked(LONG, ONE)])[0].tokens[: found[0].prompt_length]
    )
    for exp in found:
        assert float((reference_logprobs(model, folder, exp) - exp.logprobs).abs().max()) < BOUND


def test_new_weights_reach_the_vision_model(folder: Path, model: PreTrainedModel) -> None:
    made = Asked(settings(folder))
    before = made.answers([asked(LONG, ONE)])
    changed = {name: p.detach().clone() for name, p in model.named_parameters()}
    for name in changed:
        if ".visual." in name:
            changed[name] *= 1.2
    asyncio.run(made.engine.update_weights(changed, version=1))
    after = made.answers([asked(LONG, ONE)])
    other = type(model)(model.config).eval()
    other.load_state_dict(changed, strict=False)
    other.tie_weights()
    for exp in after:
        assert float((reference_logprobs(other, folder, exp) - exp.logprobs).abs().max()) < BOUND
    assert float((reference_logprobs(other, folder, before[0]) - before[0].logprobs).abs().max()) > 1e-3
    asyncio.run(made.engine.shutdown())


def test_the_prompt_counts_every_token_of_an_image(folder: Path, plain: Asked) -> None:
    parts = asked("?", ONE)
    assert asyncio.run(plain.engine.get_message_token_len(parts)) == 2 + (16 // 8) * (24 // 8) + 1
    limit = ModelConfig(model_path=str(folder), max_model_len=160, max_prompt_tokens=8, enable_prompt_truncation=True)
    made = Asked(EngineSettings(model=limit, dtype="float32", device="cpu", is_multimodal=True))
    (cut,) = made.answers([parts], n=1)
    assert cut.truncate_status == "prompt_truncated" and not cut.action_mask.any()
    asyncio.run(made.engine.shutdown())


def bomb() -> bytes:
    stream = io.BytesIO()
    Image.new("1", (9000, 9000)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (b"not an image", "not a readable image"),
        (ONE[:-40], "not a readable image"),
        (bomb(), "pixels"),
        ("https://example.org/a.png", "is not fetched"),
        ("file:///etc/passwd", "is not fetched"),
        ("/etc/passwd", "a path is not read here"),
        ("data:image/png;base64,%%", "not base64"),
    ],
)
def test_what_is_no_image_is_refused_with_the_reason(plain: Asked, image: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        plain.answers([[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]}]])
    assert caught.value.code == "E4031"


def test_an_image_token_in_a_text_is_no_image(plain: Asked) -> None:
    with pytest.raises(DataError, match="1 images has 2 image tokens") as caught:
        plain.answers([asked("<|image_pad|>", ONE)])
    assert caught.value.code == "E4032"


def test_images_for_a_model_that_reads_none_are_refused(folder: Path, plain: Asked, tmp_path: Path) -> None:
    tiny_model(tmp_path)
    for path, changes in ((tmp_path, {}), (folder, {"is_multimodal": False})):
        made = Asked(settings(path, **changes))
        with pytest.raises(EngineError, match="enable_multimodal") as caught:
            made.answers([asked("?", ONE)])
        assert caught.value.code == "E5613"
        asyncio.run(made.engine.shutdown())
    with pytest.raises(EngineError) as refused:
        asyncio.run(
            plain.engine.convert_messages_to_experience([*asked("?", ONE), {"role": "assistant", "content": "1"}])
        )
    assert refused.value.code == "E5614"


def test_a_sampled_conversation_with_images_is_a_sequence_for_each_call(plain: Asked) -> None:
    async def work() -> tuple[list[Experience], list[Experience]]:
        wrapper, talk, calls = ModelWrapper(plain.engine, generate_kwargs={"max_tokens": 3}), asked("?", ONE), []
        for _ in range(2):
            calls += await wrapper.chat_async(talk)
            talk += [{"role": "assistant", "content": calls[-1].response_text}, {"role": "user", "content": "?"}]
        return calls, unfolded([await wrapper.convert_messages_to_experience_async(talk)])

    calls, made = asyncio.run(work())
    assert [exp.tokens.tolist() for exp in made] == [call.tokens.tolist() for call in calls]
    assert all(exp.multi_modal_inputs is not None and exp.action_mask.all() for exp in made)


def test_a_folder_without_an_image_processor_is_named(tmp_path: Path) -> None:
    tiny_vision_model(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(EnvironmentProblem, match=r"copy the preprocessor_config\.json") as caught:
        Asked(settings(tmp_path))
    assert caught.value.code == "E3108"
