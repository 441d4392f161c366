"""DistributedOptimizer where ranks differ or change their minds: graphs, types, sparse gradients, numbers of steps."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from tests.multi.bodies.optimizer import batch, loss_of, network, same, sgd, train
from tests.multi.body import body

from hora.engine import session


def branches(seed: int = 0) -> torch.nn.ModuleList:
    torch.manual_seed(seed)
    return torch.nn.ModuleList(torch.nn.Linear(4, 4, dtype=torch.float64) for _ in range(6))


def routed_loss(model: torch.nn.ModuleList, step: int, rank: int) -> torch.Tensor:
    """Every rank uses layers of its own, others in each step; the last one is used by nobody."""
    x = torch.full((2, 4), 0.3 * (rank + 1) + 0.1 * step, dtype=torch.float64)
    used = [0, 1 + (rank + step) % 4] if (rank + step) % 3 else [1 + (rank + step) % 4]
    return torch.stack([model[i](x).tanh().mean() for i in used]).sum()


@body()
def uneven_graphs(hvd: ModuleType, rank: int, size: int) -> None:
    """The missing gradient is zero, and one that nobody has is None: weight decay and momentum leave it alone."""
    for options in ({}, {"groups": 3}, {"compression": hvd.Compression.fp16}, {"gradient_predivide_factor": 2.0}):
        model, reference = branches(), branches()
        plain = sgd(reference.parameters())
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), **options)
        for step in range(9):
            plain.zero_grad()
            sum(routed_loss(reference, step, r) / size for r in range(size)).backward()  # type: ignore[union-attr]
            plain.step()
            optimizer.zero_grad()
            routed_loss(model, step, rank).backward()
            optimizer.step()
            for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
                assert (ours.grad is None) == (theirs.grad is None), (options, step)
        same(model, reference, options, 0.01 if "compression" in options else 1e-9)
        assert all(p.grad is None for p in model[5].parameters())


@body()
def gradients_set_by_hand(hvd: ModuleType, rank: int, size: int) -> None:
    """Without backward there is no hook; step() reduces what it finds."""
    weight = torch.nn.Parameter(torch.zeros(3))
    other = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, other], lr=1.0))
    for step in range(4):
        weight.grad = torch.full((3,), float(rank))
        other.grad = torch.ones(2) if rank == step % size else None
        optimizer.step()
        optimizer.zero_grad()
    assert torch.allclose(weight, torch.full((3,), -4 * (size - 1) / 2))
    assert torch.allclose(other, torch.full((2,), -4 / size))


@body()
def parameters_added_later(hvd: ModuleType, rank: int, size: int) -> None:
    def run(make: Any, ranks: Any) -> torch.nn.Module:
        model = network()
        optimizer = make(torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9), model)
        train(optimizer, model, ranks, steps=3)
        model[5].requires_grad_(True)
        optimizer.zero_grad()
        model.zero_grad()
        optimizer.add_param_group({"params": list(model[3].parameters()), "lr": 0.2})
        optimizer.add_param_group({"params": [*model[5].parameters(), *model[7].parameters()]})
        train(optimizer, model, ranks, steps=3)
        return model

    reference = run(lambda optimizer, model: optimizer, range(size))
    same(run(lambda o, m: hvd.DistributedOptimizer(o, m.named_parameters()), [rank]), reference)
    same(run(lambda o, m: hvd.DistributedOptimizer(o), [rank]), reference)


@body()
def layers_frozen_and_thawed(hvd: ModuleType, rank: int, size: int) -> None:
    def run(make: Any, ranks: Any) -> torch.nn.Module:
        model = network()  # layer 5 is frozen
        optimizer = make(sgd(model.parameters()), model)
        train(optimizer, model, ranks, steps=2)
        model[5].requires_grad_(True)
        model[0].requires_grad_(False)
        train(optimizer, model, ranks, steps=3)
        model[0].requires_grad_(True)
        train(optimizer, model, ranks, steps=3)
        return model

    reference = run(lambda optimizer, model: optimizer, range(size))
    same(run(lambda o, m: hvd.DistributedOptimizer(o, m.named_parameters()), [rank]), reference)


@body()
def another_type_later(hvd: ModuleType, rank: int, size: int) -> None:
    """The model is converted in the middle of training, on all ranks: the buckets no longer fit."""

    def run(make: Any, ranks: Any) -> torch.nn.Module:
        model = network()
        optimizer = make(torch.optim.SGD(model.parameters(), lr=0.1), model)
        train(optimizer, model, ranks, steps=3)
        optimizer.zero_grad()
        model.double()
        for step in range(4):
            optimizer.zero_grad()
            x, y = batch(step, ranks)
            loss_of(model, (x.double(), y)).backward()
            optimizer.step()
        return model

    reference = run(lambda optimizer, model: optimizer, range(size))
    same(run(lambda o, m: hvd.DistributedOptimizer(o, m.named_parameters()), [rank]), reference)


@body()
def sparse_gradients(hvd: ModuleType, rank: int, size: int) -> None:
    def run(make: Any, ranks: Any, kind: Any) -> torch.nn.Module:
        torch.manual_seed(0)
        model = torch.nn.Embedding(7, 3, sparse=True)
        optimizer = make(kind(model.parameters(), lr=0.1))
        for step in range(4):
            optimizer.zero_grad()
            losses = [
                model(torch.tensor([r, (r + step) % 7, 2])).pow(2).sum() for r in ranks if (r + step) % 3 or size == 1
            ]
            if losses:
                (
                    sum(losses) * len(list(ranks)) / size / len(list(ranks)) if len(list(ranks)) > 1 else losses[0]
                ).backward()
            optimizer.step()
        return model

    for kind in (torch.optim.SGD, torch.optim.SparseAdam):
        reference = run(lambda optimizer: optimizer, range(size), kind)
        for as_dense in (False, True):
            model = run(lambda o, d=as_dense: hvd.DistributedOptimizer(o, sparse_as_dense=d), [rank], kind)
            if kind is torch.optim.SGD:
                same(model, reference, (kind, as_dense))
            everywhere = hvd.allgather(model.weight.detach()[None], name="weights")
            assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere)), (kind, as_dense)


@body(sizes=(2, 3, 4))
def sparse_here_and_dense_there(hvd: ModuleType, rank: int, size: int) -> None:
    weight = torch.nn.Parameter(torch.ones(4, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("table", weight)], sparse_as_dense=True)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.embedding(torch.tensor([0, 2]), weight, sparse=rank == 0).sum().backward()
        optimizer.step()
    expected = torch.tensor([[0.7], [1.0], [0.7], [1.0]]).expand(4, 2)
    assert torch.allclose(weight, expected), weight


@body()
def requires_grad_switched(hvd: ModuleType, rank: int, size: int) -> None:
    """Horovod's own test of gradients that are turned off and on."""
    generator, judge = torch.nn.Conv2d(1, 10, 1), torch.nn.Conv2d(10, 1, 1)
    x = torch.rand(1, 1, 100, 100)
    opt_g, opt_d = (
        hvd.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=0.1), named_parameters=m.named_parameters())
        for m in (generator, judge)
    )
    for turn in range(10):
        generator.requires_grad_(turn % 2 == 0)
        judge.requires_grad_(turn % 2 == 1)
        opt_g.zero_grad()
        opt_d.zero_grad()
        judge(generator(x)).sum().backward()
        for model, on in ((generator, turn % 2 == 0), (judge, turn % 2 == 1)):
            for p in model.parameters():
                assert on == (p.grad is not None and bool(p.grad.max().is_nonzero()))
        (opt_d if turn % 2 else opt_g).step()


@body(sizes=(2, 3, 4))
def joining(hvd: ModuleType, rank: int, size: int) -> None:
    """Ranks that run out of data, in the very first step and later."""
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for epoch in range(3):
        train(optimizer, model, [rank], steps=0 if epoch == 0 and rank == size - 1 else rank + 1)
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=size - 1)
        hvd.broadcast_optimizer_state(optimizer, root_rank=size - 1)
    train(optimizer, model, [rank])
    for name, value in model.state_dict().items():
        everywhere = hvd.allgather(value[None], name=f"check.{name}")
        assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere)), name


@body()
def gradients_born_in_shared_memory(hvd: ModuleType, rank: int, size: int) -> None:
    """Large ones are reduced where they lie, alone; and still are right when one of them lies elsewhere."""
    weight = torch.nn.Parameter(torch.zeros(200, 100))
    image = torch.nn.Parameter(torch.zeros(32, 32, 5, 5).to(memory_format=torch.channels_last))
    small = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight, image, small], lr=1.0), [("weight", weight), ("image", image), ("small", small)]
    )
    expected = torch.zeros(200, 100), torch.zeros(32, 32, 5, 5), torch.zeros(3)
    for step in range(6):
        for parameter in (weight, image):
            if step != 4 or rank:  # once, one rank has ordinary memory
                shared = hvd.shared_empty(parameter.numel()).zero_()
                parameter.grad = shared.as_strided(parameter.shape, parameter.stride())
        places = [parameter.grad.data_ptr() for parameter in (weight, image) if parameter.grad is not None]
        factors = [torch.arange(e.numel(), dtype=torch.float32).view(e.shape) / e.numel() for e in expected]
        used = [i for i in range(3) if step != 3 or (rank + i) % 2]  # once, ranks have different ones
        parameters = (weight, image, small)
        sum(((rank + 1) * parameters[i] * factors[i]).sum() for i in used).backward()  # type: ignore[union-attr]
        optimizer.step()
        for i, (e, factor) in enumerate(zip(expected, factors, strict=True)):
            ranks = [r for r in range(size) if step != 3 or (r + i) % 2]
            e -= factor * sum(r + 1 for r in ranks) / size
        now = [parameter.grad.data_ptr() for parameter in (weight, image) if parameter.grad is not None]
        shared_memory = session.engine().transport == "shm"
        assert step == 4 or places == now or not shared_memory, step
        optimizer.zero_grad()
    for parameter, e in zip((weight, image, small), expected, strict=True):
        assert torch.allclose(parameter, e, atol=1e-4)
    if size > 1 and shared_memory:
        assert len(optimizer._reducer._buckets) == 1 and optimizer._reducer._buckets[0].size == 1
