"""A worker of `hora bench elastic`: ``python -m hora.bench.elastic.worker CONTENDER PLAN``. Trains, and kills itself.

The kill is a real SIGKILL, sent by a thread of the victim's own at a moment that has nothing to do with the step, so it
is the same for every contender and on every host. What happens is printed, a line an event; whoever reads it has the
clock. Computing is a sleep: figures are to be of what recovery costs, not of how many cores there are.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch

from hora.config.env import environ

__all__ = ["EVENT", "ElasticBenchPlan", "main"]

EVENT = "@elastic "


class ElasticBenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``every_s``: so long after all workers are in, one of them is killed; 0: none is."""

    np: int
    every_s: float = 0.0
    stop: bool = False  # SIGSTOP in place of SIGKILL: it is there, and does nothing any more
    compute_s: float = 0.02
    state_bytes: int = 0
    seed: int = 1
    folder: str = ""  # for checkpoints, where a contender needs them
    model: str = ""  # for what commits cost: train this model for real
    rounds: int = 0  # likewise: so many turns of each variant


def say(kind: str, *values: object) -> None:
    """One write, so that lines of many workers are not mixed and a kill does not cut one."""
    os.write(1, f"{EVENT}{kind} {' '.join(map(str, values))}\n".encode())


class PlannedKill:
    """Kills this process by plan, if it is the victim of this generation."""

    def __init__(self, plan: ElasticBenchPlan) -> None:
        self._plan = plan
        self._timer: threading.Timer | None = None

    def arm(self, generation: int, rank: int, size: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        chance = random.Random(self._plan.seed * 1_000_003 + generation)
        victim, delay_s = chance.randrange(max(size, 1)), self._plan.every_s * chance.uniform(0.7, 1.3)
        if self._plan.every_s and size == self._plan.np and rank == victim:
            self._timer = threading.Timer(delay_s, self._fire, (generation, size))
            self._timer.daemon = True
            self._timer.start()

    def _fire(self, generation: int, size: int) -> None:
        say("kill", generation, size, os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP if self._plan.stop else signal.SIGKILL)


class Small(torch.nn.Module):
    """A layer, and state that no gradient touches."""

    def __init__(self, state_bytes: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.register_buffer("held", torch.zeros(state_bytes // 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def _hora(plan: ElasticBenchPlan) -> None:
    import hora.torch as hvd
    from hora.engine import session

    hvd.init()
    torch.manual_seed(0)
    model, optimizer, step = _training(plan)
    wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    kill = PlannedKill(plan)

    def steps(state: Any) -> None:
        generation, size, rank, pid = session.generation(), hvd.size(), hvd.rank(), os.getpid()
        kill.arm(generation, rank, size)
        while True:
            step(wrapped)
            state.step += 1
            state.commit()
            say("step", generation, size, pid, state.step)

    state = hvd.elastic.TorchState(model, wrapped, step=0)
    say("ready", 0, 0, os.getpid())
    hvd.elastic.run(steps)(state)


TURN_STEPS = 10  # of one variant, before the next has its turn
PLAIN, COMMITS, COPIES = range(3)
"""Training without elastic, with a commit after every step, and with a copy every ``TURN_STEPS`` steps."""


def _costs(plan: ElasticBenchPlan) -> None:
    """The three variants by turns in the same processes, each with a model of its own, so that what else the machine
    does falls on all of them alike."""
    import hora.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    pid, trainings, states = os.getpid(), [], {}
    for variant in (PLAIN, COMMITS, COPIES):
        model, optimizer, step = _training(plan)
        wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        trainings.append((wrapped, step))
        if variant != PLAIN:
            states[variant] = hvd.elastic.TorchState(model, wrapped)

    def turns(state: Any) -> None:
        for number in range(plan.rounds + 1):  # the first is to warm up
            for place in range(len(trainings)):
                variant = (number + place) % len(trainings)
                wrapped, step = trainings[variant]
                began = time.perf_counter_ns()
                for _ in range(TURN_STEPS):
                    step(wrapped)
                    if variant == COMMITS:
                        state.commit()
                if variant == COPIES:
                    states[COPIES].save()
                took = time.perf_counter_ns() - began
                if number:
                    say("cost", variant, number, pid, took // TURN_STEPS)

    hvd.elastic.run(turns)(states[COMMITS])


def _training(plan: ElasticBenchPlan) -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    """Model, optimizer, and what takes a step with a wrapped one."""
    if plan.model:
        from hora.bench.models import SPECS, batches

        spec = SPECS[plan.model]
        model: torch.nn.Module = spec.make()
        data = batches(spec, plan.seed)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

        def train(wrapped: torch.optim.Optimizer) -> None:
            images, target = next(data)
            wrapped.zero_grad()
            spec.loss(model(images), target).backward()
            wrapped.step()

        return model, optimizer, train
    model = Small(plan.state_bytes)
    x = torch.ones(4, 64)

    def pretend(wrapped: torch.optim.Optimizer) -> None:
        time.sleep(plan.compute_s)
        wrapped.zero_grad()
        model(x).square().mean().backward()
        wrapped.step()

    return model, torch.optim.SGD(model.parameters(), 1e-3), pretend


def _torchrun(plan: ElasticBenchPlan) -> None:
    """Everybody is started again, so what is to survive is on disk: here the number of the step alone."""
    import torch.distributed as dist

    restarts, rank = int(environ()["TORCHELASTIC_RESTART_COUNT"]), int(environ()["RANK"])
    path = Path(plan.folder) / "step.json"
    done = json.loads(path.read_text()) if path.exists() else 0
    dist.init_process_group("gloo")
    model, optimizer, _ = _training(plan)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    x, size, pid = torch.ones(4, 64), dist.get_world_size(), os.getpid()
    say("ready", 0, 0, pid)
    PlannedKill(plan).arm(restarts, rank, size)
    while True:
        time.sleep(plan.compute_s)
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
        done += 1
        if rank == 0:
            path.with_suffix(".new").write_text(json.dumps(done))
            path.with_suffix(".new").replace(path)
        say("step", restarts, size, pid, done)


def _torchft(plan: ElasticBenchPlan) -> None:
    """Train with torchft, set up as in its own example."""
    torchft = importlib.import_module("torchft")
    replica, pid = int(environ()["REPLICA"]), os.getpid()
    model, plain, _ = _training(plan)

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    store = importlib.import_module("torch.distributed").TCPStore(
        "localhost", 0, is_master=True, wait_for_workers=False
    )
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        replica_id=f"replica_{replica}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=30),
    )
    parallel = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, plain)
    x, kill, was = torch.ones(4, 64), PlannedKill(plan), (-1, 0)
    say("ready", 0, 0, pid)
    while True:
        optimizer.zero_grad()
        time.sleep(plan.compute_s)
        parallel(x).square().mean().backward()
        before = manager.current_step()
        optimizer.step()
        quorum, size = manager._quorum_id, manager.num_participants()
        if (quorum, size) != was:  # a replica that is being brought up to date does not count yet
            kill.arm(quorum, replica, size)
            was = quorum, size
        if manager.current_step() > before:
            say("step", quorum, size, pid, manager.current_step())


def _lighthouse(plan: ElasticBenchPlan) -> None:
    server = importlib.import_module("torchft.coordination").LighthouseServer(bind="[::]:0", min_replicas=1)
    say("address", server.address())
    threading.Event().wait()


CONTENDERS = {"hora": _hora, "costs": _costs, "torchrun": _torchrun, "torchft": _torchft, "lighthouse": _lighthouse}


def main() -> None:
    torch.set_num_threads(1)
    CONTENDERS[sys.argv[1]](msgspec.json.decode(sys.argv[2], type=ElasticBenchPlan))


if __name__ == "__main__":
    main()
