"""Image files to pixels and back: JPEG by libjpeg-turbo (simplejpeg), PNG and unusual JPEGs by Pillow.

A JPEG can be decoded at a fraction of its size for a fraction of the price, so whoever will shrink an image says how
small it may get. What cannot be decoded raises BadData with the sample's name.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from hora.data.need import need
from hora.errors import BadData

__all__ = ["PNG", "Pixels", "decode", "encode", "encode_png", "size"]

Pixels = npt.NDArray[np.uint8]

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"  # how the files begin


def decode(data: bytes, at_least: tuple[int, int] | None = None, *, name: str = "an image") -> Pixels:
    """The pixels of an image file as (height, width, 3) in RGB, whatever colours it has.

    A JPEG is decoded at 1/2, 1/4 or 1/8 if both its height and its width then still are ``at_least`` that: the smallest
    such. (Other fractions that libjpeg has are no faster than the whole.) ``name`` is for messages.

    >>> image = np.full((300, 400, 3), 128, np.uint8)
    >>> decode(encode(image)).shape, decode(encode(image), at_least=(70, 100)).shape
    ((300, 400, 3), (75, 100, 3))
    """
    if not data.startswith(JPEG):
        return _by_pillow(data, None, name)
    simplejpeg = need("simplejpeg", "to decode JPEG files")
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours in ("CMYK", "YCCK"):
            return _by_pillow(data, at_least, name)
        scaled = _fraction(height, width, at_least)
        smallest = {} if scaled == 1 else {"min_height": -(-height // scaled), "min_width": -(-width // scaled)}
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", min_factor=scaled, **smallest)
        return pixels
    except ValueError:
        # Also what is merely odd, such as stray bytes, which real data sets have: Pillow forgives that, but not a
        # missing part.
        return _by_pillow(data, at_least, name)


def size(data: bytes, *, name: str = "an image") -> tuple[int, int]:
    """Height and width of an image file, from its header alone.

    >>> size(encode(np.zeros((30, 40, 3), np.uint8)))
    (30, 40)
    """
    if data.startswith(JPEG):
        try:
            height, width, _, _ = need("simplejpeg", "to decode JPEG files").decode_jpeg_header(data)
            return height, width
        except ValueError:
            pass
    width, height = _opened(data, name).size
    return height, width


def encode(pixels: Pixels, quality: int = 90) -> bytes:
    """A JPEG file of these (height, width, 3) pixels.

    >>> encode(np.zeros((8, 8, 3), np.uint8))[:2].hex()
    'ffd8'
    """
    simplejpeg = need("simplejpeg", "to encode JPEG files")
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", "420"))


def encode_png(pixels: Pixels) -> bytes:
    """A PNG file of these (height, width, 3) or (height, width) pixels; loses nothing.

    >>> int(decode(encode_png(np.full((2, 2, 3), 7, np.uint8)))[1, 1, 2])
    7
    """
    file = io.BytesIO()
    need("PIL.Image", "to encode PNG files").fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _fraction(height: int, width: int, at_least: tuple[int, int] | None) -> int:
    if at_least is None:
        return 1
    return next((n for n in (8, 4, 2) if -(-height // n) >= at_least[0] and -(-width // n) >= at_least[1]), 1)


def _by_pillow(data: bytes, at_least: tuple[int, int] | None, name: str) -> Pixels:
    image = _opened(data, name)
    try:
        if at_least is not None:
            scaled = _fraction(image.height, image.width, at_least)
            image.draft(None, (-(-image.width // scaled), -(-image.height // scaled)))
        return np.array(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as error:
        raise BadData(f"{name} cannot be decoded: {error}. It is damaged; fetch it again, or take it out.") from None


def _opened(data: bytes, name: str) -> Any:
    image = need("PIL.Image", "to read images other than plain JPEG files")
    try:
        return image.open(io.BytesIO(data))
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        why = "is cut off or damaged" if data.startswith((JPEG, PNG)) else "is neither JPEG nor PNG"
        said = (
            f" ({error})"
            if data.startswith((JPEG, PNG)) and not isinstance(error, image.UnidentifiedImageError)
            else ""
        )
        raise BadData(
            f"{name} cannot be decoded: it {why}{said}; it has {len(data)} bytes and begins with {data[:4].hex(' ')}. "
            "Fetch it again, or take it out."
        ) from None
