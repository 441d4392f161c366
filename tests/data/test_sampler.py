"""The sampler: every sample once, the same shuffle everywhere, resumable on another number of workers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hora.data.sampler import Sampler
from hora.errors import UsageError

SAMPLES, SIZES = st.integers(1, 200), st.integers(1, 9)


def shares(samples: int, size: int, **more: object) -> list[list[int]]:
    return [list(Sampler(samples, rank=rank, size=size, **more)) for rank in range(size)]  # type: ignore[arg-type]


@settings(deadline=None)
@given(SAMPLES, SIZES, st.integers(0, 5))
def test_kept_uneven_every_sample_comes_exactly_once(samples: int, size: int, seed: int) -> None:
    taken = shares(samples, size, seed=seed, uneven="keep")
    assert sorted(sample for share in taken for sample in share) == list(range(samples))
    assert max(map(len, taken)) - min(map(len, taken)) <= 1


@settings(deadline=None)
@given(SAMPLES, SIZES)
def test_wrapped_it_is_what_torchs_sampler_gives(samples: int, size: int) -> None:
    """Without shuffling the two must agree; DistributedSampler is the reference for padding."""
    for rank, share in enumerate(shares(samples, size, shuffle=False)):
        reference = torch.utils.data.DistributedSampler(range(samples), size, rank, shuffle=False)  # type: ignore[arg-type]
        assert share == list(reference)
        assert len(Sampler(samples, rank=rank, size=size)) == len(share)


@settings(deadline=None)
@given(SAMPLES, SIZES)
def test_dropped_all_have_the_same_and_none_twice(samples: int, size: int) -> None:
    if samples < size:
        with pytest.raises(UsageError, match="divided"):
            Sampler(samples, size=size, uneven="drop")
        return
    taken = shares(samples, size, uneven="drop")
    assert {len(share) for share in taken} == {samples // size}
    flat = [sample for share in taken for sample in share]
    assert len(set(flat)) == len(flat)


@settings(deadline=None)
@given(st.integers(2, 200), SIZES, SIZES, st.data())
def test_resumed_on_other_workers_the_rest_comes_exactly_once(
    samples: int, size: int, later: int, data: st.DataObject
) -> None:
    steps = data.draw(st.integers(0, samples // size))
    before = [Sampler(samples, rank=rank, size=size, seed=3, uneven="keep") for rank in range(size)]
    done = [sample for sampler in before for sample in list(sampler)[:steps]]
    before[0].set_epoch(0)
    before[0].advance(steps * size)
    state = before[0].state_dict()
    rest = []
    for rank in range(later):
        sampler = Sampler(samples, rank=rank, size=later, uneven="keep")
        sampler.load_state_dict(state)
        assert len(sampler) == len(list(sampler))
        rest += list(sampler)
    assert sorted(done + rest) == list(range(samples))


def test_each_epoch_has_an_order_of_its_own_and_it_comes_again() -> None:
    sampler = Sampler(100, seed=1)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    sampler.set_epoch(0)
    assert first != second and list(sampler) == first and sorted(second) == sorted(first)


def test_another_data_set_is_refused() -> None:
    with pytest.raises(UsageError, match="100 samples, this one has 99"):
        Sampler(99).load_state_dict(Sampler(100).state_dict())


@pytest.mark.parametrize("wrong", [{"rank": 2, "size": 2}, {"rank": -1}, {"uneven": "guess"}, {"samples": 0}])
def test_wrong_arguments(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Sampler(**{"samples": 5, **wrong})  # type: ignore[arg-type]
