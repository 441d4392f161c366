"""The workers that a process plays: usually the one it is, or several, emulated.

Each has its own stream of random numbers (dropout) and its own statistics of batch normalisation, which are never
synchronised between workers (Goyal et al.). With several in one process, ``with worker:`` puts them in place. So V
workers on n processes compute what V processes would, up to the rounding of sums: quality at a scale that the machine
does not have.

Before a model is validated or saved, the statistics are averaged over all workers (``average``), so that what is
validated is what is saved; then every worker goes on with its own (``separate``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

import hora.torch as hvd
from hora.errors import UsageError
from hora.workloads.options import Options
from hora.workloads.order import worker_seed

__all__ = ["Worker", "Workers", "device_of_this_worker"]


def device_of_this_worker() -> torch.device:
    """The GPU of this rank's place on its host, else the CPU; of those it sees, which may be its own only."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


class Workers:
    """All workers this process plays, in order of rank. Make it after the model, on all ranks.

    ``total`` is how many there are in the whole run, real or emulated; ``ranks`` are those of this process.

    >>> hvd.init()
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> workers = Workers(model, Options(emulate_workers=3))
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

    def __init__(self, model: nn.Module, options: Options) -> None:
        here, size = hvd.rank(), hvd.size()
        self.total = options.emulate_workers or size
        if self.total % size:
            raise UsageError(
                f"--emulate-workers {self.total} cannot be played by {size} processes: each plays as many. Give a "
                f"multiple of {size}, or another -np."
            )
        each = self.total // size
        self.ranks = range(here * each, (here + 1) * each)
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._slots = [
            (module, name, f"{path}.{name}" if path else name)
            for path, module in model.named_modules()
            if isinstance(module, _NormBase)
            for name in module._buffers
            if module._buffers[name] is not None
        ]
        self._averaged = False
        own = [{name: getattr(module, place) for module, place, name in self._slots}]  # the model's own
        own += [{name: tensor.clone() for name, tensor in own[0].items()} for _ in self.ranks[1:]]
        self._workers = [
            Worker(self, rank, _seeded(worker_seed(options.seed, rank), self.device), statistics)
            for rank, statistics in zip(self.ranks, own, strict=True)
        ]

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    # ---- statistics ----

    def average(self) -> None:
        """Put the mean of all workers' statistics into the model. All ranks call it together."""
        if not self._slots or self._averaged:
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
        """What belongs to every worker of the run, in order of rank; all ranks call it together."""
        own = [{"random": worker.random, "statistics": worker.statistics} for worker in self._workers]
        gathered: list[list[dict[str, Any]]] = hvd.allgather_object(own, name="hora.workers")
        return [state for states in gathered for state in states]

    def load_state(self, states: list[dict[str, Any]]) -> bool:
        """Go on from there, if it was as many workers; else each begins with the model's statistics, and False."""
        alike = len(states) == self.total
        for worker in self._workers:
            saved = states[worker.rank]["statistics"] if alike else {}
            for module, place, name in self._slots:
                worker.statistics[name] = saved[name].to(self.device) if alike else getattr(module, place).clone()
            if alike:
                worker.random = states[worker.rank]["random"]
        self._averaged = True  # what was saved, and is in the model now, is the mean
        return alike


class Worker:
    """One of them. ``with worker:`` is this worker computing; it may be entered any number of times in a step."""

    def __init__(
        self, workers: Workers, rank: int, random: list[torch.Tensor], statistics: dict[str, torch.Tensor]
    ) -> None:
        self._workers, self.rank = workers, rank
        self.random, self.statistics = random, statistics

    def __enter__(self) -> Worker:
        _set_random(self.random)  # also of the only one: others, such as data loaders, draw from the same generator
        if len(self._workers) > 1:
            self._workers._put(self.statistics)
        return self

    def __exit__(self, *_: object) -> None:
        self.random = _random(self._workers.device)


# A stream's state is a list: the CPU's generator, and the GPU's if there is one.


def _random(device: torch.device) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random(state: list[torch.Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(state[1])


def _seeded(seed: int, device: torch.device) -> list[torch.Tensor]:
    state = [torch.Generator().manual_seed(seed).get_state()]
    if device.type == "cuda":
        state.append(torch.Generator(device).manual_seed(seed).get_state())
    return state
