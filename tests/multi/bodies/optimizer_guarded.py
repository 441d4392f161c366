"""DistributedOptimizer with guards: what is not finite, what has diverged, and that ranks stay in step about it."""

from __future__ import annotations

import copy
import math
from types import ModuleType

import torch
from tests.multi.bodies.guards import warnings_of_hora
from tests.multi.bodies.optimizer import batch, loss_of, network, same, sgd, train
from tests.multi.body import body
from tests.multi.data import raises

from hora.engine import session
from hora.torch.guard import DivergenceError, NonFiniteError


@body(sizes=(2, 3, 4))
def steps_are_left_out_on_all_ranks(hvd: ModuleType, rank: int, size: int) -> None:
    """One rank has a nan, in the first step and in a later one: nobody steps, and the next step is fine again."""
    for policy, compression in (("skip", hvd.Compression.none), ("skip", hvd.Compression.fp16), ("stop", None)):
        model, reference = network(), network()
        optimizer = hvd.DistributedOptimizer(
            sgd(model.parameters()), model.named_parameters(), compression=compression or hvd.Compression.none
        )
        optimizer._reducer._guard.policy = policy
        plain = sgd(reference.parameters())
        for step in range(6):
            optimizer.zero_grad()
            x, y = batch(step, [rank])
            poisoned = step in (0, 3)
            if poisoned and rank == size - 1:
                x[0, 0, 0, 0] = torch.nan
            loss_of(model, (x, y)).backward()
            if poisoned and policy == "stop":
                with raises(NonFiniteError, f"rank {size - 1}", "0.weight"):
                    optimizer.step()
                continue
            optimizer.step()
            if not poisoned:
                plain.zero_grad()
                loss_of(reference, batch(step, range(size))).backward()
                plain.step()
        same(model, reference, policy, 1e-5 if compression is not hvd.Compression.fp16 else 0.05)


@body(sizes=(2, 3, 4))
def diverged_replicas_are_noticed(hvd: ModuleType, rank: int, size: int) -> None:
    """After the first step, and every so many: also by ranks that have counted differently."""
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    guard = optimizer._reducer._guard
    guard.every, guard._strict = 4, True
    train(optimizer, model, [rank], steps=rank + 1)
    hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=size - 1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=size - 1)
    train(optimizer, model, [rank], steps=9)
    with torch.no_grad():
        if rank == 1:
            model[3].weight[0, 0] += 1e-3
    with raises(DivergenceError, "3.weight"):
        train(optimizer, model, [rank], steps=4)


@body(sizes=(2, 3))
def the_first_check_of_replicas_names_the_first_step(hvd: ModuleType, rank: int, size: int) -> None:
    """They differ from the start, because nobody broadcast them: the message must not send anyone to look elsewhere."""
    model = network()
    with torch.no_grad():
        model[3].weight[0, 0] += rank
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    optimizer._reducer._guard._strict = True
    with raises(DivergenceError, "step 1:", "3.weight"):
        train(optimizer, model, [rank], steps=1)


@body(sizes=(2, 3, 4))
def named_in_the_step_in_which_it_happens(hvd: ModuleType, rank: int, size: int) -> None:
    """R16 with the optimizer: any tensor, small or of megabytes, alone in the first step or in a bucket later."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(30, 10_000), torch.nn.Tanh(), torch.nn.Linear(10_000, 3))
    names = [name for name, _ in model.named_parameters()]
    start, turn = copy.deepcopy(model.state_dict()), {"step": 0}

    def poison(place: int, gradient: torch.Tensor) -> torch.Tensor:
        if turn["step"] % 4 != place or rank != turn["step"] % size:
            return gradient
        gradient = gradient.clone()
        gradient.view(-1)[(turn["step"] * 7919) % gradient.numel()] = math.nan if turn["step"] % 3 else math.inf
        return gradient

    for place, parameter in enumerate(model.parameters()):
        parameter.register_hook(lambda gradient, place=place: poison(place, gradient))
    for policy in ("warn", "skip", "stop"):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        guard = optimizer._reducer._guard
        guard.policy = policy
        if policy == "warn" and not getattr(session.engine().backend, "finds_not_finite", False):
            continue  # what is large is looked at now and then only
        for step in range(10):
            turn["step"], guard._times_found = step, 0  # as if it were the first time, so that all are told
            model.load_state_dict(start)
            optimizer.zero_grad()
            model(torch.ones(2, 30)).sum().backward()
            kind = "nan" if step % 3 else "inf"
            words = f"step {step + 1}: gradients that are not finite on rank {step % size}: {names[step % 4]} ({kind})."
            if policy == "stop":
                with raises(NonFiniteError, words):
                    optimizer.step()
                continue
            with warnings_of_hora() as said:
                optimizer.step()
            assert len(said) == (rank == 0) and all(words in text for text in said), (words, said)


@body(sizes=(2, 3))
def several_ranks_and_tensors_are_named(hvd: ModuleType, rank: int, size: int) -> None:
    model = network()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    optimizer._reducer._guard.policy = "stop"
    train(optimizer, model, [rank], steps=2)
    for culprits in ([0], [size - 1], list(range(size))):
        optimizer.zero_grad()
        loss_of(model, batch(5, [rank])).backward()
        optimizer.synchronize()  # reduced by now; what is set by hand goes with the next step
        with torch.no_grad():
            if rank in culprits:
                for parameter in trained:
                    parameter.grad.fill_(torch.inf)
        words = [f"on rank {culprit}: " for culprit in culprits]
        words += [f"and {len(trained) - 5} more"] if len(culprits) == 1 else []
        with raises(NonFiniteError, *words):
            optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.zero_grad()


@body(sizes=(2,))
def a_scaler_is_told_nothing_aloud(hvd: ModuleType, rank: int, size: int) -> None:
    """It leaves the step out on all ranks; who had it is in the log for those who want to know."""
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(step, [rank])
        if rank == 1:
            x[0, 0, 0, 0] = torch.inf
        scaler.scale(loss_of(model, (x, y))).backward()
        with warnings_of_hora() as said:
            scaler.step(optimizer)
            scaler.update()
        assert not said
    assert scaler.get_scale() == 1.0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
