"""Running an elastic job from first process to last: workers are started, lost and replaced until one of them finishes.

What ends a worker decides what follows. A signal, or the loss of its host, is a fault: the job continues without it.
Exit code 0: the training is done. Any other exit code: the program failed, which another try would not mend; the job
ends as one that is not elastic does. Signals to the launcher are passed on, a second one kills at once. Whatever
happens, nothing of the job is left when ``supervise`` returns, nor soon after the launcher is killed.
"""

from __future__ import annotations

import random
import signal
import time
from typing import NamedTuple

from hora.config import env
from hora.elastic.gather import Gatherer, GenerationStart
from hora.elastic.membership import ElasticLimits, EndWorker, FailJob, Membership, StartWorker, TellUser
from hora.engine.hub import Hub
from hora.errors import EnvironmentUnfit
from hora.launch import failure
from hora.launch.elastic.hosts import HostDiscovery
from hora.launch.job import Job, JobResult
from hora.launch.signals import Signals
from hora.launch.site import ElasticSite
from hora.launch.supervise import TERM_S, Supervisor
from hora.launch.ways.agent_connections import Wake

__all__ = ["Elastic", "ElasticOutcome", "supervise"]

_LOOK_S = 0.25  # between two looks for workers that are stopped
_GAP_S = 1.0  # we did not look for so long: we were stopped ourselves, and what we saw before says nothing


class Elastic(NamedTuple):
    """What makes a job elastic."""

    limits: ElasticLimits
    discovery: HostDiscovery


class ElasticOutcome(NamedTuple):
    """How it went, and the generations it took."""

    verdict: JobResult
    generations: tuple[GenerationStart, ...]


def supervise(job: Job, elastic: Elastic) -> ElasticOutcome:
    """Run the job to its end. Raises EnvironmentUnfit if it could not be started or cannot continue; then nothing of
    it is left."""
    with Signals() as signals:
        supervisor = _Supervisor(job, elastic, signals)
        supervisor.run()
    return supervisor.outcome()


class _Supervisor(Supervisor):
    """The state of one elastic job. Used by one thread; the hub and the console have their own."""

    _site: ElasticSite

    def __init__(self, job: Job, elastic: Elastic, signals: Signals) -> None:
        super().__init__(job, signals)
        self._discovery, self._settings = elastic.discovery, env.settings(job.environment)
        self._wake = Wake(self._selector)
        self._open.callback(self._wake.close)
        limits = elastic.limits._replace(start_s=self._settings.start_timeout_s)  # --start-timeout is the job's
        self._gatherer = Gatherer(Membership(limits, random.random), self._wake.wake)
        self._hub: Hub | None = None
        self._site = job.way.elastic_site(job, self._record, self._selector)
        self._given: dict[str, int] | None = None  # the hosts that membership knows
        self._asked: dict[int, float] = {}  # workers that we have asked to end, and when to kill them
        self._halted: dict[int, float] = {}  # workers that are stopped, since when
        self._look_at = self._looked = 0.0
        self._lost_some = False  # since the last generation began
        self._done = False  # a worker has finished
        self._failed = ""  # why the job cannot continue
        self._told_generations = 0

    def start(self) -> None:
        self._open.callback(self._discovery.close)
        self._discovery.begin(self._wake.wake)
        self._record.open()
        self._hub = Hub(64, host=self._job.plan.hosts[0].name, secret=self._site.secret, gathering=self._gatherer)
        self._open.callback(self._hub.close)
        self._site.hub = self._hub
        self._look_for_hosts()

    # ---- watch ----

    def watch(self) -> None:
        """Until the last worker has ended, and no more are to come."""
        while self._site.running() or not (self._done or self._stopping):
            now = time.monotonic()
            waits = [self._site.longest_wait_s(), self._look_at - now, *(at - now for at in self._asked.values())]
            waits += [self._due[0] - now] if self._due else []
            self._selector.select(max(0.0, min(waits)))
            self._wake.clear()
            for number in self._signals.take():  # first: who ends at the same time ends because of it
                self.on_signal(number)
            self.note()
            self._look_for_hosts()
            self._look_for_the_stopped()
            self._obey()
            self.send_what_is_due()
        self.note()

    def note(self) -> None:
        """Take note of workers that ended or are stopped, and of new generations."""
        assert self._hub is not None
        for ending in self._site.step():
            asked = self._asked.pop(ending.rank, None) is not None
            fault = ending.returncode < 0 or bool(ending.lost)
            ending = ending._replace(stopped=self._stopping or asked)
            self._endings.append(ending)
            self._halted.pop(ending.rank, None)
            self._job.say(f"worker {ending.rank} ended: {ending.how} after {ending.seconds:.2f} s")
            self._gatherer.note_end(ending.rank, fault=fault)
            self._hub.worker_exited(ending.rank, ending.how)
            if asked or self._stopping:
                continue
            if fault:
                self._tell(f"worker {ending.rank} on {ending.host} was lost: {ending.how}")
                self._lost_some = True
            elif not ending.failed:
                self._done = True
            elif not self._due:
                self.fail_soon(ending.returncode)
                self._done = True  # nothing is started any more
        for event in self._gatherer.events[self._told_generations :]:
            self._told_generations += 1
            if event.generation > 1 and not self._stopping:
                members, before = ", ".join(map(str, event.members)), "the job continues with " * self._lost_some
                self._tell(f"{before}generation {event.generation}: workers {members}")
            self._lost_some = False

    def _tell(self, line: str) -> None:
        """Tell the user; with --verbose, announcements are left to ``say``."""
        self._job.announce(line)
        self._job.say(line)

    def _look_for_hosts(self) -> None:
        assert self._hub is not None
        for complaint in (self._discovery.complaint(), self._site.complaint()):
            if complaint:
                self._tell(complaint)
        if self._stopping or self._done:
            return
        self._site.want(self._discovery.found())
        usable = dict(self._site.usable())
        if usable != self._given:
            self._given = usable
            self._hub.call(lambda: self._gatherer.hosts(usable))
        if not self._endings and not self._site.running() and (why := self._site.hopeless()):
            raise EnvironmentUnfit(why)

    def _look_for_the_stopped(self) -> None:
        """A worker that was stopped (SIGSTOP, a debugger) holds up all others: after a while it is given up. The kernel
        says so, so this is surer, and sooner, than that a host is silent."""
        assert self._hub is not None
        now = time.monotonic()
        if now < self._look_at:
            return
        if now - self._looked > _GAP_S:
            self._halted.clear()
        self._looked, self._look_at = now, now + _LOOK_S
        halted = set(self._site.stopped())
        self._halted = {worker: self._halted.get(worker, now) for worker in halted}
        for worker, since in self._halted.items():
            if now - since >= self._settings.stopped_timeout_s and worker not in self._asked:
                why = f"its process has been stopped for {now - since:.1f} s"
                self._hub.call(lambda worker=worker, why=why: self._gatherer.silent(worker, why))  # type: ignore[misc]

    def _obey(self) -> None:
        """What membership wants done with processes."""
        for order in self._gatherer.take_orders():
            match order:
                case StartWorker(worker=worker, host=host, slot=slot):
                    if not (self._stopping or self._done):
                        self._site.start(worker, host, slot)
                case EndWorker(worker=worker, why=why, fault=fault):
                    self._job.say(f"ending worker {worker}: {why}")
                    if fault and not self._stopping:
                        self._tell(f"worker {worker} was given up: {why}")
                        self._lost_some = True
                    self._asked[worker] = time.monotonic() + (0.0 if fault else TERM_S)
                    self._site.signal_one(worker, signal.SIGKILL if fault else signal.SIGTERM)
                case FailJob(text=text):
                    if not (self._stopping or self._done):
                        self._failed = text
                        self.end_all(signal.SIGTERM)
                case TellUser(text=text):
                    if not (self._stopping or self._done):  # whom we end ourselves was not lost
                        self._tell(text)

    def on_signal(self, number: signal.Signals) -> None:
        super().on_signal(number)
        if number == signal.SIGTSTP:
            self._halted.clear()  # we stopped them ourselves
        elif self._interrupted_by not in (None, signal.SIGPIPE):
            self._stopping = True

    def send_what_is_due(self) -> None:
        now = time.monotonic()
        for worker in [worker for worker, at in self._asked.items() if at <= now]:
            self._site.signal_one(worker, signal.SIGKILL)
            self._asked[worker] = now + 1.0
        super().send_what_is_due()

    # ---- end ----

    def outcome(self) -> ElasticOutcome:
        if self._failed:
            raise EnvironmentUnfit(self._failed)
        tails = self._record.tails
        failed = [e for e in self._endings if e.returncode > 0 and not e.lost and not e.stopped]
        if all(failure.is_consequence(tails[e.rank]) for e in failed) and (
            failed or self._interrupted_by or all(e.failed for e in self._endings)
        ):
            failed = self._endings
        # Otherwise what was lost on the way is no failure of a job that finished.
        return ElasticOutcome(self.judge(failed), tuple(self._gatherer.events))
