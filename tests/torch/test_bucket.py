"""Buckets: who goes together, where it lies, and what ranks tell each other in one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import hora.torch as hvd
from hora.torch.bucket import FIGURES, REPLICAS, Bucket, GradientEntry, layout_of, layout_sum, plan


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def entries(*parameters: torch.Tensor, group: int | None = None) -> list[GradientEntry]:
    return [GradientEntry(parameter, f"p{i}", group, 1) for i, parameter in enumerate(parameters)]


def sizes(given: list[GradientEntry], most_bytes: int) -> list[list[int]]:
    return [[e.parameter.numel() for e in bucket] for bucket in plan(given, lambda e: e.parameter.dtype, most_bytes)]


def test_the_first_bucket_is_small() -> None:
    mb = 1 << 18  # elements of float32
    assert sizes(entries(*[torch.empty(mb // 2)] * 12), 4 << 20) == [[mb // 2] * 2, [mb // 2] * 8, [mb // 2] * 2]


def test_one_that_is_too_large_has_a_bucket_of_its_own() -> None:
    assert sizes(entries(torch.empty(10), torch.empty(10_000), torch.empty(10)), 1000) == [[10], [10_000], [10]]


def test_types_and_groups_are_kept_apart() -> None:
    single, double = torch.empty(10), torch.empty(20, dtype=torch.float64)
    assert sizes(entries(single, double, single, double), 1 << 20) == [[10, 10], [20, 20]]
    mixed = [*entries(single, double, group=0), *entries(single, group=1), *entries(single)]
    assert sizes(mixed, 1) == [[10], [20], [10], [10]]
    assert sizes(entries(*[torch.empty(1000)] * 5, group=3), 1000) == [[1000] * 5]  # a group is never split


def test_nothing_at_all() -> None:
    assert plan([], lambda e: e.parameter.dtype, 100) == []


def test_views_are_laid_out_like_their_parameters() -> None:
    image = torch.empty(4, 3, 5, 5).to(memory_format=torch.channels_last)
    given = entries(torch.empty(3, 2), torch.empty(()), image, torch.empty(0), torch.empty(7).expand(2, 7))
    for entry in given:
        entry.layout = layout_of(entry.parameter)
    bucket = Bucket(given, torch.float32)
    for entry, view in zip(given, bucket.views, strict=True):
        assert view.shape == entry.parameter.shape and entry.view is view
        assert view.data_ptr() % 64 == bucket.flat.data_ptr() % 64 or not view.numel()
    assert bucket.views[2].stride() == image.stride()
    assert bucket.views[4].is_contiguous()  # its parameter's elements share memory; gradients cannot
    for i, view in enumerate(bucket.views):
        view.fill_(i + 1)
    assert [float(view.sum()) for view in bucket.views] == [6.0, 2.0, 900.0, 0.0, 70.0]
    assert not bucket.has_trouble()


def test_a_bucket_of_another_type_has_no_views_for_parameters() -> None:
    (entry,) = entries(torch.empty(3))
    bucket = Bucket([entry], torch.float16)
    assert entry.view is None and bucket.views[0].dtype is torch.float16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("factor", [1.0, 1 / 3, 7.0])
@pytest.mark.parametrize("asks", [0, FIGURES, REPLICAS, FIGURES | REPLICAS])
def test_what_ranks_say(dtype: torch.dtype, factor: float, asks: int) -> None:
    """As if three ranks had been reduced: one without the first, all without the second, one with an odd third."""
    ranks = [Bucket(entries(*[torch.ones(2)] * 3), dtype) for _ in range(3)]
    for bucket in ranks:
        bucket.open(asks if bucket is ranks[0] else 0)
        bucket.mark_absent(1)
    ranks[0].mark_absent(0)
    ranks[1].mark_odd(2)
    total = torch.stack([bucket.flat for bucket in ranks]).sum(0) * factor
    bucket = ranks[2]
    bucket.flat.copy_(total)
    absent, odd = bucket.verdicts()
    assert absent == pytest.approx([1 / 3, 1, 0], abs=0.01) and absent[1] == 1.0
    assert odd == pytest.approx([0, 0, 1 / 3], abs=0.01)
    assert bucket.asks() == asks and bucket.has_trouble()
    bucket.reset(had_trouble=True)
    bucket.open()
    assert bucket.verdicts() == ([0.0] * 3, [0.0] * 3) and not bucket.has_trouble() and not bucket.asks()


def test_layouts() -> None:
    image = torch.empty(4, 3, 5, 5)
    last = image.to(memory_format=torch.channels_last)
    assert layout_of(image) is None and layout_of(last) == last.stride()
    assert layout_of(image[:, ::2]) is None and layout_of(torch.empty(1).expand(4)) is None
    assert layout_sum(image) == layout_sum(torch.empty(2)) != layout_sum(last)
    # The stride of a dimension of one element says nothing.
    assert layout_sum(torch.empty(3, 1, 2).transpose(0, 2)) == layout_sum(torch.empty(3, 1, 2).permute(2, 1, 0))
