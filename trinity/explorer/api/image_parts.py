"""Images in requests, as the interfaces write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity.common.images.reading import UnreadableImage, image_bytes

MAX_IMAGES = 64
"""Most images of a request."""
_DETAILS = (None, "auto", "high")
MEDIA_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp")


def of_url(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part `image_url` of chat completions as engines read it.

    Its address is a data: URL. Nothing is fetched: a run must not ask other servers for what an agent names. Whether
    the bytes are an image is found where it is prepared.

    Raises:
        ValueError: another address or form, or too many bytes.
    """
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    detail = given.get("detail") if isinstance(given, Mapping) else None
    if not isinstance(url, str):
        raise ValueError("a part of type 'image_url' needs image_url: {url: 'data:image/png;base64,...'}")
    if detail not in _DETAILS:
        raise ValueError(
            f"detail {detail!r} is not available here: the size of an image sets its number of tokens; leave detail out"
        )
    try:
        image_bytes(url)
    except UnreadableImage as error:
        raise ValueError(f"an image cannot be used: {error}") from error
    return {"type": "image_url", "image_url": {"url": url}}


def of_source(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block `image` of `/v1/messages` as a part of chat completions.

    Raises:
        ValueError: not base64 of a media type that is read here.
    """
    source = block.get("source")
    source = source if isinstance(source, Mapping) else {}
    kind, media = source.get("type"), source.get("media_type")
    if kind != "base64" or not isinstance(source.get("data"), str):
        raise ValueError(f"the source of an image must be base64, got {kind!r}; nothing is fetched")
    if media not in MEDIA_TYPES:
        raise ValueError(f"media_type of an image must be one of {', '.join(MEDIA_TYPES)}, got {media!r}")
    return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{source['data']}"}}
