"""Running a planned job from first process to last, wherever its workers are: deaths, signals, and the result.

Promises: the first failure ends the job; the others get a moment to report what they saw, then SIGTERM, then SIGKILL.
Signals to the launcher are passed on, a second one kills at once. Whatever happens, nothing of the job is left when
``supervise`` returns, nor soon after the launcher is killed (``guardian``). How workers are reached is their site's
business (``here``, ``remote``, ``mpi``).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from hora.config.limits import limits_named
from hora.config.settings import PREEMPTED_EXIT_CODE
from hora.errors import EnvironmentUnfit
from hora.launch import failure
from hora.launch.job import Job, JobResult
from hora.launch.job_output import JobOutput
from hora.launch.signals import Signals
from hora.launch.site import AnySite, Site

__all__ = ["TERM_S", "Supervisor", "supervise"]

_LAST_WORDS_S = 1.0  # for peers of a failed rank to notice and say so
_CULPRIT_S = 5.0  # for the rank whose end made the others fail to end itself
TERM_S = 5.0  # from SIGTERM to SIGKILL after a failure
_GRACE_S = 30.0  # from a forwarded signal to SIGKILL: workers may be saving their state
_UNKILLABLE_S = 10.0  # a process stuck in the kernel is reported, not waited for


def supervise(job: Job) -> JobResult:
    """Run the job to its end. Raises EnvironmentUnfit if it could not be started; then nothing of it is left."""
    with Signals() as signals:
        supervisor = _Supervisor(job, signals)
        supervisor.run()
    return supervisor.verdict()


class Supervisor(ABC):
    """The state of one job, elastic or not. Used by one thread; only the console is written to in another.

    What all have in common: signals are passed on, those that do not end are ended, and nothing is left.
    """

    _site: AnySite

    def __init__(self, job: Job, signals: Signals) -> None:
        self._job, self._signals = job, signals
        self._endings: list[failure.Ending] = []
        self._record = JobOutput(job, lambda: signals.put(signal.SIGPIPE))
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.fd, selectors.EVENT_READ)
        self._open = contextlib.ExitStack()  # what is freed once no worker is left
        self._open.callback(self._selector.close)
        self._open.callback(self._record.close)
        self._due: tuple[float, signal.Signals] | None = None  # when to send what to those still alive
        self._stopping = False  # we end the job
        self._interrupted_by: signal.Signals | None = None

    def run(self) -> None:
        """Run the job, from its first process to its last."""
        try:
            with limits_named("the job cannot be started"):
                self.start()
            self.watch()
        finally:
            self.close()

    @abstractmethod
    def start(self) -> None:
        """Begin. Raises EnvironmentUnfit."""

    @abstractmethod
    def watch(self) -> None:
        """Until every worker has ended."""

    @abstractmethod
    def note(self) -> None:
        """Take note of what has happened."""

    def must_wait(self) -> bool:
        """Whether the others are not to be ended yet after a failure."""
        return False

    def on_signal(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if number == signal.SIGTSTP:
            self._site.send(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._site.send(signal.SIGCONT)  # reached when the shell continues us
        elif number in (signal.SIGUSR1, signal.SIGUSR2):
            self._site.send(number)
        elif self._interrupted_by is not None:
            self._due = now, signal.SIGKILL
        elif number == signal.SIGPIPE:  # nobody reads our output any more
            self._interrupted_by = number
            self._due = now, signal.SIGTERM
        else:
            self._interrupted_by = number
            self._site.send(number)
            self._due = now + _GRACE_S, signal.SIGKILL
            count = len(self._site.running())
            self._job.say(f"{number.name} passed on to {count} workers; a second one kills them at once")

    def fail_soon(self, returncode: int) -> None:
        """A worker has failed: the others are ended once they have had time to say what they saw."""
        leaving = returncode == PREEMPTED_EXIT_CODE  # then the others are saving their state too
        self._due = time.monotonic() + (_GRACE_S if leaving else _LAST_WORDS_S), signal.SIGTERM

    def send_what_is_due(self) -> None:
        now = time.monotonic()
        if self._due is None or self._due[0] > now:
            return
        number, self._due = self._due[1], None
        if number == signal.SIGTERM and not self._stopping and self.must_wait():
            self._due = now + 0.1, number
        else:
            self.end_all(number)

    def end_all(self, number: signal.Signals) -> None:
        self._stopping = True
        self._site.send(number)
        if number == signal.SIGTERM:
            self._site.send(signal.SIGCONT)  # a stopped worker would not notice
            self._due = time.monotonic() + TERM_S, signal.SIGKILL
        else:
            self._await_the_killed()

    def _await_the_killed(self) -> None:
        deadline = time.monotonic() + _UNKILLABLE_S
        while self._site.running() and time.monotonic() < deadline:
            self._selector.select(0.02)
            self.note()
        if left := self._site.running():
            raise EnvironmentUnfit(
                f"{', '.join(left.values())} did not end {_UNKILLABLE_S:.0f} s after SIGKILL: stuck in the kernel, "
                "usually on a dead file system or device. Look at its state with 'ps', and at the kernel's log."
            )

    def close(self) -> None:
        """End what is left, write what is left, free everything."""
        with self._open:
            self._site.close()

    def judge(self, endings: Sequence[failure.Ending]) -> JobResult:
        """How the job went, if these are the ends that count."""
        tails = self._record.tails
        first = failure.first_failure(endings, tails)
        code = failure.exit_code(first.returncode) if first else 0
        if self._interrupted_by == signal.SIGPIPE:
            code = 128 + signal.SIGPIPE
        if self._interrupted_by == signal.SIGINT and code == 1:  # Python, where it is interrupted while it starts
            code = 128 + signal.SIGINT
        return JobResult(code, first, tuple(self._endings), tails, self._interrupted_by, self._record.last_words())


class _Supervisor(Supervisor):
    """Supervises a job whose workers all start at once, and which ends with the first failure."""

    _site: Site

    def __init__(self, job: Job, signals: Signals) -> None:
        super().__init__(job, signals)
        self._seen: dict[int, float] = {}  # when each rank was seen to have ended
        self._site = job.way.site(job, self._record, self._selector)

    def start(self) -> None:
        self._record.open()
        self._site.start()

    def watch(self) -> None:
        while self._site.running():
            now = time.monotonic()
            next_due = self._due[0] if self._due else now + 60.0
            self._selector.select(max(0.0, min(next_due - now, self._site.longest_wait_s())))
            self.note()
            for number in self._signals.take():
                self.on_signal(number)
            self.send_what_is_due()
        self.note()

    def note(self) -> None:
        for ending in self._site.step():
            self._endings.append(ending._replace(stopped=self._stopping))
            self._seen[ending.rank] = time.monotonic()
            if self._site.hub is not None and ending.rank >= 0:
                self._site.hub.worker_exited(ending.rank, ending.how)
            self._job.say(f"rank {ending.rank} ended: {ending.how} after {ending.seconds:.2f} s")
            if ending.failed and not self._due and not self._stopping:
                self.fail_soon(ending.returncode)

    def must_wait(self) -> bool:
        """Only ranks that lost a peer have failed so far: the peer is on its way out, and its exit code is wanted."""
        failed = [ending for ending in self._endings if ending.failed]
        recent = sum(self._seen[ending.rank] + _CULPRIT_S > time.monotonic() for ending in failed)
        return recent > 0 and all(failure.is_consequence(self._record.tails[ending.rank]) for ending in failed)

    def verdict(self) -> JobResult:
        return self.judge(self._endings)
