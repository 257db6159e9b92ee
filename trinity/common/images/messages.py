"""Images in messages: `<image>` in texts, and parts of a content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trinity.common.images.reading import data_uri, image_bytes

PLACEHOLDER = "<image>"
IMAGE_PARTS = ("image", "image_url")
IMAGE = {"type": "image"}

Message = dict[str, Any]


class MisplacedImages(ValueError):
    """Why images do not fit the messages; callers say where they stand."""


def num_placeholders(content: Any) -> int:
    """Return how many images a content names.

    Counts `<image>` in texts, and image parts without an image.
    """
    if isinstance(content, str):
        return content.count(PLACEHOLDER)
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    return sum(text.count(PLACEHOLDER) for text in texts) + sum(_is_empty(part) for part in parts)


def num_places(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return how many images the messages name, but for an assistant's."""
    return sum(num_placeholders(message.get("content")) for message in messages if message.get("role") != "assistant")


def with_images(messages: Sequence[Mapping[str, Any]], images: Sequence[Any]) -> list[Message]:
    """Return messages in which images stand as parts, in order.

    Each `<image>` of a text, and each image part without an image, is replaced by the next image, but for messages of
    an assistant, where it is what was said. If there is none, all images stand before the first user's text.

    Raises:
        MisplacedImages: another number of places than of images.
    """
    count = num_places(messages)
    if not count and images:
        return _before_text(messages, images)
    if count != len(images):
        raise MisplacedImages(f"has {len(images)} images, and its prompt has places for {count} ({PLACEHOLDER})")
    left = iter(images)
    return [_filled(message, left) for message in messages]


def _before_text(messages: Sequence[Mapping[str, Any]], images: Sequence[Any]) -> list[Message]:
    made = [dict(message) for message in messages]
    first = next((message for message in made if message.get("role") == "user"), None)
    if first is None:
        raise MisplacedImages(f"has {len(images)} images, and its prompt has no user message")
    content = first.get("content")
    rest = content if isinstance(content, list) else [{"type": "text", "text": str(content or "")}]
    first["content"] = [*({"type": "image", "image": image} for image in images), *rest]
    return made


def _filled(message: Mapping[str, Any], left: Any) -> Message:
    content = message.get("content")
    if not num_places([message]):
        return dict(message)
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    filled: list[Any] = []
    for part in parts if isinstance(parts, list) else []:
        if _is_empty(part):
            filled.append({"type": "image", "image": next(left)})
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            filled += _text_parts(part["text"], left)
        else:
            filled.append(part)
    return {**message, "content": filled}


def _text_parts(text: str, left: Any) -> list[Message]:
    made: list[Message] = []
    for number, piece in enumerate(text.split(PLACEHOLDER)):
        if number:
            made.append({"type": "image", "image": next(left)})
        if piece:
            made.append({"type": "text", "text": piece})
    return made


def _is_empty(part: Any) -> bool:
    return _is_image(part) and part.get("image") is None and part.get("image_url") is None


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in IMAGE_PARTS


def has_images(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a content of the messages has an image part."""
    contents = [message.get("content") for message in messages]
    return any(_is_image(part) for content in contents if isinstance(content, list) for part in content)


def without_images(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Message], list[bytes]]:
    """Return the messages for a chat template, and their encoded images.

    Raises:
        UnreadableImage: a part holds no image.
    """
    images: list[bytes] = []
    made: list[Message] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            parts: list[Any] = []
            for part in content:
                if _is_image(part):
                    images.append(image_bytes(_image(part)))
                    parts.append(dict(IMAGE))
                else:
                    parts.append(part)
            message = {**message, "content": parts}
        made.append(dict(message))
    return made, images


def with_data_uris(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return messages as JSON takes them: their images are data: URIs.

    Raises:
        UnreadableImage: a part holds no image.
    """
    made: list[Message] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            parts = [_written(part) if _is_image(part) and not _is_empty(part) else part for part in content]
            message = {**message, "content": parts}
        made.append(dict(message))
    return made


def _written(part: Mapping[str, Any]) -> Message:
    return {"type": "image", "image": data_uri(image_bytes(_image(part)))}


def _image(part: Mapping[str, Any]) -> Any:
    """Return what an image part holds, `image_url` as OpenAI's clients do."""
    value = part.get("image")
    url = part.get("image_url")
    if value is None and url is not None:
        value = url.get("url") if isinstance(url, Mapping) else url
    return value
