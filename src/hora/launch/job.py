"""What a job is, before it runs, and what is known of it afterwards. Starts nothing."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from hora.launch import failure, output
from hora.launch.plan import Plan

if TYPE_CHECKING:
    from hora.engine.hub import Hub
    from hora.launch.record import Record

__all__ = ["Job", "Site", "Verdict", "Way"]


class Site(Protocol):
    """The workers of one job, wherever they run. Used by one thread, which waits on a selector that the site adds to.

    After ``start``, ``step`` is called whenever the selector wakes and at least every ``patience_s``.
    """

    hub: Hub | None  # what the workers meet at, once somebody may need it; the site closes it

    def start(self) -> None:
        """Begin. Raises EnvironmentUnfit if the job cannot be started."""

    def step(self) -> list[failure.Ending]:
        """Take note of what has happened; returns the workers that have ended since."""

    def running(self) -> Mapping[int, str]:
        """The ranks that have not ended, each with words to find its process by."""

    def send(self, number: signal.Signals) -> None:
        """Signal every worker that has not ended."""

    def patience_s(self) -> float:
        """How long nothing needs to be done unless the selector wakes."""

    def close(self) -> None:
        """End what is left of the job, everywhere, and hand in what is left of its output."""


class Way(Protocol):
    """A way to start workers: local, ssh, slurm, ray, mpi."""

    name: str

    def site(self, job: Job, record: Record, selector: selectors.BaseSelector) -> Site:
        """Where the job runs. What takes long to arrive there is sent on its way by this."""

    def preview(self, job: Job) -> list[str]:
        """What would be started, for --dry-run: no secret, no side effect."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    ``environment`` is the workers', without their places. With ``call`` each worker inherits a file that holds it and a
    pipe to answer on, whose descriptors are the last arguments of its command; answers go to ``on_answer(rank, data)``.
    ``say`` is for the curious (--verbose), ``announce`` for everybody. With ``keep_last_words`` an exception or a
    refusal that ends a worker is not printed but left to the verdict, so that what many ranks say is printed once.
    With ``hush_tensorflow`` what TensorFlow says of itself when it starts is left out.
    """

    plan: Plan
    command: tuple[str, ...]
    environment: Mapping[str, str]
    console: output.Console
    way: Way
    prefix: bool = True
    timestamp: bool = False
    keep_last_words: bool = False
    hush_tensorflow: bool = False
    output_directory: Path | None = None
    forward_stdin: bool = False
    threads_per_worker: int | None = None
    bind: bool = True
    call: bytes | None = None
    on_answer: Callable[[int, bytes], None] = lambda rank, data: None
    say: Callable[[str], None] = lambda line: None
    announce: Callable[[str], None] = lambda line: None
    name: str = msgspec.field(default_factory=lambda: os.urandom(8).hex())


class Verdict(NamedTuple):
    """How it went: the exit code to pass on, the first failure if any, every worker's end in the order seen; and what
    was kept back for whoever tells of it."""

    exit_code: int
    first: failure.Ending | None
    endings: tuple[failure.Ending, ...]
    tails: Mapping[int, output.Tail]
    interrupted_by: signal.Signals | None
    last_words: Mapping[int, bytes] = {}
