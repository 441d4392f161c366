"""Training as it is timed, in a world of one: what is checked before, and that a wrong contender is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import hora.torch as hvd
from hora.bench.models import SPECS, batches
from hora.bench.train_torch import Trainee, check, profile, trainee

SPEC = SPECS["mnist"]


@pytest.fixture(autouse=True)
def world_of_one() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("key", ["limit", "hora"])
def test_contenders_take_the_step_of_the_mean_gradient(key: str) -> None:
    made = trainee(key, SPEC, seed=1)
    check(key, made, next(batches(SPEC, 1)), seed=1)


def test_all_contenders_begin_with_the_same_network() -> None:
    one, other = (trainee(key, SPEC, seed=1).network.state_dict() for key in ("limit", "hora"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_contender_that_trains_otherwise_is_not_timed() -> None:
    network = SPEC.make()
    wrong = Trainee(SPEC, network, network, torch.optim.SGD(network.parameters(), lr=1.0))
    with pytest.raises(AssertionError, match="trained wrongly on rank 0: after one step"):
        check("wrong", wrong, next(batches(SPEC, 1)), seed=1)


def test_a_task_takes_a_new_batch_every_step() -> None:
    made = trainee("limit", SPEC, seed=1)
    data = batches(SPEC, 1)
    before = {name: value.clone() for name, value in made.network.state_dict().items()}
    task = made.task(data)
    task.call()
    task.call()
    rest = [next(data) for _ in range(6)]
    first = next(batches(SPEC, 1))
    assert torch.equal(next(data)[0], first[0]) and not torch.equal(rest[0][0], first[0])  # two were taken, of eight
    assert any(not torch.equal(before[name], value) for name, value in made.network.state_dict().items())


def test_a_profile_has_every_gradient_once_in_the_order_of_backward() -> None:
    found = profile("mlp", seed=1, rank=0)
    sizes = [4 * p.numel() for p in SPECS["mlp"].make().parameters()]
    assert sorted(count for _, count in found.ready) == sorted(sizes)
    assert {count for _, count in found.ready[:2]} == set(sizes[-2:])  # the last layer's come first
    times = [when for when, _ in found.ready]
    assert times == sorted(times) and times[0] > 0 and found.rest_s > 0


def test_rounded_gradients_may_be_a_little_off_and_no_more() -> None:
    made, batch = trainee("hora_bf16", SPEC, seed=1), next(batches(SPEC, 1))
    check("hora_bf16", made, batch, seed=1)
    network = SPEC.make()
    wrong = Trainee(SPEC, network, network, torch.optim.SGD(network.parameters(), lr=0.0012, momentum=0.9))
    with pytest.raises(AssertionError, match=r"20\.0% away"):
        check("wrong_bf16", wrong, batch, seed=1)


def test_unknown_contenders_are_refused() -> None:
    with pytest.raises(ValueError, match="no contender"):
        trainee("nobody", SPEC, seed=1)
