"""SyncBatchNorm on N ranks is BatchNorm of the concatenated batch in one process: outputs, statistics, gradients."""

from __future__ import annotations

import copy
import io
import threading
from types import ModuleType
from typing import Any

import torch
from tests.light import whole_torch
from tests.multi.body import body
from tests.multi.data import check, process_sets, raises, tensor

CHANNELS = 3
KINDS: dict[tuple[int, ...], type[torch.nn.modules.batchnorm._BatchNorm]] = {
    (): torch.nn.BatchNorm1d,
    (7,): torch.nn.BatchNorm1d,
    (4, 5): torch.nn.BatchNorm2d,
    (2, 3, 4): torch.nn.BatchNorm3d,
}


def batch(rank: int, rows: int, rest: tuple[int, ...], dtype: torch.dtype, seed: str = "") -> torch.Tensor:
    return tensor(rank, (rows, CHANNELS, *rest), dtype, f"batch{seed}") * 2 + rank + 1


def compare(
    hvd: ModuleType, rank: int, ranks: list[int], rows: dict[int, int], rest: tuple[int, ...], dtype: torch.dtype,
    process_set: Any, steps: int = 3, offset: float = 0.0, **options: Any,
) -> None:  # fmt: skip
    """Some steps of both, on the same data; this rank looks at its own part."""
    plain = KINDS[rest](CHANNELS, dtype=dtype, **options)
    layer = hvd.SyncBatchNorm(CHANNELS, dtype=dtype, process_set=process_set, **options)
    if plain.affine:
        with torch.no_grad():
            plain.weight.copy_(tensor(9, (CHANNELS,), dtype, "weight"))
            plain.bias.copy_(tensor(9, (CHANNELS,), dtype, "bias"))
    layer.load_state_dict(plain.state_dict())
    what = (dtype, rest, rows, options)
    for step in range(steps):
        inputs = {r: batch(r, rows[r], rest, dtype, str(step)) + offset for r in ranks}
        weights = {r: tensor(r, tuple(inputs[r].shape), dtype, "weights") for r in ranks}
        whole = torch.cat([inputs[r] for r in ranks]).requires_grad_()
        own = inputs[rank].clone().requires_grad_()
        expected, output = plain(whole), layer(own)
        begin = sum(rows[r] for r in ranks if r < rank)
        check(output, expected[begin : begin + rows[rank]].detach(), what)
        (expected * torch.cat([weights[r] for r in ranks])).sum().backward()
        (output * weights[rank]).sum().backward()
        assert whole.grad is not None
        check(own.grad, whole.grad[begin : begin + rows[rank]], what)
    for key, value in plain.state_dict().items():
        check(layer.state_dict()[key], value, (key, what))
    for parameter, alone in zip(layer.parameters(), plain.parameters(), strict=True):
        total = hvd.allreduce(parameter.grad, op=hvd.Sum, process_set=process_set)
        check(total, alone.grad, what)
    check(layer.eval()(inputs[rank]), plain.eval()(inputs[rank]).detach(), what)


@body()
def equals_batch_norm(hvd: ModuleType, rank: int, size: int) -> None:
    ranks = list(range(size))
    for rest in KINDS:
        for dtype in (torch.float32, torch.float64):
            for first in (2, 5):
                rows = {r: first + 3 * r for r in ranks}
                compare(hvd, rank, ranks, rows, rest, dtype, hvd.global_process_set)


@body()
def options(hvd: ModuleType, rank: int, size: int) -> None:
    ranks, rows = list(range(size)), {r: 3 + r for r in range(size)}
    for more in (
        {"affine": False},
        {"momentum": None},
        {"track_running_stats": False},
        {"momentum": 0.5, "eps": 0.1},
        {"affine": False, "track_running_stats": False},
    ):
        compare(hvd, rank, ranks, rows, (4, 5), torch.float64, hvd.global_process_set, **more)


@body()
def an_empty_batch(hvd: ModuleType, rank: int, size: int) -> None:
    for empty in range(size):
        rows = {r: 0 if r == empty and size > 1 else 4 + r for r in range(size)}
        for dtype in (torch.float32, torch.float64):
            compare(hvd, rank, list(range(size)), rows, (4, 5), dtype, hvd.global_process_set)


@body(sizes=(2, 3, 4))
def one_row_each(hvd: ModuleType, rank: int, size: int) -> None:
    rows = dict.fromkeys(range(size), 1)
    compare(hvd, rank, list(range(size)), rows, (), torch.float64, hvd.global_process_set)


@body()
def far_from_zero(hvd: ModuleType, rank: int, size: int) -> None:
    """The variance of 1000000.5, 1000001, …: where the square of the mean would drown it."""
    rows = {r: 3 + r for r in range(size)}
    layer = hvd.SyncBatchNorm(CHANNELS, affine=False, dtype=torch.float64)
    inputs = [batch(r, rows[r], (4, 5), torch.float64) + 1e6 for r in range(size)]
    whole = torch.cat(inputs)
    mean, var = whole.mean((0, 2, 3), keepdim=True), whole.var((0, 2, 3), keepdim=True, correction=0)
    output = layer(inputs[rank])
    assert torch.allclose(output, (inputs[rank] - mean) / (var + layer.eps).sqrt(), rtol=1e-9, atol=1e-9)


@body()
def sets(hvd: ModuleType, rank: int, size: int) -> None:
    with process_sets(hvd, size) as known:
        for process_set in known:
            if process_set.included():
                rows = {r: 2 + r for r in process_set.ranks}
                compare(hvd, rank, process_set.ranks, rows, (4, 5), torch.float64, process_set)


@body()
def sixteen_bits(hvd: ModuleType, rank: int, size: int) -> None:
    """Parameters of 32 bits as under autocast, and of 16 as after model.bfloat16()."""
    inputs = [batch(r, 3 + r, (4, 5), torch.bfloat16) for r in range(size)]
    begin = sum(3 + r for r in range(rank))
    for parameters in (torch.float32, torch.bfloat16):
        plain, layer = torch.nn.BatchNorm2d(CHANNELS), hvd.SyncBatchNorm(CHANNELS, dtype=parameters)
        expected = plain(torch.cat(inputs).float())
        own = inputs[rank].clone().requires_grad_()
        output = layer(own)
        check(output, expected[begin : begin + 3 + rank].bfloat16().detach())
        output.sum().backward()
        assert own.grad is not None and own.grad.dtype is torch.bfloat16
        assert layer.weight.grad.dtype is layer.bias.grad.dtype is parameters
        check(layer.running_mean, plain.running_mean.to(parameters))
        check(layer.running_var, plain.running_var.to(parameters))


@body()
def memory_formats(hvd: ModuleType, rank: int, size: int) -> None:
    own = batch(rank, 4, (4, 5), torch.float32)
    layer = hvd.SyncBatchNorm(CHANNELS)
    expected = layer(own)
    last = own.contiguous(memory_format=torch.channels_last).requires_grad_()
    output = layer(last)
    check(output, expected.detach())
    assert output.is_contiguous(memory_format=torch.channels_last)
    output.sum().backward()  # whose gradient is one number, expanded
    assert last.grad is not None and float(last.grad.abs().max()) < 1e-5


@body()
def one_value(hvd: ModuleType, rank: int, size: int) -> None:
    layer = hvd.SyncBatchNorm(CHANNELS)
    with raises(ValueError, "more than 1 value per channel"):
        layer(torch.ones(1 if rank == 0 else 0, CHANNELS))
    with raises(ValueError, "channels"):
        layer(torch.ones(4))


@body()
def a_whole_model(hvd: ModuleType, rank: int, size: int) -> None:
    """Converted; several layers, one of them in two places; parameters averaged as an optimizer does."""
    torch.manual_seed(0)
    shared = torch.nn.BatchNorm2d(4)
    plain = torch.nn.Sequential(
        torch.nn.Conv2d(CHANNELS, 4, 3, bias=False), shared, torch.nn.ReLU(),
        torch.nn.Conv2d(4, 4, 1, bias=False), shared, torch.nn.Flatten(), torch.nn.Linear(4 * 36, 2),
        torch.nn.BatchNorm1d(2, affine=False),
    ).double()  # fmt: skip
    model = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    assert model[1] is model[4] and isinstance(model[7], hvd.SyncBatchNorm)
    inputs = [batch(r, 2 + r, (8, 8), torch.float64) for r in range(size)]
    (plain(torch.cat(inputs)) ** 3).sum().backward()
    (model(inputs[rank]) ** 3).sum().backward()
    for (name, alone), parameter in zip(plain.named_parameters(), model.parameters(), strict=True):
        check(hvd.allreduce(parameter.grad, name=name, op=hvd.Sum), alone.grad, name)
    for name, value in plain.state_dict().items():
        check(model.state_dict()[name], value, name)


@body()
def copies_and_files(hvd: ModuleType, rank: int, size: int) -> None:
    """A copy is a layer of its own; a file holds nothing of this process."""
    own = batch(rank, 3, (4, 5), torch.float32)
    layer = hvd.SyncBatchNorm(CHANNELS)
    expected = layer(own)
    twin = copy.deepcopy(layer)
    check(twin(own), expected.detach())
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.process_set is hvd.global_process_set
    check(loaded(own), expected.detach())


@body(sizes=(2, 3))
def layers_in_flight_at_once(hvd: ModuleType, rank: int, size: int) -> None:
    """Two threads, two layers, in another order on every rank."""
    layers = [hvd.SyncBatchNorm(CHANNELS, affine=False) for _ in range(2)]
    inputs = [[batch(r, 2 + r, (), torch.float32, str(i)) for r in range(size)] for i in range(2)]
    for i in range(2):
        layers[i](inputs[i][rank])  # which is where they get their names
    results: dict[int, torch.Tensor] = {}

    def run(i: int) -> None:
        for _ in range(5):
            results[i] = layers[i](inputs[i][rank])

    threads = [threading.Thread(target=run, args=((i + rank) % 2,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    begin = sum(2 + r for r in range(rank))
    for i in range(2):
        expected = torch.nn.BatchNorm1d(CHANNELS, affine=False)(torch.cat(inputs[i]))
        check(results[i], expected[begin : begin + 2 + rank])


@body(sizes=(2, 3))
def ranks_that_have_joined(hvd: ModuleType, rank: int, size: int) -> None:
    """They count as an empty batch."""
    layer = hvd.SyncBatchNorm(CHANNELS, affine=False)
    for step in range(1 + rank):
        active = [r for r in range(size) if r >= step]
        inputs = {r: batch(r, 3, (), torch.float32, str(step)) for r in active}
        begin = 3 * active.index(rank)
        expected = torch.nn.BatchNorm1d(CHANNELS, affine=False)(torch.cat([inputs[r] for r in active]))
        check(layer(inputs[rank]), expected[begin : begin + 3])
    hvd.join()


@body(sizes=(2,), once=True)  # importing the compiler takes seconds
def compiled(hvd: ModuleType, rank: int, size: int) -> None:
    """The compiler leaves the layer alone, and compiles what is around it."""
    plain = torch.nn.Sequential(torch.nn.Linear(5, CHANNELS), hvd.SyncBatchNorm(CHANNELS), torch.nn.ReLU()).double()
    whole_torch()
    model = torch.compile(copy.deepcopy(plain), backend="eager")
    inputs = tensor(rank, (4 + rank, 5), torch.float64)
    for net in (plain, model):
        net(inputs).sum().backward()
    check(model(inputs), plain(inputs).detach())
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        check(parameter.grad, expected.grad)
