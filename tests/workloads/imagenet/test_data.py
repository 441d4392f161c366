"""Cuts against torchvision's rules written out, pixels against Pillow's, and whose random numbers they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hora.data import jpeg
from hora.data.loader import BatchPlan, Loader
from hora.data.source import Sample
from hora.errors import BadData
from hora.workloads.imagenet.data import Box, TrainingBatches, ValidationBatches, centre, normalised, random_box


class Memory:
    """A source in memory."""

    classes = ("a", "b")

    def __init__(self, *files: bytes) -> None:
        self._files = files
        self.labels = np.arange(len(files)) % 2

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> Sample:
        return Sample(self._files[index], int(self.labels[index]))

    def name(self, index: int) -> str:
        return f"picture {index}"


def smooth(height: int, width: int, seed: int = 0) -> jpeg.Pixels:
    """A picture that survives JPEG and resizing: a few waves."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / width * a + y / height * b) for a, b in random.uniform(2, 9, (3, 2))]
    return np.stack([127 + 120 * wave for wave in waves], axis=2).astype(np.uint8)


def plan(*indices: int, epoch: int = 0) -> BatchPlan:
    return BatchPlan(np.array(indices), epoch)


@given(height=st.integers(1, 600), width=st.integers(1, 600), seed=st.integers(0, 2**32))
def test_a_box_is_inside_and_of_the_allowed_shape(height: int, width: int, seed: int) -> None:
    box = random_box(height, width, np.random.default_rng(seed))
    assert 0 <= box.top <= height - box.height and 0 <= box.left <= width - box.width
    assert box.height >= 1 and box.width >= 1
    if min(height, width) > 100 and 3 / 4 < width / height < 4 / 3:
        assert 0.07 < box.height * box.width / (height * width) <= 1
        assert 0.73 < box.width / box.height < 1.37


def test_areas_and_aspects_are_drawn_as_torchvision_draws_them() -> None:
    random = np.random.default_rng(0)
    boxes = [random_box(1000, 1000, random) for _ in range(4000)]
    areas, aspects = random.uniform(0.08, 1, 100_000), np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3), 100_000))
    fit = (areas * aspects <= 1) & (areas / aspects <= 1)
    shares = (0.1, 0.5, 0.9)
    found = np.quantile([box.height * box.width / 1e6 for box in boxes], shares)
    np.testing.assert_allclose(found, np.quantile(areas[fit], shares), atol=0.03)
    found = np.quantile([math.log(box.width / box.height) for box in boxes], shares)
    np.testing.assert_allclose(found, np.quantile(np.log(aspects[fit]), shares), atol=0.03)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (10, 1000, Box(0, 493, 10, 13)),  # too wide: the largest of 4:3
        (1000, 10, Box(493, 0, 13, 10)),  # too tall: the largest of 3:4
        (1, 1, Box(0, 0, 1, 1)),
    ],
)
def test_where_none_fits_it_is_the_middle(height: int, width: int, expected: Box) -> None:
    assert random_box(height, width, np.random.default_rng(0)) == expected


@given(height=st.integers(1, 2000), width=st.integers(1, 2000))
def test_the_centre_is_torchvisions(height: int, width: int) -> None:
    tall, wide, box = centre(height, width, 256, 224)
    short, long = min(height, width), max(height, width)
    expected = (256, int(256 * long / short))
    assert (min(tall, wide), max(tall, wide)) == expected and (tall <= wide) == (height <= width or tall == wide)
    assert box == (round((tall - 224) / 2.0), round((wide - 224) / 2.0), 224, 224)


def test_validation_is_pillows_resize_and_crop() -> None:
    pixels = smooth(150, 200)
    images, labels = ValidationBatches(Memory(jpeg.encode_png(pixels)), 56, 64)[plan(0)]
    expected = np.asarray(Image.fromarray(pixels).resize((85, 64), Image.Resampling.BILINEAR))[4:60, 14:70]
    assert images.shape == (1, 3, 56, 56) and images.dtype == torch.uint8 and labels.tolist() == [0]
    difference = images[0].permute(1, 2, 0).numpy().astype(int) - expected
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("index", range(6))
def test_training_is_pillows_crop_and_resize(index: int) -> None:
    pixels = smooth(150, 200)
    images, _ = TrainingBatches(Memory(*[jpeg.encode_png(pixels)] * 6), 64, seed=3)[plan(index, epoch=2)]
    random = np.random.default_rng((3, 2, index))
    top, left, height, width = random_box(150, 200, random)
    cut = Image.fromarray(pixels[top : top + height, left : left + width])
    expected = np.asarray(cut.resize((64, 64), Image.Resampling.BILINEAR))
    expected = expected[:, ::-1] if random.random() < 0.5 else expected
    assert np.abs(images[0].permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


@pytest.mark.parametrize("seed", range(4))
def test_decoding_at_a_fraction_changes_little(seed: int) -> None:
    """What is decoded small and then cut is what was cut from the whole, up to half a pixel."""
    data = jpeg.encode(smooth(400, 500), quality=98)
    assert jpeg.decode(data, at_least=(100, 100)).shape == (100, 125, 3)
    small, _ = TrainingBatches(Memory(data), 32, seed)[plan(0)]
    whole, _ = TrainingBatches(Memory(jpeg.encode_png(jpeg.decode(data))), 32, seed)[plan(0)]
    assert (small.float() - whole.float()).abs().mean() < 6


def test_random_numbers_belong_to_seed_epoch_and_sample() -> None:
    source = Memory(*(jpeg.encode(smooth(80, 80, seed)) for seed in range(4)))
    training = TrainingBatches(source, 32, seed=1)
    together, _ = training[plan(0, 1, 2, 3)]
    for place, index in enumerate((2, 0)):
        assert torch.equal(training[plan(2, 0)][0][place], together[index])
    assert not torch.equal(training[plan(0, epoch=1)][0], training[plan(0)][0])
    assert not torch.equal(TrainingBatches(source, 32, seed=2)[plan(0)][0], training[plan(0)][0])


def test_loader_processes_make_the_same_pictures() -> None:
    source = Memory(*(jpeg.encode(smooth(80, 80, seed)) for seed in range(6)))
    batches = []
    for processes in (0, 2):
        with Loader(
            TrainingBatches(source, 32, seed=1),
            lambda e: [plan(e, 1), plan(2, 3), plan(5, 4)],
            processes=processes,
            epochs=2,
        ) as loader:
            batches.append([images.clone() for epoch in (0, 1) for images, _ in loader.epoch(epoch)])
    assert all(torch.equal(*pair) for pair in zip(*batches, strict=True)) and len(batches[0]) == 6


def test_normalisation_is_torchvisions() -> None:
    images = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    torch.testing.assert_close(normalised(images), (images.float() / 255 - mean) / std)


def test_a_damaged_picture_is_named() -> None:
    whole = jpeg.encode(smooth(80, 80))
    with pytest.raises(BadData, match="picture 1"):
        TrainingBatches(Memory(whole, whole[:100]), 32, seed=0)[plan(0, 1)]
    with pytest.raises(BadData, match="picture 1"):
        ValidationBatches(Memory(whole, b"nothing"), 32, 36)[plan(0, 1)]
