"""Pictures against Pillow's decoder, at every scale; what cannot be decoded is named."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hora.data import jpeg
from hora.errors import BadData, EnvironmentUnfit


def picture(height: int, width: int) -> jpeg.Pixels:
    """Smooth, so that JPEG keeps it well."""
    down, across = np.mgrid[:height, :width]
    return np.stack([down % 256, across % 256, (down + across) // 2 % 256], axis=2).astype(np.uint8)


def saved(pixels: jpeg.Pixels, mode: str, form: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, form, **options)
    return file.getvalue()


def far(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(int) - other.astype(int)).mean())


def test_what_is_encoded_is_decoded() -> None:
    pixels = picture(120, 200)
    data = jpeg.encode(pixels, quality=95)
    assert jpeg.size(data) == (120, 200)
    found = jpeg.decode(data)
    assert found.dtype == np.uint8 and found.shape == (120, 200, 3) and far(found, pixels) < 2
    np.testing.assert_array_equal(jpeg.decode(jpeg.encode_png(pixels)), pixels)
    assert jpeg.size(jpeg.encode_png(pixels)) == (120, 200)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_any_colours_become_rgb(mode: str, options: dict[str, object]) -> None:
    data = saved(picture(64, 48), mode, **options)
    reference = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert far(jpeg.decode(data), reference) < 2
    assert jpeg.decode(data, at_least=(16, 12)).shape == (16, 12, 3)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "LA", "1"])
def test_any_png_becomes_rgb(mode: str) -> None:
    data = saved(picture(10, 12), mode, "PNG")
    np.testing.assert_array_equal(jpeg.decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.integers(1, 130), st.integers(1, 130)), st.tuples(st.integers(1, 150), st.integers(1, 150)))
def test_the_smallest_scale_that_is_enough(shape: tuple[int, int], at_least: tuple[int, int]) -> None:
    data = jpeg.encode(picture(*shape))
    found = jpeg.decode(data, at_least=at_least)
    sizes = [tuple(-(-side // n) for side in shape) for n in (8, 4, 2, 1)]
    enough = [size for size in sizes if size[0] >= at_least[0] and size[1] >= at_least[1]]
    assert found.shape == (*(enough[0] if enough else shape), 3)
    small = np.asarray(Image.fromarray(picture(*shape)).resize(found.shape[1::-1], Image.Resampling.BOX))
    assert far(found, small) < 12  # edges of a period and of a block differ; a wrong picture would be far off


def test_stray_bytes_are_forgiven_as_real_sets_have_them() -> None:
    pixels = picture(40, 40)
    data = jpeg.encode(pixels)
    place = data.index(b"\xff\xda")
    assert far(jpeg.decode(data[:place] + b"\0\0" + data[place:]), pixels) < 4


@pytest.mark.parametrize("data", [jpeg.encode(picture(99, 99)), jpeg.encode_png(picture(99, 99))], ids=["JPEG", "PNG"])
def test_cut_off_at_any_place_is_refused_by_name(data: bytes) -> None:
    for end in {0, 1, 4, 30, len(data) // 2, len(data) - 40}:
        with pytest.raises(BadData, match=r"n01/x\.JPEG cannot be decoded"):
            jpeg.decode(data[:end], name="n01/x.JPEG")


def test_what_is_no_picture_is_said() -> None:
    with pytest.raises(BadData, match=r"x\.jpg .* neither JPEG nor PNG; it has 15 bytes and begins with 3c 21 44 4f"):
        jpeg.decode(b"<!DOCTYPE html>", name="x.jpg")
    with pytest.raises(BadData, match="neither JPEG nor PNG"):
        jpeg.size(b"", name="x.jpg")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 700), st.integers(1, 255))
def test_any_damage_gives_pixels_or_is_refused(place: int, change: int) -> None:
    data = bytearray(jpeg.encode(picture(16, 16)))
    data[place % len(data)] ^= change
    try:
        assert jpeg.decode(bytes(data)).ndim == 3
    except BadData as error:
        assert "an image" in str(error)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = jpeg.encode(picture(8, 8))
    monkeypatch.setitem(__import__("sys").modules, "simplejpeg", None)
    with pytest.raises(EnvironmentUnfit, match=r"simplejpeg is needed .* pip install hora\[data\]"):
        jpeg.decode(data)
