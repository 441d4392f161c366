"""DistributedOptimizer where ranks differ, or change their minds: uneven graphs, sparse gradients, GANs, scalers."""

from __future__ import annotations

import copy
import gc
import io
import warnings
from types import ModuleType
from typing import Any

import torch
from tests.multi.bodies.optimizer import STEPS, batch, loss_of, network, same, sgd, train, twins
from tests.multi.body import body
from tests.multi.data import raises

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
def several_optimizers(hvd: ModuleType, rank: int, size: int) -> None:
    """A GAN as it is written without Hora: names clash, and the generator's loss reaches the discriminator."""

    def run(wrap: Any, ranks: Any, style: str, how: Any) -> list[torch.nn.Module]:
        torch.manual_seed(0)
        generator, judge = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        opt_g, opt_d = (wrap(torch.optim.Adam(m.parameters(), lr=0.01), m) for m in (generator, judge))
        if style == "two passes" and hasattr(opt_d, "set_backward_passes_per_step"):
            opt_d.set_backward_passes_per_step(2)
        for step in range(4):
            x, _ = batch(step, ranks)
            noise, real = x.flatten(1)[:, :3], x.flatten(1)[:, 3:7]
            how(opt_d, judge)
            if style == "two passes":
                judge(real).sigmoid().mean().neg().backward()
                judge(generator(noise).detach()).sigmoid().mean().backward()
            else:
                (judge(generator(noise).detach()).sigmoid().mean() - judge(real).sigmoid().mean()).backward()
            opt_d.step()
            how(opt_g, generator)
            judge(generator(noise)).sigmoid().mean().neg().backward()
            opt_g.step()
        return [generator, judge]

    for style in ("one pass", "two passes"):
        for how in (lambda o, m: o.zero_grad(), lambda o, m: m.zero_grad()):
            reference = run(lambda optimizer, model: optimizer, range(size), style, how)
            models = run(lambda o, m: hvd.DistributedOptimizer(o, m.named_parameters()), [rank], style, how)
            for model, expected in zip(models, reference, strict=True):
                same(model, expected, style)


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


@body()
def scaled_losses(hvd: ModuleType, rank: int, size: int) -> None:
    """GradScaler in every order; an overflow on one rank leaves the step out on all."""
    for recipe in ("naive", "unscale first", "synchronize first", "fused"):
        model, reference = network(), network()
        make = (lambda p: torch.optim.AdamW(p, lr=0.01, fused=True)) if recipe == "fused" else sgd
        plain = make(reference.parameters())
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
        scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100) for _ in range(2)]
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            for step in range(STEPS):
                for o, m, ranks, scaler in (
                    (plain, reference, range(size), scalers[0]),
                    (optimizer, model, [rank], scalers[1]),
                ):
                    o.zero_grad()
                    x, y = batch(step, ranks)
                    if step == 2 and size - 1 in ranks:
                        x[-1] = torch.inf
                    scaler.scale(loss_of(m, (x, y))).backward()
                    if recipe == "synchronize first" and o is optimizer:
                        o.synchronize()
                    if recipe in ("unscale first", "synchronize first"):
                        scaler.unscale_(o)
                        torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
                    if recipe == "synchronize first" and o is optimizer:
                        with o.skip_synchronize():
                            scaler.step(o)
                    else:
                        scaler.step(o)
                    scaler.update()
                assert scalers[0].get_scale() == scalers[1].get_scale() == (4.0 if step > 1 else 8.0), (recipe, step)
        same(model, reference, recipe, 1e-4)


@body()
def saved_and_loaded(hvd: ModuleType, rank: int, size: int) -> None:
    """A checkpoint from here loads without Hora, and the other way round; what was there before wrapping stays."""
    model, reference = network(), network()
    plain, inner = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (reference, model))
    train(plain, reference, range(size), steps=2)
    train(inner, model, range(size), steps=2)  # already trained when it is wrapped
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    assert optimizer.state is inner.state and len(optimizer.state) == 6
    train(plain, reference, range(size), steps=3)
    train(optimizer, model, [rank], steps=3)
    same(model, reference)

    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    assert optimizer.state_dict().keys() == plain.state_dict().keys()
    file.seek(0)
    saved = torch.load(file, weights_only=True)  # nothing of Hora's is in it
    alone = network(1)
    alone.load_state_dict(saved[0])
    plain_again = torch.optim.Adam(alone.parameters(), lr=1.0)
    plain_again.load_state_dict(copy.deepcopy(saved[1]))
    train(plain_again, alone, range(size), steps=2)
    for target in ("wrapper", "wrapped"):
        model = network(1)
        model.load_state_dict(saved[0])
        inner = torch.optim.Adam(model.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
        (optimizer if target == "wrapper" else inner).load_state_dict(copy.deepcopy(saved[1]))
        assert optimizer.param_groups is inner.param_groups and optimizer.param_groups[0]["lr"] == 0.01
        train(optimizer, model, [rank], steps=2)
        same(model, alone, target)


@body()
def loading_forgets_what_was_pending(hvd: ModuleType, rank: int, size: int) -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    saved = copy.deepcopy(optimizer.state_dict())
    for _ in range(3):
        loss_of(model, batch(0, [rank])).backward()
        optimizer.load_state_dict(saved)
        optimizer.zero_grad()
        train(optimizer, model, [rank], steps=1)


@body()
def broadcast_state(hvd: ModuleType, rank: int, size: int) -> None:
    model = network(rank)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())
    if rank == 0:
        for state in optimizer.state.values():
            assert not state
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(optimizer, model, [rank])
    for name, value in model.state_dict().items():
        everywhere = hvd.allgather(value[None], name=f"check.{name}")
        assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere)), name


@body(sizes=(2, 3, 4))
def too_many_passes(hvd: ModuleType, rank: int, size: int) -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for _ in range(2):  # alone, and in buckets
        loss_of(model, batch(0, [rank])).backward()
        with raises(hvd.UsageError, "2 times before step()", "backward_passes_per_step"):
            loss_of(model, batch(1, [rank])).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(2)
    loss_of(model, batch(0, [rank])).backward()
    loss_of(model, batch(1, [rank])).backward()
    optimizer.step()


@body(sizes=(2, 3, 4))
def zero_grad_too_early(hvd: ModuleType, rank: int, size: int) -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, batch(0, [rank])).backward()
        with raises(hvd.UsageError, "zero_grad() was called after loss.backward()", "synchronize()"):
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
        loss_of(model, batch(0, [rank])).backward()
        optimizer.synchronize()  # as the message says
        optimizer.zero_grad()


@body()
def step_after_synchronize_warns(hvd: ModuleType, rank: int, size: int) -> None:
    """And does not reduce a second time: with op=Sum that would show."""
    model, reference = network(), network()
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Sum)
    for step in range(3):
        plain.zero_grad()
        (size * loss_of(reference, batch(step, range(size)))).backward()
        plain.step()
        optimizer.zero_grad()
        loss_of(model, batch(step, [rank])).backward()
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            optimizer.step()
        expected = "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize()"
        assert [expected in str(w.message) for w in seen] == [True] * (size > 1)
    same(model, reference)


@body(sizes=(2, 3))
def a_new_optimizer_for_the_same_model(hvd: ModuleType, rank: int, size: int) -> None:
    model, reference = network(), network()
    train(sgd(reference.parameters()), reference, range(size))
    train(sgd(reference.parameters()), reference, range(size))
    first = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    train(first, model, [rank])
    second = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    train(second, model, [rank])
    same(model, reference)
    with raises(hvd.UsageError, "same parameters"):
        first.step()
    del first, second
    gc.collect()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


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


@body(sizes=(1, 2, 3))
def a_new_generation(hvd: ModuleType, rank: int, size: int) -> None:
    """An optimizer outlives shutdown() and init()."""
    model, reference = network(), network()
    plain = sgd(reference.parameters())
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for _ in range(2):
        train(plain, reference, range(size))
        train(optimizer, model, [rank])
        hvd.shutdown()
        if size > 1:
            with raises(hvd.NotInitializedError):
                optimizer.step()
        hvd.init()
        optimizer.zero_grad()
    same(model, reference)
    twins(hvd, rank, range(size))


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
