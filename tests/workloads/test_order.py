"""Who takes which sample: every one once, whoever plays which worker, and wherever the run was interrupted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hora.data.sampler import Sampler
from hora.errors import UsageError
from hora.workloads.options import WorkloadOptions
from hora.workloads.order import SampleOrder


def options(**given: object) -> WorkloadOptions:
    return WorkloadOptions.of({"epochs": 3, **given})


@pytest.mark.parametrize(("workers", "steps"), [(1, 10010), (2, 5005), (8, 1252), (16, 626), (24, 418), (32, 313)])
def test_the_studys_steps_of_an_epoch_of_imagenet(workers: int, steps: int) -> None:
    assert SampleOrder(1_281_167, workers, options(batch=128, last="keep")).steps_per_epoch == steps
    dropped = SampleOrder(1_281_167, workers, options(batch=128))
    assert dropped.steps_per_epoch == 1_281_167 // (128 * workers)


@given(
    samples=st.integers(24, 200), workers=st.integers(1, 4), batch=st.integers(1, 3), parts=st.integers(1, 2),
    last=st.sampled_from(["drop", "keep"]), epoch=st.integers(0, 2),
)  # fmt: skip
def test_an_epoch_is_one_shuffle_dealt_out(
    samples: int, workers: int, batch: int, parts: int, last: str, epoch: int
) -> None:
    chosen = options(batch=batch, accumulate=parts, last=last, seed=7)
    order = SampleOrder(samples, workers, chosen)
    order.begin(epoch)
    plans = [order.plans(range(worker, worker + 1)) for worker in range(workers)]
    together = order.plans(range(workers))
    assert [p.indices.tolist() for p in together] == [
        p.indices.tolist()
        for step in range(len(plans[0]) // parts)
        for mine in plans
        for p in mine[step * parts : (step + 1) * parts]
    ]
    taken = np.concatenate([plan.indices for plan in together])
    reference = Sampler(samples, seed=7)
    reference.set_epoch(epoch)
    if last == "drop":
        whole = samples // (workers * batch * parts) * workers * batch * parts
        assert sorted(taken) == sorted(reference.order()[:whole])
    else:
        assert set(taken) == set(range(samples)) and len(taken) - samples < workers * parts
        assert len({sum(len(plan.indices) for plan in mine) for mine in plans}) == 1


@given(
    samples=st.integers(40, 200), stop=st.integers(0, 3), before=st.integers(1, 4), after=st.integers(1, 4),
    last=st.sampled_from(["drop", "keep"]),
)  # fmt: skip
def test_going_on_with_another_number_of_workers_takes_the_rest_once(
    samples: int, stop: int, before: int, after: int, last: str
) -> None:
    first = SampleOrder(samples, before, options(batch=2, last=last))
    done = [plan.indices for plan in first.plans(range(before))[: stop * before]]
    for _ in range(stop):
        first.advance()
    second = SampleOrder(samples, after, options(batch=2, last=last))
    second.load_state_dict(first.state_dict())
    rest = [plan.indices for plan in second.plans(range(after))]
    taken = np.concatenate([*done, *rest]) if done or rest else np.array([])
    if last == "drop":
        assert len(set(taken)) == len(taken) > samples - 2 * after
    else:
        assert set(taken) == set(range(samples)) and len(taken) - samples < after


def test_the_same_number_of_workers_goes_on_with_the_same_batches() -> None:
    order = SampleOrder(100, 4, options(batch=5))
    expected = order.plans(range(2, 4))
    order.advance()
    order.advance()
    left = order.plans(range(2, 4))
    assert [(p.indices.tolist(), p.step) for p in left] == [(p.indices.tolist(), p.step) for p in expected[4:]]


def test_the_end_of_a_run() -> None:
    order = SampleOrder(100, 2, options(batch=5, epochs=1.5))
    assert order.steps_left == 10
    order.begin(1)
    assert order.steps_left == 5
    order.begin(2)
    assert order.steps_left == 0
    few = SampleOrder(100, 2, options(batch=5, max_steps=7))
    assert few.steps_left == 7
    for _ in range(7):
        few.advance()
    assert few.steps_left == 0 and few.step == 7 and few.samples_seen == 70 and few.position == 0.7


@pytest.mark.parametrize(("samples", "batch", "workers"), [(100, 51, 2), (10, 20, 1), (3, 1, 4)])
def test_a_batch_larger_than_the_shard_is_refused(samples: int, batch: int, workers: int) -> None:
    with pytest.raises(UsageError, match=f"a batch of {batch} for each of {workers} workers"):
        SampleOrder(samples, workers, options(batch=batch))
