"""The workers that a process computes for: usually one, itself, or several, emulated or logical.

Each has its own random numbers (dropout), which depend on the seed, its rank and the step alone, and its own statistics
of batch normalisation, which are never synchronised between workers (Goyal et al.). With several in one process, ``with
worker:`` puts them in place. So V workers on n processes compute what V processes would, up to the rounding of sums:
quality at a scale that the machine does not have.

Before a model is validated or saved, the statistics are averaged over all workers (``average``), so that what is
validated is what is saved; then every worker continues with its own (``separate``).

*Logical* workers (``--logical-workers V``) are exact: any number of processes up to V divides them and gets the same
bits. Their gradients, statistics and metrics are summed in their order (``ordered``) at every step, so after a step
every process has the whole state, and any of them can continue. The statistics that they share are the mean of what
each one's would be: the mean of V running means is the running mean of the means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

import hora.torch as hvd
from hora.errors import UsageError
from hora.workloads import devices
from hora.workloads.metrics import Means, Sums
from hora.workloads.options import WorkloadOptions
from hora.workloads.order import worker_seed
from hora.workloads.ordered import OrderedSum, shares

__all__ = ["EmulatedWorker", "EmulatedWorkers"]


class EmulatedWorkers:
    """All workers of this process, in order of rank. Make it after the model, on all ranks.

    ``total`` is how many there are in the whole run, real or emulated; ``ranks`` are those of this process.

    >>> hvd.init()
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> workers = EmulatedWorkers(model, WorkloadOptions(emulate_workers=3))
    >>> workers.total, workers.ranks
    (3, range(0, 3))
    >>> for worker in workers:
    ...     with worker:
    ...         _ = model(torch.full((4, 2), float(worker.rank)))
    >>> workers.average()
    >>> int(model[1].num_batches_tracked)
    1
    >>> hvd.shutdown()
    """

    def __init__(self, model: nn.Module, options: WorkloadOptions) -> None:
        self._model, self._seed, self._emulated = model, options.seed, options.emulate_workers
        self.logical = options.logical_workers
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._slots = [
            (module, name, f"{path}.{name}" if path else name)
            for path, module in model.named_modules()
            if isinstance(module, _NormBase)
            for name in module._buffers
            if module._buffers[name] is not None
        ]
        self._averaged = False
        self._workers: list[EmulatedWorker] = []
        self._step: _LogicalStep | None = None
        self.share_out()

    def share_out(self) -> None:
        """Find out which workers this process computes for now. Statistics are the model's."""
        here, size = hvd.rank(), hvd.size()
        self.total = self.logical or self._emulated or size
        if self.logical and size > self.total:
            raise UsageError(
                f"--logical-workers {self.total} for {size} processes: each needs at least one. Give {size} or more "
                "logical workers, or fewer processes."
            )
        if not self.logical and self.total % size:
            raise UsageError(
                f"--emulate-workers {self.total} cannot be divided among {size} processes evenly. Give a "
                f"multiple of {size}, or another -np."
            )
        self.ranks = shares(self.total, size)[here]
        own = [{name: getattr(module, place) for module, place, name in self._slots}]  # the model's own
        own += [own[0] if self.logical else _copies(own[0]) for _ in self.ranks[1:]]
        self._workers = [EmulatedWorker(self, rank, theirs) for rank, theirs in zip(self.ranks, own, strict=True)]
        self.begin(0)

    def begin(self, step: int) -> None:
        """A step begins, or begins again."""
        for worker in self._workers:
            worker.random = devices.seeded(worker_seed(self._seed, worker.rank, step), self.device)
        if self.logical:
            self._step = _LogicalStep(self.total, self._model, self._workers[0].statistics)

    def switch(self, worker: EmulatedWorker | None) -> None:
        """Another worker computes, or none any more."""
        if self._step is not None:
            self._step.switch(worker)

    def count(self, samples: int, values: dict[str, Any]) -> None:
        """Logical: metrics of the worker that has just computed."""
        if self._step is not None:
            self._step.metrics.add(samples, values)

    def summed(self) -> Sums:
        """Logical: all workers are done with the step. Puts the means of their gradients and statistics in place;
        returns the sums of their metrics. All ranks call it together."""
        assert self._step is not None
        return self._step.end()

    def __iter__(self) -> Iterator[EmulatedWorker]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    # ---- statistics ----

    def average(self) -> None:
        """Put the mean of all workers' statistics into the model. All ranks call it together."""
        if not self._slots or self._averaged or self.logical:
            return
        self._averaged = True
        means = {}
        for _, _, name in self._slots:
            own = [worker.statistics[name] for worker in self._workers]
            exact = own[0].is_floating_point()  # the count of batches is the same everywhere
            means[name] = torch.stack(own).mean(0) if exact and len(own) > 1 else own[0].clone()
        names = [name for name, tensor in means.items() if tensor.is_floating_point()]
        if hvd.size() > 1:
            reduced = hvd.grouped_allreduce([means[name] for name in names], op=hvd.Average, name="hora.statistics")
            means |= dict(zip(names, reduced, strict=True))
        self._put(means)

    def separate(self) -> None:
        """Give every worker its own statistics again."""
        if self._averaged:
            self._averaged = False
            self._put(self._workers[0].statistics)

    def _put(self, statistics: dict[str, torch.Tensor]) -> None:
        for module, place, name in self._slots:
            module._buffers[place] = statistics[name]

    # ---- to keep ----

    def state(self) -> list[dict[str, Any]]:
        """What belongs to every worker of the run, in order of rank; all ranks call it together. Logical ones have
        nothing of their own."""
        own = [] if self.logical else [{"statistics": worker.statistics} for worker in self._workers]
        gathered: list[list[dict[str, Any]]] = hvd.allgather_object(own, name="hora.workers")
        return [state for states in gathered for state in states]

    def load_state(self, states: list[dict[str, Any]]) -> bool:
        """Continue from there, if it was as many workers; else each begins with the model's statistics, and False."""
        if self.logical:
            return True
        alike = len(states) == self.total
        for worker in self._workers:
            saved = states[worker.rank]["statistics"] if alike else {}
            for module, place, name in self._slots:
                worker.statistics[name] = saved[name].to(self.device) if alike else getattr(module, place).clone()
        self._averaged = True  # what was saved, and is in the model now, is the mean
        return alike


class EmulatedWorker:
    """One of them. ``with worker:`` is this worker computing; it may be entered any number of times in a step."""

    random: list[torch.Tensor]

    def __init__(self, workers: EmulatedWorkers, rank: int, statistics: dict[str, torch.Tensor]) -> None:
        self._workers, self.rank, self.statistics = workers, rank, statistics

    def __enter__(self) -> EmulatedWorker:
        self._workers.switch(self)
        # Also of the only one: others, such as data loaders, draw from the same generator.
        devices.set_random_state(self.random, self._workers.device)
        if len(self._workers) > 1 and not self._workers.logical:
            self._workers._put(self.statistics)
        return self

    def __exit__(self, *_: object) -> None:
        self.random = devices.random_state(self._workers.device)


class _LogicalStep:
    """One step of the logical workers of this process, which take it one after the other."""

    def __init__(self, total: int, model: nn.Module, statistics: dict[str, torch.Tensor]) -> None:
        self._total = total
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._statistics = statistics
        self._before = _copies(statistics)  # what each worker begins the step with
        self._sum = OrderedSum(total)
        self._current: EmulatedWorker | None = None
        self.metrics = Means()
        self._names: list[str] = []

    def switch(self, worker: EmulatedWorker | None) -> None:
        """Take what the worker has that computed last; the next one finds everything as that one did."""
        if worker is self._current:
            return
        if self._current is not None:
            self._sum.add(self._current.rank, self._taken())
            if worker is not None:
                for name, tensor in self._before.items():
                    self._statistics[name].copy_(tensor)
        self._current = worker

    @torch.no_grad()
    def _taken(self) -> torch.Tensor:
        sums = self.metrics.sums()
        self.metrics.clear()
        self._names = sorted(sums)
        numbers = [number for name in self._names for number in sums[name]]
        device = self._parameters[0].device
        parts = [_flat(p.grad) if p.grad is not None else _zeros(p) for p in self._parameters]
        parts += [_flat(tensor) for tensor in self._floats()]
        parts.append(torch.tensor(numbers, dtype=torch.float32, device=device))
        for parameter in self._parameters:
            parameter.grad = None
        return torch.cat(parts)

    @torch.no_grad()
    def end(self) -> Sums:
        self.switch(None)
        summed, at = self._sum.result(), 0
        numbers = summed[len(summed) - 2 * len(self._names) :].tolist()
        summed.div_(self._total)
        for parameter in self._parameters:
            parameter.grad = summed[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        for tensor in self._floats():
            tensor.copy_(summed[at : at + tensor.numel()].view_as(tensor))
            at += tensor.numel()
        return {name: (numbers[2 * i], int(numbers[2 * i + 1])) for i, name in enumerate(self._names)}

    def _floats(self) -> list[torch.Tensor]:
        return [tensor for tensor in self._statistics.values() if tensor.is_floating_point()]


def _copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1)


def _zeros(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
