"""TorchState in one process: what a commit keeps, with a copy and without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
import hora.torch as hvd  # noqa: E402
from hora.torch.elastic import ElasticSampler, TorchState  # noqa: E402


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


class Training:
    """A small model that is stepped on numbers of its own."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.state = TorchState(self.model, self.optimizer, step=0)

    def forward(self) -> torch.Tensor:
        return self.model(torch.randn(8, 4)).square().mean()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.forward().backward()
        self.optimizer.step()
        self.state.step += 1

    def everything(self) -> list[torch.Tensor]:
        moments = [value["momentum_buffer"] for value in self.optimizer.state.values()]
        return [tensor.clone() for tensor in [*self.model.state_dict().values(), *moments]]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_with_a_commit_a_step_nothing_is_copied_and_all_is_restored() -> None:
    training = Training()
    for _ in range(6):
        training.step()
        training.state.commit()
    assert training.state._live
    at_commit, step = training.everything(), training.state.step
    training.forward()  # changes the statistics of batch normalisation, which are copied
    training.optimizer.param_groups[0]["lr"] = 7.0
    training.state.step = 99
    training.state.restore()
    assert same(training.everything(), at_commit) and training.state.step == step
    assert training.optimizer.param_groups[0]["lr"] == 0.1


def test_with_rarer_commits_it_goes_back_to_the_last() -> None:
    training = Training()
    for _ in range(3):
        training.step()
        training.step()
        training.state.commit()
    assert not training.state._live
    at_commit = training.everything()
    training.step()
    training.state.restore()
    assert same(training.everything(), at_commit) and training.state.step == 6


def test_a_habit_that_is_broken_is_noticed_before_anything_is_lost() -> None:
    training = Training()
    for _ in range(6):
        training.step()
        training.state.commit()
    training.step()  # no commit after this one
    after = training.everything()
    training.step()  # before it, all is copied
    training.state.restore()
    assert same(training.everything(), after) and training.state.step == 6  # the values of when that step ended
    training.step()
    training.state.commit()
    assert not training.state._live
    at_commit = training.everything()
    training.step()
    training.state.restore()
    assert same(training.everything(), at_commit)


def test_a_step_that_was_finished_but_not_committed_is_kept_with_its_values() -> None:
    training = Training()
    for _ in range(6):
        training.step()
        training.state.commit()
    training.step()
    after = training.everything()
    training.state.restore()
    assert same(training.everything(), after) and training.state.step == 6 and training.state._beyond


def test_another_operation_between_step_and_commit_makes_it_copy() -> None:
    training = Training()
    for _ in range(6):
        training.step()
        hvd.allreduce(torch.ones(1), name="loss")  # a worker may be lost here
        training.state.commit()
    assert not training.state._live


def test_assigning_a_model_keeps_the_new_one() -> None:
    training = Training()
    other = torch.nn.Linear(2, 2)
    training.state.model = other
    before = [p.clone() for p in other.parameters()]
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    training.state.restore()
    assert same(before, list(other.parameters()))


def test_the_sampler_goes_on_where_it_was() -> None:
    sampler = ElasticSampler(range(10), seed=5)
    order = list(sampler)
    assert sorted(order) == list(range(10))
    state = TorchState(sampler=sampler)
    sampler.record_batch(0, 4)
    state.commit()
    sampler.record_batch(1, 4)
    state.restore()
    assert list(sampler) == order[4:] and len(sampler) == 6
    sampler.set_epoch(1)
    assert sorted(sampler) == list(range(10)) and list(sampler) != order
