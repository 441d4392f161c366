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
from hora.launch.planning.plan import LaunchPlan

if TYPE_CHECKING:
    from hora.launch.job_output import JobOutput
    from hora.launch.site import ElasticSite, Site

__all__ = ["Job", "JobResult", "LaunchMethod"]


class LaunchMethod(Protocol):
    """A way to start workers: local, ssh, slurm, ray, mpi."""

    name: str

    def site(self, job: Job, record: JobOutput, selector: selectors.BaseSelector) -> Site:
        """Where the job runs. What takes long to arrive there is sent on its way by this."""

    def elastic_site(self, job: Job, record: JobOutput, selector: selectors.BaseSelector) -> ElasticSite:
        """Where an elastic job runs. Raises UsageError if this way cannot do that."""

    def preview(self, job: Job) -> list[str]:
        """What would be started, for --dry-run: no secret, no side effect."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    ``environment`` is the workers', without their places. With ``call`` each worker inherits a file that holds it and a
    pipe to answer on, whose descriptors are the last arguments of its command; answers go to ``on_answer(rank, data)``.
    ``say`` is for the curious (--verbose), ``announce`` for everybody. With ``keep_last_words`` an exception or a
    refusal that ends a worker is not printed but left to the verdict, so that what many ranks say is printed once.
    With ``filter_tensorflow`` what TensorFlow says of itself when it starts is left out.
    """

    plan: LaunchPlan
    command: tuple[str, ...]
    environment: Mapping[str, str]
    console: output.Console
    way: LaunchMethod
    prefix: bool = True
    timestamp: bool = False
    keep_last_words: bool = False
    filter_tensorflow: bool = False
    output_directory: Path | None = None
    forward_stdin: bool = False
    threads_per_worker: int | None = None
    bind: bool = True
    call: bytes | None = None
    on_answer: Callable[[int, bytes], None] = lambda rank, data: None
    say: Callable[[str], None] = lambda line: None
    announce: Callable[[str], None] = lambda line: None
    name: str = msgspec.field(default_factory=lambda: os.urandom(8).hex())


class JobResult(NamedTuple):
    """How the job ended: the exit code to pass on, the first failure if any, every worker's end in the order seen; and
    the output that was held back."""

    exit_code: int
    first: failure.Ending | None
    endings: tuple[failure.Ending, ...]
    tails: Mapping[int, output.Tail]
    interrupted_by: signal.Signals | None
    last_words: Mapping[int, bytes] = {}
