"""DistributedOptimizer as one process sees it: its arguments, its class, what it shares. tests/multi has the rest."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hora.torch as hvd
from hora.errors import NotInitializedError, UsageError
from hora.ops.gradients import GradientRule
from hora.torch.bucket import REPLICAS
from hora.torch.optimizer import _groups
from hora.torch.reducer import Reducer


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))


def sgd(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def test_the_arguments_are_horovods_in_horovods_order() -> None:
    assert list(inspect.signature(hvd.DistributedOptimizer).parameters) == [
        "optimizer",
        "named_parameters",
        "compression",
        "backward_passes_per_step",
        "op",
        "gradient_predivide_factor",
        "num_groups",
        "groups",
        "sparse_as_dense",
        "process_set",
    ]


def test_the_class_looks_like_the_wrapped_one(model: torch.nn.Module) -> None:
    inner = sgd(model)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    assert type(optimizer).__name__ == "SGD" and isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__module__ == torch.optim.SGD.__module__
    assert repr(optimizer) == repr(inner)
    assert optimizer.state is inner.state and optimizer.param_groups is inner.param_groups
    assert optimizer.state_dict() == inner.state_dict()


def test_alone_nothing_is_hooked(model: torch.nn.Module) -> None:
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters())
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    step(optimizer, model)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.set_backward_passes_per_step(3)
    assert optimizer.backward_passes_per_step == 3


def test_hooks_of_steps_run_once(model: torch.nn.Module) -> None:
    ran: list[str] = []
    inner = sgd(model)
    inner.register_step_pre_hook(lambda *_: ran.append("before"))
    optimizer = hvd.DistributedOptimizer(inner)
    optimizer.register_step_post_hook(lambda *_: ran.append("after"))
    step(optimizer, model)
    optimizer.load_state_dict(optimizer.state_dict())  # which makes torch look at the class's step again
    step(optimizer, model)
    assert ran == ["before", "after"] * 2


def test_zero_grad_passes_its_arguments_on(model: torch.nn.Module) -> None:
    optimizer = hvd.DistributedOptimizer(sgd(model))
    step(optimizer, model)
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    optimizer.zero_grad(set_to_none=True)
    assert all(p.grad is None for p in model.parameters())


def test_a_copy_steps_by_itself(model: torch.nn.Module) -> None:
    optimizer = hvd.DistributedOptimizer(sgd(model))
    step(optimizer, model)
    pair: Any = copy.deepcopy([model, optimizer])
    step(pair[1], pair[0])
    assert pair[1].param_groups[0]["params"][0] is pair[0][0].weight
    assert not torch.equal(pair[0][0].weight, model[0].weight)  # type: ignore[index]


def test_adasum_is_an_optimizer_of_its_own(model: torch.nn.Module) -> None:
    optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), op=hvd.Adasum)
    assert isinstance(optimizer, torch.optim.SGD)
    step(optimizer, model)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"backward_passes_per_step": 0}, "must be > 0"),
    ({"backward_passes_per_step": 1.5}, "must be > 0"),
    ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "gradient_predivide_factor not supported with op != Average"),
    ({"op": hvd.Min}, "op=Min"),
    ({"num_groups": -1}, "0 or more"),
    ({"groups": "all"}, "list of list of torch.Tensor"),
    ({"groups": [["a"]]}, "list of list of torch.Tensor"),
    ({"named_parameters": [torch.zeros(1)]}, "should be a sequence of tuples"),
]


@pytest.mark.parametrize(("arguments", "text"), MISTAKES)
def test_mistakes(model: torch.nn.Module, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        hvd.DistributedOptimizer(sgd(model), **arguments)


def test_names_must_be_unique_and_complete(model: torch.nn.Module) -> None:
    pairs = list(model.named_parameters())
    with pytest.raises(ValueError, match=r"must be unique\. Found duplicates: 0\.weight"):
        hvd.DistributedOptimizer(sgd(model), [*pairs, pairs[0]])
    with pytest.raises(ValueError, match=r"one or more model parameters were not named: 2 of.*\(2, 3\), \(2,\)"):
        hvd.DistributedOptimizer(sgd(model), pairs[:2])


def test_not_twice_and_not_before_init(model: torch.nn.Module) -> None:
    optimizer = hvd.DistributedOptimizer(sgd(model))
    with pytest.raises(UsageError, match="DistributedOptimizer of a DistributedOptimizer"):
        hvd.DistributedOptimizer(optimizer)
    hvd.shutdown()
    with pytest.raises(NotInitializedError):
        hvd.DistributedOptimizer(sgd(model))


def test_groups_are_split_evenly(model: torch.nn.Module) -> None:
    optimizer = sgd(model)
    parameters = list(model.parameters())
    assert [len(group) for group in _groups(optimizer, 3)] == [1, 2, 1]
    assert [len(group) for group in _groups(optimizer, 9)] == [1] * 4
    assert _groups(optimizer, 0) == []
    other = torch.nn.Parameter(torch.zeros(1))
    (group,) = _groups(optimizer, [[parameters[1], other]])
    assert len(group) == 1 and group[0] is parameters[1]
    with pytest.raises(UsageError, match="in two groups"):
        _groups(optimizer, [[parameters[1]], [parameters[1]]])


# ---- the reducer, on one rank ----


def reducer(named: Any, **options: Any) -> Reducer:
    own = {name: options.pop(name) for name in ("groups", "passes") if name in options}
    return Reducer(named, GradientRule(**options), **own)


def backward(model: torch.nn.Module, value: float = 1.0) -> None:
    model(torch.full((2, 4), value)).sum().backward()


def test_gradients_become_views_of_buckets(model: torch.nn.Module) -> None:
    reducing = reducer(model.named_parameters())
    for _ in range(3):
        model.zero_grad()
        backward(model)
        assert reducing.touched
        assert reducing.finish()
        assert not reducing.touched
    (bucket,) = reducing._buckets
    labels = {entry.label for entry in bucket.entries}
    assert labels == {name for name, _ in model.named_parameters()}
    assert all(p.grad is bucket.views[i] for i, p in ((e.place, e.parameter) for e in bucket.entries))
    backward(model)  # accumulates where it lies
    assert reducing.finish()
    reducing.close()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_gradient_that_requires_grad(model: torch.nn.Module) -> None:
    reducing = reducer(model.named_parameters())
    for _ in range(2):
        model.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns of create_graph=True, once
            (model(torch.ones(2, 4)) ** 2).sum().backward(create_graph=True)
        reducing.finish()
        assert all(p.grad is not None and not p.grad.requires_grad for p in model.parameters())
    reducing.close()


def test_gradients_thrown_away_stay_away(model: torch.nn.Module) -> None:
    reducing = reducer(model.named_parameters())
    for _ in range(3):
        backward(model)
        model.zero_grad()
        reducing.finish()
        assert all(p.grad is None for p in model.parameters())
    reducing.close()


def test_a_failed_step_can_be_followed_by_another(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    reducing = reducer(model.named_parameters())
    backward(model)
    reducing.finish()
    model.zero_grad()
    backward(model)

    class Lost:
        def wait(self) -> None:
            raise RuntimeError("lost")

    reducing._step.buckets.append((SimpleNamespace(), Lost()))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="lost"):
        reducing.finish()
    model.zero_grad()
    backward(model, 3.0)
    reducing.finish()
    assert model[0].weight.grad is not None and not reducing.touched  # type: ignore[index, union-attr]
    reducing.close()


def test_groups_that_are_put_in_place_of_others_are_its_groups(model: torch.nn.Module) -> None:
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    groups = [{**group, "lr": 0.5} for group in optimizer.param_groups]
    optimizer.param_groups = groups
    assert optimizer.param_groups is groups
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.25
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize(("steps", "told"), [(1, 1), (10, 10), (19, 20), (31, 30)])
def test_replicas_are_compared_at_a_step_that_all_ranks_call_the_same(steps: int, told: int) -> None:
    """Ranks that joined earlier have counted fewer."""
    seen = list[int]()
    guard = SimpleNamespace(every=10, check_replicas=lambda named, step: seen.append(step))
    reducer = Reducer.__new__(Reducer)
    reducer.steps, reducer._guard, reducer._asked_last = steps - 1, guard, REPLICAS  # type: ignore[assignment]
    reducer._entries, reducer._is_first = [], False
    reducer.after_step()
    assert seen == [told]
