"""Images through the endpoint: the tokens of the wrapper, experiences that train, and what is refused."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image
from transformers import PreTrainedModel

from tests.explorer.api.test_endpoint import Served
from tests.tiny_vision import asked, picture, reference_logprobs, tiny_vision_model
from trinity.common.models.model import ModelWrapper

ONE, TWO = picture(1), picture(2, 32, 24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    made = Served(folder, make=tiny_vision_model, enable_multimodal=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(served: Served, folder: Path) -> PreTrainedModel:
    """The same weights in Hugging Face's class."""
    return tiny_vision_model(folder / "same")


def url(image: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def parts(text: str, *urls: str, **more: str) -> list[dict[str, Any]]:
    images = [{"type": "image_url", "image_url": {"url": each, **more}} for each in urls]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


def post(model: ModelWrapper, body: dict[str, Any]) -> httpx.Response:
    with model.get_openai_client() as client:
        headers = {"Authorization": f"Bearer {client.api_key}"}
        return httpx.post(f"{client.base_url}messages", json=body, headers=headers, timeout=60)


def test_an_image_of_a_client_has_the_tokens_of_the_wrapper_and_its_experience_trains(
    served: Served, model: PreTrainedModel, folder: Path
) -> None:
    plain, other, third, fourth = (served.rollout() for _ in range(4))
    first = plain.chat(asked("how many?", ONE, TWO), n=2, max_tokens=6, temperature=1.0)
    with other.get_openai_client() as client:
        answer = client.chat.completions.create(
            model="model", messages=parts("how many?", url(ONE), url(TWO)), n=2, max_tokens=6, temperature=1.0,
            extra_body={"return_token_ids": True},
        )  # fmt: skip
    assert answer.usage.prompt_tokens == first[0].prompt_length == 2 * 2 + 6 + 12 + len("how many?")
    assert answer.prompt_token_ids == first[0].tokens[: first[0].prompt_length].tolist()
    sent = {"type": "base64", "media_type": "image/png"}
    blocks = [{"type": "image", "source": sent | {"data": base64.b64encode(each).decode()}} for each in (ONE, TWO)]
    body = {"messages": [{"role": "user", "content": [*blocks, {"type": "text", "text": "how many?"}]}]}
    said = post(third, body | {"max_tokens": 6, "temperature": 1.0})
    assert said.status_code == 200 and said.json()["usage"]["input_tokens"] == first[0].prompt_length
    with fourth.get_openai_client() as client:
        shown = [{"type": "input_image", "image_url": url(each), "detail": "auto"} for each in (ONE, TWO)]
        content = [*shown, {"type": "input_text", "text": "how many?"}]
        given = [{"role": "user", "content": content}]
        response = client.responses.create(model="model", input=given, max_output_tokens=6, temperature=1.0)  # type: ignore[arg-type]
    assert response.usage is not None and response.usage.input_tokens == first[0].prompt_length
    recorded = other.history + third.history + fourth.history
    assert len(recorded) == 4
    assert [exp.tokens.tolist() for exp in other.history] == [exp.tokens.tolist() for exp in first]
    assert [choice.token_ids for choice in answer.choices] == [
        exp.tokens[exp.prompt_length :].tolist() for exp in first
    ]
    for exp in recorded:
        assert exp.multi_modal_inputs is not None and first[0].multi_modal_inputs is not None
        assert exp.multi_modal_inputs["image_bytes"].numpy().tobytes() == ONE + TWO
        assert float((reference_logprobs(model, folder / "same", exp).detach() - exp.logprobs).abs().max()) < 2e-6


def bomb() -> bytes:
    stream = io.BytesIO()
    Image.new("1", (9000, 9000)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (parts("?", "https://example.org/a.png"), "https: is not fetched; give the image's bytes, or a data: URI"),
        (parts("?", "file:///etc/passwd"), "is not fetched"),
        (parts("?", "/etc/passwd"), "a path is not read here"),
        (parts("?", "data:image/png;base64,%%"), "not base64"),
        (parts("?", url(b"no image")), "not a readable image"),
        (parts("?", url(ONE[:-40])), "not a readable image"),
        (parts("?", url(bomb())), "pixels"),
        (parts("?", url(ONE), detail="low"), "detail 'low' is not available"),
        (parts("?", *[url(ONE)] * 65), "at most 64 images, got 65"),
        (parts("<|image_pad|>", url(ONE)), "has 2 image tokens"),
        ([*parts("?"), {"role": "assistant", "content": parts("?", url(ONE))[0]["content"]}], "role 'assistant'"),
    ],
)
def test_an_image_that_cannot_be_used_is_a_bad_request(
    served: Served, messages: list[dict[str, Any]], words: str
) -> None:
    model = served.rollout()
    with pytest.raises(openai.BadRequestError) as refused, model.get_openai_client() as client:
        client.chat.completions.create(model="model", messages=messages, max_tokens=2)  # type: ignore[arg-type]
    assert words in str(refused.value)
    assert model.history == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"type": "url", "url": "https://example.org/a.png"}, "must be base64, got 'url'; nothing is fetched"),
        ({"type": "base64", "media_type": "image/tiff", "data": "AA=="}, "media_type of an image must be one of"),
    ],
)
def test_a_source_that_is_not_read_is_a_bad_request(served: Served, source: dict[str, str], words: str) -> None:
    model = served.rollout()
    body = {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}], "max_tokens": 2}
    said = post(model, body)
    assert said.status_code == 400 and words in said.json()["error"]["message"]


@pytest.mark.parametrize(
    ("role", "part", "words"),
    [
        ("user", {"image_url": "https://example.org/a.png"}, "is not fetched"),
        ("user", {"file_id": "file-1"}, "no file is kept here"),
        ("user", {"image_url": url(b"no image")}, "not a readable image"),
        ("user", {"image_url": url(ONE), "detail": "low"}, "detail 'low' is not available"),
        ("assistant", {"image_url": url(ONE)}, "images are read in messages of the user"),
        ("system", {"image_url": url(ONE)}, "images are read in messages of the user"),
    ],
)
def test_an_image_of_a_response_that_cannot_be_used_is_a_bad_request(
    served: Served, role: str, part: dict[str, str], words: str
) -> None:
    model = served.rollout()
    given = [{"role": role, "content": [{"type": "input_image"} | part]}]
    with pytest.raises(openai.BadRequestError) as refused, model.get_openai_client() as client:
        client.responses.create(model="model", input=given, max_output_tokens=2)  # type: ignore[arg-type]
    assert words in str(refused.value)
    assert model.history == []


def test_a_model_without_sight_refuses_an_image(tmp_path: Path) -> None:
    blind = Served(tmp_path)
    model = blind.rollout()
    with (
        pytest.raises(openai.BadRequestError, match="enable_multimodal") as refused,
        model.get_openai_client() as client,
    ):
        client.chat.completions.create(
            model="model",
            messages=parts("?", url(ONE)),
            max_tokens=2,  # type: ignore[arg-type]
        )
    assert refused.value.code == "E5613"
    blind.close()
