"""Workers on several hosts, from the launcher's side: every host's agent is listened to, and told what to do.

Starting has stages, each with a line: agents are started, every host connects, workers start, all are in ``init``. What
goes wrong on the way is one error that names the host. Afterwards a host that is silent, or whose connection drops, is
lost: its ranks count as ended, and the job ends like after any other failure.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hora.config import env
from hora.errors import EnvironmentUnfit
from hora.launch import failure
from hora.launch.host import orders as o
from hora.launch.host.agent import BEAT_S
from hora.launch.job import Job
from hora.launch.job_output import JobOutput
from hora.launch.planning.plan import shares
from hora.launch.starters.starter import AgentCarrier, Starter
from hora.launch.ways.agent_connections import AgentConnection, Wake
from hora.launch.ways.reception import Reception
from hora.launch.ways.stages import StartStages
from hora.wire.frame import WireError

if TYPE_CHECKING:
    from hora.engine.hub import Hub

__all__ = ["RemoteSite"]

_LOST_CODE = 3  # a lost host is an environment that was not up to it
_LEAVE_S = 10.0  # for agents to end what is left, without a word meanwhile
_HUB_S = 0.2  # after the workers have started, to make the hub even if none has called init yet
_ALL_FAILURES_S = 0.3  # for other hosts to fail of the same cause, so that one error names them all


class RemoteSite:
    """One job's agents, from the moment that they are on their way (``carriers``)."""

    def __init__(
        self,
        job: Job,
        starter: Starter,
        carriers: Sequence[AgentCarrier],
        interfaces: Sequence[str],
        record: JobOutput,
        selector: selectors.BaseSelector,
    ) -> None:
        self._job, self._starter, self._record, self._selector = job, starter, record, selector
        self._settings = env.settings(job.environment)
        self._shares = shares(job.plan, job.name)
        self._stages = StartStages(job.say, job.announce)
        self._wake = Wake(selector)  # for the pump's thread to say that output has been written
        self._links = {share.host: AgentConnection(share, self._wake.wake) for share in self._shares}
        self._carriers, self._interfaces = carriers, interfaces
        self._open = contextlib.ExitStack()
        self._open.callback(self._wake.close)
        self._reception: Reception | None = None
        self._deadline_s = self._settings.start_timeout_s + len(self._shares)
        self._began = time.monotonic()
        self._started_at: float | None = None  # when the last worker was started
        self._in_init = False
        self._next_beat = 0.0
        self._failing_since: float | None = None
        self._pending: list[failure.Ending] = []
        self._ended: dict[int, str] = {}
        self.hub: Hub | None = None

    # ---- start ----

    def start(self) -> None:
        hosts = [share.host for share in self._shares]
        self._stages.tell(f"starting agents on {', '.join(hosts)} by {self._starter.name}")
        for carrier in self._carriers:
            if carrier.handle is not None:
                self._selector.register(carrier.handle, selectors.EVENT_READ)
        self._reception = Reception(
            self._job, self._starter, self._interfaces, self._selector, self._open, room=2 * len(hosts) + 16
        )
        for listener in self._reception.hub_listeners:
            self._selector.register(listener, selectors.EVENT_READ)
        for carrier in self._carriers:
            carried = [share for share in self._shares if share.host in carrier.hosts]
            carrier.feed(self._reception.order(carried, self._deadline_s))

    def _let_in(self) -> None:
        """An agent that has said which host it is on takes that host's place; the last of them starts the workers."""
        assert self._reception is not None
        for host, newcomer in self._reception.agent_listener.newcomers():
            link = self._links.get(host)
            if link is None or not link.take(newcomer):
                self._reception.agent_listener.turn_away(newcomer)
                continue
            waiting = [name for name, other in self._links.items() if not other.connected]
            rest = f"; waiting for {', '.join(waiting)}" if waiting else ""
            self._stages.tell(f"{host} connected from {link.address} after {self._elapsed_s():.1f} s{rest}")
            if not waiting:
                for other in self._links.values():
                    other.send(o.StartWorkers())

    def _open_hub(self) -> None:
        """Made when the first worker knocks, or soon: a program that never calls init needs none."""
        from hora.engine.hub import Hub

        assert self._reception is not None
        self.hub = Hub(self._job.plan.size, host=self._job.plan.workers[0].host, secret=self._reception.secret)
        for listener in self._reception.hub_listeners:
            self._selector.unregister(listener)
            self.hub.open_tcp(listener.dup())
        for rank, how in self._ended.items():
            self.hub.worker_exited(rank, how)

    # ---- watch ----

    def step(self) -> list[failure.Ending]:
        now = time.monotonic()
        self._wake.clear()
        if self._started_at is None:
            self._let_in()
        self._beat(now)
        for link in self._links.values():
            self._serve(link, now)
        if self._started_at is None:
            self._check_the_start(now)
        elif self.hub is None:
            assert self._reception is not None
            if now - self._started_at > _HUB_S or select.select(self._reception.hub_listeners, [], [], 0)[0]:
                self._open_hub()
        elif not self._in_init and not self.hub.drain(0):
            self._in_init = True
            self._stages.tell(f"all {self._job.plan.size} workers are in init after {self._elapsed_s():.1f} s")
        self._stages.step()
        endings, self._pending = self._pending, []
        self._ended.update((ending.rank, ending.how) for ending in endings)
        return endings

    def _beat(self, now: float) -> None:
        if now >= self._next_beat:
            for link in self._links.values():
                link.send(o.Heartbeat())
            self._next_beat = now + BEAT_S

    def _serve(self, link: AgentConnection, now: float) -> None:
        if not link.connected:
            return
        try:
            for message in link.receive():
                self._heard(link, message)
            link.give_credit()
            silent_s = now - link.heard
            if silent_s > self._settings.host_timeout_s:
                why = f"{link.share.host} has not answered for {silent_s:.0f} s ({link.address}): the host is down, or "
                self._lose(link, why + "the link to it is")
        except WireError:
            self._lose(link)

    def _heard(self, link: AgentConnection, message: o.FromAgent) -> None:
        host = link.share.host
        if isinstance(message, o.Output):
            link.output(self._record, message)
        elif isinstance(message, o.WorkerEnded):
            link.running.pop(message.ending.rank, None)
            self._pending.append(message.ending)
        elif isinstance(message, o.Started):
            link.started(message.pids)
            self._stages.tell(f"{host} started {len(message.pids)} workers: pid {', '.join(map(str, message.pids))}")
            if all(other.has_started for other in self._links.values()):
                self._started_at = time.monotonic()
                self._stages.settle()
        elif isinstance(message, o.HostRefused):
            raise EnvironmentUnfit(f"{host}: {message.text}")
        elif isinstance(message, o.HostDone):
            link.done = True

    def _lose(self, link: AgentConnection, why: str = "") -> None:
        """Its agent has ended, as it should; or else this host does not count any more, and its workers end by
        themselves or with their guardian. Without a reason, the connection broke."""
        host = link.share.host
        self._selector.unregister(link.endpoint)
        link.hang_up()
        if link.done:
            return
        if not why:
            why = f"the connection to the agent on {host} ({link.address}) broke: it was killed, or the host went down"
            why += _words(self._said(host))
        if self._started_at is None:
            raise EnvironmentUnfit(f"{host}: {why}. The job was not started.")
        for rank in link.running:
            self._pending.append(
                failure.Ending(rank, host, link.pid_of(rank), _LOST_CODE, self._elapsed_s(), False, 0.0, 0, lost=why)
            )
        link.running.clear()

    def _check_the_start(self, now: float) -> None:
        """Raise what keeps hosts from connecting, all of it at once."""
        failed = {}
        for carrier in self._carriers:
            code = carrier.poll()
            missing = [host for host in carrier.hosts if not self._links[host].connected]
            if code is not None and missing:
                failed[missing[0]] = self._starter.explain(", ".join(missing), code, carrier.said())
        if failed:
            self._failing_since = self._failing_since or now
        late = now - self._began > self._deadline_s
        if failed and (late or now - (self._failing_since or now) > _ALL_FAILURES_S or self._all_settled()):
            raise EnvironmentUnfit("\n".join(failed.values()))
        if late:
            missing = [host for host, link in self._links.items() if not link.connected]
            if missing:
                raise EnvironmentUnfit(
                    f"{', '.join(missing)} did not connect within {self._deadline_s:.0f} s"
                    f"{_words(self._said(missing[0]))}. The job was not started. Look whether an agent can be started "
                    "there by hand, or give it more time with --start-timeout."
                )

    def _all_settled(self) -> bool:
        return all(
            carrier.poll() is not None or all(self._links[host].connected for host in carrier.hosts)
            for carrier in self._carriers
        )

    def _said(self, host: str) -> str:
        return next((carrier.said() for carrier in self._carriers if host in carrier.hosts), "")

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def running(self) -> Mapping[int, str]:
        return {rank: words for link in self._links.values() for rank, words in link.running.items()}

    def send(self, number: signal.Signals) -> None:
        if self._started_at is None and number not in (signal.SIGCONT, signal.SIGSTOP, signal.SIGUSR1, signal.SIGUSR2):
            self._cancel(number)
        for link in self._links.values():
            link.send(o.Signal(number))
            link.heard = time.monotonic()  # who is continued has not been listening

    def _cancel(self, number: signal.Signals) -> None:
        """There are no workers yet that could be told."""
        for link in self._links.values():
            for rank in link.running:
                host = link.share.host
                self._pending.append(failure.Ending(rank, host, 0, -number, self._elapsed_s(), False, 0.0, 0))
            link.running.clear()

    def longest_wait_s(self) -> float:
        return 0.05 if self._started_at is None else _HUB_S if self.hub is None else BEAT_S / 2

    # ---- end ----

    def close(self) -> None:
        try:
            self._dismiss()
        finally:
            for carrier in self._carriers:
                if all(self._links[host].done for host in carrier.hosts):
                    carrier.leave()
                else:
                    carrier.stop()
            for link in self._links.values():
                link.hang_up()
            if self.hub is not None:
                self.hub.close()
            self._open.close()

    def _dismiss(self) -> None:
        """Tell the agents to end what is left, take what they still have to say, and see them gone."""
        for link in self._links.values():
            link.send(o.EndJob())
        deadline = time.monotonic() + _LEAVE_S
        while here := [link for link in self._links.values() if link.connected]:
            now = time.monotonic()
            if now > deadline:
                return
            self._selector.select(0.05)
            self._wake.clear()
            for link in here:
                self._serve(link, now)
                if link.unwritten:  # however long that takes
                    deadline = now + _LEAVE_S
            self._beat(now)


def _words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"; it said: {lines[-1]}" if lines else ""
