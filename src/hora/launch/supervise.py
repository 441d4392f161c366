"""Running a planned job from first process to last, wherever its workers are: deaths, signals, and the verdict.

Promises: the first failure ends the job; its peers get a moment to say what they saw, then SIGTERM, then SIGKILL.
Signals to the launcher are passed on, a second one kills at once. Whatever happens, nothing of the job is left when
``supervise`` returns, nor soon after the launcher is killed (``guardian``). How workers are reached is their site's
business (``here``, ``remote``, ``mpi``).
"""

from __future__ import annotations

import os
import selectors
import signal
import time

from hora.config.limits import limits_named
from hora.config.settings import PREEMPTED_EXIT_CODE
from hora.errors import EnvironmentUnfit
from hora.launch import failure
from hora.launch.job import Job, Verdict
from hora.launch.record import Record
from hora.launch.signals import Signals

__all__ = ["supervise"]

_LAST_WORDS_S = 1.0  # for peers of a failed rank to notice and say so
_CULPRIT_S = 5.0  # for the rank whose end made the others fail to end itself
_TERM_S = 5.0  # from SIGTERM to SIGKILL after a failure
_GRACE_S = 30.0  # from a forwarded signal to SIGKILL: workers may be saving their state
_UNKILLABLE_S = 10.0  # a process stuck in the kernel is reported, not waited for


def supervise(job: Job) -> Verdict:
    """Run the job to its end. Raises EnvironmentUnfit if it could not be started; then nothing of it is left."""
    with Signals() as signals:
        supervisor = _Supervisor(job, signals)
        try:
            with limits_named("the job cannot be started"):
                supervisor.start()
            supervisor.watch()
        finally:
            supervisor.close()
    return supervisor.verdict()


class _Supervisor:
    """The state of one job. Used by one thread; only the console is written to in another."""

    def __init__(self, job: Job, signals: Signals) -> None:
        self._job, self._signals = job, signals
        self._endings: list[failure.Ending] = []
        self._seen: dict[int, float] = {}  # when each rank was seen to have ended
        self._record = Record(job, lambda: signals.put(signal.SIGPIPE))
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.fd, selectors.EVENT_READ)
        self._site = job.way.site(job, self._record, self._selector)
        self._due: tuple[float, signal.Signals] | None = None  # when to send what to those still alive
        self._stopping = False
        self._interrupted_by: signal.Signals | None = None

    def start(self) -> None:
        self._record.open()
        self._site.start()

    # ---- watch ----

    def watch(self) -> None:
        """Until every worker has ended."""
        while self._site.running():
            now = time.monotonic()
            next_due = self._due[0] if self._due else now + 60.0
            self._selector.select(max(0.0, min(next_due - now, self._site.patience_s())))
            self._note()
            for number in self._signals.take():
                self._on_signal(number)
            self._send_what_is_due()
        self._note()

    def _note(self) -> None:
        for ending in self._site.step():
            self._endings.append(ending._replace(stopped=self._stopping))
            self._seen[ending.rank] = time.monotonic()
            if self._site.hub is not None and ending.rank >= 0:
                self._site.hub.worker_exited(ending.rank, ending.how)
            self._job.say(f"rank {ending.rank} ended: {ending.how} after {ending.seconds:.2f} s")
            if ending.failed and not self._due and not self._stopping:
                leaving = ending.returncode == PREEMPTED_EXIT_CODE  # then the others are saving their state too
                self._due = time.monotonic() + (_GRACE_S if leaving else _LAST_WORDS_S), signal.SIGTERM

    def _on_signal(self, number: signal.Signals) -> None:
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

    def _send_what_is_due(self) -> None:
        now = time.monotonic()
        if self._due is None or self._due[0] > now:
            return
        number = self._due[1]
        self._due = None
        if number == signal.SIGTERM and not self._stopping and self._culprit_is_still_ending():
            self._due = now + 0.1, number
            return
        self._stopping = True
        self._site.send(number)
        if number == signal.SIGTERM:
            self._site.send(signal.SIGCONT)  # a stopped worker would not notice
            self._due = now + _TERM_S, signal.SIGKILL
        else:
            self._await_the_killed()

    def _culprit_is_still_ending(self) -> bool:
        """Only ranks that lost a peer have failed so far: the peer is on its way out, and its exit code is wanted."""
        failed = [ending for ending in self._endings if ending.failed]
        recent = sum(self._seen[ending.rank] + _CULPRIT_S > time.monotonic() for ending in failed)
        return recent > 0 and all(failure.is_consequence(self._record.tails[ending.rank]) for ending in failed)

    def _await_the_killed(self) -> None:
        deadline = time.monotonic() + _UNKILLABLE_S
        while self._site.running() and time.monotonic() < deadline:
            self._selector.select(0.02)
            self._note()
        if left := self._site.running():
            raise EnvironmentUnfit(
                f"{', '.join(left.values())} did not end {_UNKILLABLE_S:.0f} s after SIGKILL: stuck in the kernel, "
                "usually on a dead file system or device. Look at its state with 'ps', and at the kernel's log."
            )

    # ---- end ----

    def close(self) -> None:
        """End what is left, write what is left, free everything."""
        try:
            self._site.close()
        finally:
            self._record.close()
            self._selector.close()

    def verdict(self) -> Verdict:
        tails = self._record.tails
        first = failure.first_failure(self._endings, tails)
        code = failure.exit_code(first.returncode) if first else 0
        if self._interrupted_by == signal.SIGPIPE:
            code = 128 + signal.SIGPIPE
        words = self._record.last_words()
        return Verdict(code, first, tuple(self._endings), tails, self._interrupted_by, words)
