"""Parameters, optimizer state and objects from one rank to all."""

from __future__ import annotations

import builtins
import pickle
import threading
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import torch
from tests.multi.body import body
from tests.multi.data import process_sets, raises, tensor

from hora.ops import host
from hora.ops.call import Call, Results


@body()
def broadcast_object(hvd: ModuleType, rank: int, size: int) -> None:
    for root in range(size):
        value = {"epoch": root, "nested": [1, (2, None)], "tensor": torch.arange(3) + root}
        received = hvd.broadcast_object(value if rank == root else None, root, name="o")
        assert received["epoch"] == root and received["nested"] == [1, (2, None)]
        assert received["tensor"].tolist() == [root, root + 1, root + 2]
    assert hvd.broadcast_object(rank) == 0
    assert len(hvd.broadcast_object(b"x" * 1_000_000 if rank == 0 else None)) == 1_000_000


@body()
def broadcast_object_that_is_code(hvd: ModuleType, rank: int, size: int) -> None:
    factor = 10 + rank
    function = hvd.broadcast_object((lambda x: x * factor) if rank == 0 else None)
    assert function(2) == 20


@body()
def broadcast_object_that_cannot_be_sent(hvd: ModuleType, rank: int, size: int) -> None:
    with raises(TypeError if rank == 0 else hvd.HorovodInternalError, "lock"):
        hvd.broadcast_object(threading.Lock() if rank == 0 else None, 0)
    with raises(TypeError if rank == size - 1 else hvd.HorovodInternalError, "lock"):
        hvd.allgather_object(threading.Lock() if rank == size - 1 else rank)
    assert hvd.allgather_object(rank) == list(range(size))


@body()
def allgather_object(hvd: ModuleType, rank: int, size: int) -> None:
    assert hvd.allgather_object({"rank": rank, "pad": "x" * rank}, name="o") == [
        {"rank": r, "pad": "x" * r} for r in range(size)
    ]


class Evil:
    """Unpickling one is noticed."""

    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("import builtins; builtins.hora_was_fooled = True",)


@body(sizes=(2, 3))
def objects_altered_on_the_way_are_not_unpickled(hvd: ModuleType, rank: int, size: int) -> None:
    """The network hands the last rank somebody else's bytes: it raises; the others got theirs, and all can go on."""
    fooled, last = b"\0" + pickle.dumps(Evil()), rank == size - 1
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([parameter])

    def from_a_stranger(call: Call, arrays: Any) -> Any:
        return start(call, arrays).then(altered)

    def altered(results: Any) -> Any:
        (array,), strange = results.tensors, np.frombuffer(fooled, np.uint8)
        if array.dtype != np.uint8:
            return results
        if not results.rows:
            return Results([strange])
        ((first, *others),) = results.rows
        return Results([np.concatenate([strange, array[first:]])], [(len(fooled), *others)])

    start = host.start

    def refused() -> Any:
        sent = "came as the object of rank 0 are not what it sent"
        return raises(hvd.HorovodInternalError, sent) if last else nullcontext()

    if last:
        host.start = from_a_stranger  # type: ignore[assignment]
    try:
        with refused():
            assert hvd.broadcast_object({"a": 1}, 0, "altered") == {"a": 1}
        with refused():
            hvd.broadcast_parameters({"a": 1}, 0)
        with refused():
            assert hvd.allgather_object(rank, "altered") == list(range(size))
    finally:
        host.start = start
    assert not hasattr(builtins, "hora_was_fooled")
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert hvd.allgather_object(rank) == list(range(size)) and hvd.broadcast_object(rank, 0) == 0


@body()
def objects_in_sets(hvd: ModuleType, rank: int, size: int) -> None:
    with process_sets(hvd, size) as every:
        for process_set in every:
            if process_set.included():
                root = process_set.ranks[-1]
                assert hvd.broadcast_object(rank, root, process_set=process_set) == root
                assert hvd.allgather_object(rank, process_set=process_set) == list(process_set.ranks)


def model_of(rank: int) -> torch.nn.Module:
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    model(tensor(rank, (5, 4)))  # batch statistics differ too
    return model


def same_everywhere(hvd: ModuleType, size: int, model: torch.nn.Module) -> None:
    for name, value in model.state_dict().items():
        everyone = hvd.allgather(value.reshape(1, -1), name=f"check.{name}")
        assert (everyone == everyone[0]).all(), name


@body()
def broadcast_parameters_of_every_kind(hvd: ModuleType, rank: int, size: int) -> None:
    root = size - 1
    for get in (
        lambda model: model.state_dict(),
        lambda model: [*model.named_parameters(), *model.named_buffers()],
        lambda model: [*model.parameters(), *model.buffers()],
        lambda model: (pair for pair in [*model.named_parameters(), *model.named_buffers()]),
    ):
        model, expected = model_of(rank), model_of(root)
        hvd.broadcast_parameters(get(model), root_rank=root)
        for name, value in model.state_dict().items():
            assert torch.equal(value, expected.state_dict()[name]), name
        assert all(parameter.requires_grad for parameter in model.parameters())


@body()
def broadcast_parameters_odd_entries(hvd: ModuleType, rank: int, size: int) -> None:
    entries: dict[str, Any] = {
        "scalar": torch.tensor(float(rank)),
        "empty": torch.empty(0),
        "complex": torch.full((2,), rank + 1j),
        "float8": torch.full((3,), float(rank + 1)).to(torch.float8_e4m3fn),
        "strided": torch.full((4, 3), float(rank)).t(),
        "_extra_state": {"seen": rank},
        "number": rank,
        "nothing": None,
    }
    hvd.broadcast_parameters(entries, root_rank=0)
    assert entries["scalar"].item() == 0 and entries["complex"].tolist() == [1j, 1j]
    assert entries["float8"].float().tolist() == [1.0] * 3 and entries["float8"].dtype == torch.float8_e4m3fn
    assert entries["strided"].eq(0).all() and entries["strided"].shape == (3, 4)
    assert entries["_extra_state"] == {"seen": 0} and entries["number"] == 0 and entries["nothing"] is None
    with raises(hvd.UsageError, "Linear"):
        hvd.broadcast_parameters(torch.nn.Linear(1, 1), root_rank=0)
    with raises(hvd.UsageError, "same name"):
        hvd.broadcast_parameters([("a", torch.ones(1)), ("a", torch.ones(1))], root_rank=0)


def optimizers() -> dict[str, dict[str, Any]]:
    """Every optimizer of torch, with options that make it keep all the state it can."""
    found: dict[str, dict[str, Any]] = {
        name: {}
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    del found["LBFGS"]
    found["SGD"] = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
    found["Adam"] = {"amsgrad": True}
    found["RMSprop"] = {"momentum": 0.5, "centered": True}
    return found


def stepped(
    name: str, options: dict[str, Any], rank: int, steps: int
) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    parameters = [tensor(rank, shape).requires_grad_() for shape in ((4, 3), (3, 4))]
    kind = getattr(torch.optim, name)
    optimizer = kind([{"params": parameters[:1]}, {"params": parameters[1:]}], **{"lr": 0.01 * (rank + 1), **options})
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = tensor(rank, tuple(parameter.shape), seed="grad")
            if name == "SparseAdam":
                parameter.grad = parameter.grad.to_sparse()
        optimizer.step()
    return parameters, optimizer


def same(a: Any, b: Any, path: str = "") -> None:
    """Equal in value and in type, all the way down."""
    assert type(a) is type(b), (path, type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b), (path, a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), (path, a.keys(), b.keys())
        for key in a:
            same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{path}.{i}")
    else:
        assert a == b, (path, a, b)


@body()
def broadcast_optimizer_state_of_every_optimizer(hvd: ModuleType, rank: int, size: int) -> None:
    root = size - 1
    for name, options in optimizers().items():
        for own_steps in (2, 0):  # both with state of one's own and with state on the root only
            parameters, optimizer = stepped(name, options, rank, 2 if rank == root else own_steps)
            before = [parameter.detach().clone() for parameter in parameters]
            _, expected = stepped(name, options, root, 2)
            hvd.broadcast_optimizer_state(optimizer, root_rank=root)
            same(optimizer.state_dict(), expected.state_dict(), name)
            for parameter, value in zip(parameters, before, strict=True):
                assert torch.equal(parameter, value), f"{name}: parameters must not change"
            optimizer.step()  # still in working order
            assert optimizer.param_groups[0]["params"][0] is parameters[0]


@body()
def broadcast_optimizer_state_that_the_root_has_not(hvd: ModuleType, rank: int, size: int) -> None:
    parameters, optimizer = stepped("Adam", {}, rank, 0 if rank == 0 else 3)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert all(parameter.grad is None for parameter in parameters) or rank != 0


@body()
def broadcast_optimizer_state_with_tensor_options(hvd: ModuleType, rank: int, size: int) -> None:
    parameter = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([parameter], lr=torch.tensor(0.5 + rank), betas=(0.9, 0.99))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"].item() == 0.5 and optimizer.param_groups[0]["betas"] == (0.9, 0.99)


@body()
def broadcast_optimizer_state_refused(hvd: ModuleType, rank: int, size: int) -> None:
    with raises(ValueError, "LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.ones(1, requires_grad=True)]), root_rank=0)
    if size > 1:
        count = 1 if rank == 0 else 2
        optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True) for _ in range(count)], lr=0.1)
        with raises(hvd.MismatchError, "rank 0", "rank 1", "SGD"):
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert hvd.allgather_object(rank) == list(range(size))
