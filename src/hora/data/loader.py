"""Batches made ahead of time, in processes that live as long as the run.

A loader has a dataset, which makes a batch from its plan (``dataset[plan]``), and the plans of every epoch. Random
numbers of an augmentation come from what the plan says (seed, epoch, sample, virtual worker), never from the process
that happens to make the batch; so results do not depend on how many there are.

The processes are torch's DataLoader's. They are forked once, keep working from one epoch into the next, and hand
batches over in shared memory without a name, so nothing is left in /dev/shm. They leave signals to the trainer, which
may want to save before it ends, and die with it, however it dies.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import math
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import data as torch_data

from hora.errors import EnvironmentUnfit, HoraError, UsageError

__all__ = ["BatchPlan", "Dataset", "Loader", "empty"]

T_co = TypeVar("T_co", covariant=True)

_PR_SET_PDEATHSIG = 1
_FOR_THE_TRAINER = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class BatchPlan(NamedTuple):
    """One batch to make: which samples, and what its random numbers are seeded by."""

    indices: npt.NDArray[np.int64]
    epoch: int = 0
    worker: int = 0  # virtual worker
    step: int = 0  # of the epoch


class Dataset(Protocol[T_co]):
    """Makes batches. The result must not depend on the process it is in; files are opened where they are used."""

    def __getitem__(self, plan: BatchPlan, /) -> T_co: ...


class Loader(Generic[T_co]):
    """Makes the batches of an epoch ahead of their use, in ``processes`` processes; with 0 in this one, when asked for.

    ``plans(epoch)`` gives the plans of an epoch's batches in order. It is called ahead of time, so it must depend on
    the epoch alone: while the last batches of an epoch are used and it is validated, those of the next are made, but
    not of ``epochs`` and later. Each process is at most ``prefetch`` batches ahead. ``pin`` puts batches of processes
    into memory that a GPU copies from while it computes.

    >>> class Doubled:
    ...     def __getitem__(self, plan):
    ...         return torch.from_numpy(plan.indices * 2)
    >>> def plans(epoch):
    ...     return [BatchPlan(np.arange(start, start + 2), epoch) for start in (0, 2)]
    >>> with Loader(Doubled(), plans, processes=1, epochs=1) as loader:
    ...     for batch in loader.epoch(0):
    ...         print(batch)
    tensor([0, 2])
    tensor([4, 6])
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        plans: Callable[[int], Iterable[BatchPlan]],
        *,
        processes: int = 0,
        prefetch: int = 2,
        epochs: int | None = None,
        pin: bool = False,
    ) -> None:
        if processes < 0 or prefetch < 1:
            raise UsageError(
                f"{processes} loader processes, each {prefetch} batches ahead, is not possible. Give 0 or more "
                "processes, and 1 or more batches."
            )
        self._dataset, self._plans, self._processes, self._prefetch = dataset, plans, processes, prefetch
        self._ahead, self._pin = _Ahead(plans, epochs), pin
        self._torch: torch_data.DataLoader[Any] | None = None
        self._stream: Iterator[Any] = iter(())
        self._next: int | None = None  # the epoch that the stream is at the start of
        self._closed = False
        self.process = os.getpid()
        _open.add(self)

    def epoch(self, epoch: int) -> Iterator[T_co]:
        """The batches of this epoch, in order. One that is not used up is forgotten."""
        if not self._processes:
            for plan in self._plans(epoch):
                yield self._dataset[plan]
            return
        if self._next != epoch:
            self._start(epoch)
        self._next = None  # until the last is taken
        for left in reversed(range(self._ahead.counts.pop(epoch, 0))):
            batch = self._take()
            if not left and epoch + 1 in self._ahead.counts:
                self._next = epoch + 1  # said before the last batch is given away: who has it may never come back
            yield batch

    def forget(self) -> None:
        """What the plans depend on has changed: what was made ahead of an epoch is made anew."""
        self._next = None

    def _start(self, epoch: int) -> None:
        if self._closed:
            raise UsageError("the loader is closed; its processes have ended. Make a new one.")
        self._ahead.start(epoch)
        with warnings.catch_warnings(), _signals_held():
            # More processes than cores, which was asked for; and a fork of a process that has threads.
            warnings.simplefilter("ignore")
            if self._torch is None:
                self._torch = self._made()
            self._stream = iter(self._torch)

    def _made(self) -> torch_data.DataLoader[Any]:
        # The kernel ends a process with the thread that forked it: of use if that one lasts as long as the trainer.
        mortal = threading.current_thread() is threading.main_thread()
        return torch_data.DataLoader(
            _Guarded(self._dataset),
            batch_size=None,  # the dataset makes whole batches,
            collate_fn=_same,  # and they arrive as it made them
            sampler=self._ahead,
            num_workers=self._processes,
            prefetch_factor=self._prefetch,
            persistent_workers=True,
            multiprocessing_context="fork",
            worker_init_fn=functools.partial(_begin, os.getpid(), mortal),
            pin_memory=self._pin,  # by a thread of the trainer's
            generator=torch.Generator(),  # or it would take a random number of the trainer's
        )

    def _take(self) -> Any:
        try:
            batch = next(self._stream)
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker (pid"):
                raise
            raise EnvironmentUnfit(
                f"a loader process died: {error} It may have been killed because memory ran out, or /dev/shm is full, "
                "where batches are handed over. Take fewer loader processes (--loaders), a smaller batch, or a larger "
                "/dev/shm (docker: --shm-size)."
            ) from None
        if isinstance(batch, _Failure):
            raise batch.error
        return batch

    def close(self) -> None:
        """End the processes. Also done when the loader is left as a context, or is forgotten, and at exit."""
        stream: Any = self._stream
        self._torch, self._stream, self._next, self._closed = None, iter(()), None, True
        if hasattr(stream, "_shutdown_workers"):  # which torch does when nothing refers to it, and a traceback may
            stream._shutdown_workers()
            for process in stream._workers:
                process.kill()  # if it did not end within torch's five seconds

    def __enter__(self) -> Loader[T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_open: weakref.WeakSet[Loader[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before multiprocessing, which was imported earlier, ends its children by SIGTERM, which ours leave to us."""
    for loader in list(_open):
        if loader.process == os.getpid():  # not in a child that somebody forked
            loader.close()


def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """A tensor for a dataset to write a batch into: in a loader process it lies in shared memory, so that it need not
    be copied on its way to the trainer.

    >>> empty((2, 3)).shape
    torch.Size([2, 3])
    """
    if torch_data.get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    shared = torch.UntypedStorage._new_shared(max(1, math.prod(shape) * dtype.itemsize))
    return torch.empty(0, dtype=dtype).set_(shared).view(shape)


class _Ahead(torch_data.Sampler[BatchPlan]):
    """The plans of one epoch after the other, drawn by torch in the trainer's process; notes how many each has."""

    def __init__(self, plans: Callable[[int], Iterable[BatchPlan]], epochs: int | None) -> None:
        self._plans, self._epochs, self._first = plans, epochs, 0
        self.counts: dict[int, int] = {}

    def start(self, epoch: int) -> None:
        self._first, self.counts = epoch, {}

    def __iter__(self) -> Iterator[BatchPlan]:
        epoch = self._first
        while plans := list(self._plans(epoch)):
            self.counts[epoch] = len(plans)
            yield from plans
            epoch += 1
            if self._epochs is not None and epoch >= self._epochs:
                return


class _Failure(NamedTuple):
    """What a loader process sends in place of a batch."""

    error: HoraError


class _Guarded(torch_data.Dataset[Any]):
    """The dataset in a loader process: its errors arrive as they were raised, without a traceback wrapped in them."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitem__(self, plan: BatchPlan, /) -> Any:
        try:
            return self._dataset[plan]
        except HoraError as error:
            return _Failure(error)


def _same(batch: Any) -> Any:
    return batch


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold signals during a fork, so that one that arrives before the child ignores signals does not end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_TRAINER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(trainer: int, mortal: bool, number: int) -> None:
    """The first thing of ours that a loader process does."""
    for signum in _FOR_THE_TRAINER:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_TRAINER)
    if mortal:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != trainer:  # it died in the meantime
        os._exit(1)
