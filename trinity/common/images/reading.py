"""Images of rows and messages as encoded bytes, and their pixels.

Nothing here imports torch, because readers of rows and checks use it.
"""

from __future__ import annotations

import base64
import binascii
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

MAX_IMAGE_BYTES = 32 * 1024 * 1024
"""Largest encoded image, in bytes."""
MAX_PIXELS = 2**26
"""Most pixels of an image, 8192 x 8192: what is larger is refused before it is decoded."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_DATA_URI = "data:image/"


class UnreadableImage(ValueError):
    """Why a value is no image; callers say where it stands."""


def images_of(value: Any) -> list[Any]:
    """Return the images of a row's cell, a list or one; none of null."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def image_bytes(value: Any, *, folder: Path | None = None) -> bytes:
    """Return an image as encoded bytes.

    Args:
        value: bytes; a mapping with `bytes` or `path`, as `datasets` stores images; a `PIL.Image.Image`, which becomes
            PNG; a data: URI with base64; or, with `folder`, a path.
        folder: where paths begin; None: paths are refused, as for what a client sends.

    Raises:
        UnreadableImage: another value, too many bytes, or a file that cannot be read. Nothing is fetched.
    """
    from PIL import Image  # slow to import, and most rows have no image

    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, Image.Image):
        return _as_png(value)
    if isinstance(value, str | Path):
        value = _of_text(str(value), folder)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise UnreadableImage(f"an image is bytes, a path or a PIL image, got {type(value).__name__}")
    if len(value) > MAX_IMAGE_BYTES:
        raise UnreadableImage(f"an image has at most {MAX_IMAGE_BYTES} bytes, got {len(value)}")
    return bytes(value)


def _of_text(text: str, folder: Path | None) -> bytes:
    if text.startswith(_DATA_URI):
        head, _, body = text.partition(",")
        if not head.endswith(";base64"):
            raise UnreadableImage("a data: URI of an image must be base64")
        if len(body) > MAX_IMAGE_BYTES * 4 // 3 + 4:
            raise UnreadableImage(f"an image has at most {MAX_IMAGE_BYTES} bytes")
        try:
            return base64.b64decode(body, validate=True)
        except binascii.Error as error:
            raise UnreadableImage(f"a data: URI that is not base64: {error}") from error
    scheme, mark, _ = text.partition("://")
    if mark:
        raise UnreadableImage(f"{scheme}: is not fetched; give the image's bytes, or a data: URI with base64")
    if folder is None:
        raise UnreadableImage("a path is not read here; give the image's bytes, or a data: URI with base64")
    file = folder / Path(text).expanduser()
    try:
        if file.stat().st_size > MAX_IMAGE_BYTES:
            raise UnreadableImage(f"an image has at most {MAX_IMAGE_BYTES} bytes, {file} has {file.stat().st_size}")
        return file.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, UnreadableImage):
            raise
        raise UnreadableImage(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def data_uri(data: bytes) -> str:
    """Return an encoded image as text, which `image_bytes` reads.

    Raises:
        UnreadableImage: none of `FORMATS`.
    """
    from PIL import Image

    try:
        kind = str(Image.open(io.BytesIO(data), formats=FORMATS).format).lower()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UnreadableImage(f"not a readable image ({', '.join(FORMATS)}): {error}") from error
    return f"{_DATA_URI}{kind};base64,{base64.b64encode(data).decode()}"


def _as_png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    try:
        image.save(stream, "PNG")
    except (OSError, ValueError) as error:
        raise UnreadableImage(f"a PIL image of mode {image.mode} cannot be written as PNG: {error}") from error
    return stream.getvalue()


def opened(data: bytes) -> Image.Image:
    """Return the RGB pixels of an encoded image.

    The first frame is taken; transparent parts become white.

    Raises:
        UnreadableImage: none of `FORMATS`, damaged, or more than `MAX_PIXELS`.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns at lower limits of its own; ours is checked below
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise UnreadableImage(f"an image has at most {MAX_PIXELS} pixels, got {width} x {height}")
            image.load()
            return _rgb(image)
    except UnreadableImage:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise UnreadableImage(f"not a readable image ({', '.join(FORMATS)}): {error}") from error


def size_of(data: bytes) -> tuple[int, int]:
    """Return width and height of an encoded image, in pixels.

    Nothing is decoded.

    Raises:
        UnreadableImage: none of `FORMATS`.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Image.open(io.BytesIO(data), formats=FORMATS).size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UnreadableImage(f"not a readable image ({', '.join(FORMATS)}): {error}") from error


def _rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode == "RGB":
        return image
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        ground = Image.new("RGB", image.size, (255, 255, 255))
        ground.paste(layer, mask=layer.getchannel("A"))
        return ground
    return image.convert("RGB")
