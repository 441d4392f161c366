"""Workers in one process compute what workers in processes of their own would."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import hora.torch as hvd
from hora.errors import UsageError
from hora.workloads.options import WorkloadOptions
from hora.workloads.workers import EmulatedWorkers


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2), nn.BatchNorm1d(2))


def test_each_has_its_own_statistics_and_their_mean_is_validated() -> None:
    hvd.init()
    model = network()
    separate = [copy.deepcopy(model) for _ in range(3)]
    workers = EmulatedWorkers(model, WorkloadOptions(emulate_workers=3))
    assert [worker.rank for worker in workers] == [0, 1, 2]
    for step in range(4):
        for worker, alone in zip(workers, separate, strict=True):
            x = torch.randn(5, 3, generator=torch.Generator().manual_seed(10 * step + worker.rank)) * (1 + worker.rank)
            with worker:
                drawn = torch.get_rng_state()
                ours = model(x)
                torch.set_rng_state(drawn)
                assert torch.equal(ours, alone(x))
    workers.average()
    for layer in (1, 4):
        for name in ("running_mean", "running_var"):
            expected = np.mean([getattr(alone[layer], name).numpy() for alone in separate], axis=0, dtype=np.float64)
            np.testing.assert_allclose(getattr(model[layer], name).numpy(), expected, rtol=1e-6)
        assert int(model[layer].num_batches_tracked) == 4
    workers.separate()
    with list(workers)[2]:
        assert torch.equal(model[1].running_mean, separate[2][1].running_mean)


def test_random_numbers_go_on_where_they_were_and_are_each_workers_own() -> None:
    hvd.init()
    model = network()

    def draw(workers: EmulatedWorkers) -> list[list[float]]:
        drawn: list[list[float]] = [[] for _ in workers]
        for _ in range(3):
            for worker, numbers in zip(workers, drawn, strict=True):
                with worker:
                    numbers.append(torch.rand(()).item())
                torch.rand(7)  # somebody else's
        return drawn

    drawn = draw(EmulatedWorkers(model, WorkloadOptions(emulate_workers=2, seed=4)))
    assert len({number for numbers in drawn for number in numbers}) == 6
    assert (
        draw(EmulatedWorkers(model, WorkloadOptions(emulate_workers=4, seed=4)))[:2] == drawn
    )  # whoever else there is
    assert draw(EmulatedWorkers(model, WorkloadOptions(emulate_workers=2, seed=5))) != drawn
    assert draw(EmulatedWorkers(model, WorkloadOptions(seed=4)))[0] == drawn[0]  # emulated or not


def test_a_state_is_put_back_at_the_same_number_only() -> None:
    hvd.init()
    model = network()
    workers = EmulatedWorkers(model, WorkloadOptions(emulate_workers=2))
    for worker in workers:
        with worker:
            model(torch.randn(4, 3))
    state = copy.deepcopy(workers.state())
    workers.begin(7)
    with next(iter(workers)):
        first, expected = model(torch.ones(2, 3)).tolist(), model[1].running_mean.clone()
    assert workers.load_state(state)
    workers.begin(7)
    with next(iter(workers)):
        assert model(torch.ones(2, 3)).tolist() == first and torch.equal(model[1].running_mean, expected)
    assert not EmulatedWorkers(model, WorkloadOptions(emulate_workers=3)).load_state(state)


def test_a_number_that_does_not_divide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hvd, "size", lambda: 2)
    monkeypatch.setattr(hvd, "rank", lambda: 1)
    with pytest.raises(UsageError, match="--emulate-workers 5 cannot be divided among 2 processes evenly"):
        EmulatedWorkers(network(), WorkloadOptions(emulate_workers=5))
    assert EmulatedWorkers(network(), WorkloadOptions(emulate_workers=6)).ranks == range(3, 6)
