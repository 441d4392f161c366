"""DistributedOptimizer beside others: optimizers, scalers, checkpoints, generations; and what it refuses."""

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

from hora.errors import UsageError


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


@body(sizes=(2, 3))
def of_two_that_alternate_each_notices_a_zero_grad_too_early(hvd: ModuleType, rank: int, size: int) -> None:
    """Gradients that came before the other's step are by-products, and may be thrown away; later ones may not."""
    for width in (4, 200):  # in a bucket with others; each by itself
        models = [torch.nn.Linear(width, width) for _ in range(2)]
        optimizers = [hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters()) for model in models]
        data = torch.ones(2, width)
        for step in range(6):
            optimizer, model = optimizers[step % 2], models[step % 2]
            optimizer.zero_grad()
            model(data).sum().backward()
            with raises(UsageError, "zero_grad() was called after"):
                optimizer.zero_grad()
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        models[0](models[1](data)).sum().backward()
        optimizers[0].step()
        optimizers[1].zero_grad()


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
