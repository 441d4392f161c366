"""Elastic workers on several hosts: an agent on each host there is, sent for when the host appears.

A host that cannot be reached, has no Hora, falls silent or loses its connection is told of in a sentence, and tried
again later, longer each time. Its workers count as lost at that moment; should it still live, its agent ends them,
because it has lost its launcher. So a cut network never leaves two halves that both continue.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import threading
import time
from collections.abc import Mapping, Sequence

from hora.config import env
from hora.engine.hub import Hub
from hora.errors import EnvironmentUnfit
from hora.launch import failure
from hora.launch.host import orders as o
from hora.launch.host.agent import BEAT_S
from hora.launch.job import Job
from hora.launch.job_output import JobOutput
from hora.launch.planning.plan import environment_of_worker
from hora.launch.starters.starter import AgentCarrier, Starter
from hora.launch.ways.agent_connections import AgentConnection, Wake
from hora.launch.ways.reception import Reception
from hora.wire.frame import WireError

__all__ = ["ElasticRemoteSite"]

_LOST_CODE = 3
_LEAVE_S = 10.0
_AGAIN_S = 2.0  # until a host that failed is tried again, at first
_MOST_AGAIN_S = 60.0
_ROOM = 272  # connections that may wait to say which host they are


class _Place:
    """One host: on its way, connected, or failed and resting."""

    def __init__(self) -> None:
        self.carrier: AgentCarrier | None = None
        self.link: AgentConnection | None = None
        self.since = 0.0  # when its agent was sent for
        self.failures = 0
        self.again_at = 0.0
        self.why = ""  # it failed last

    @property
    def connected(self) -> bool:
        return self.link is not None and self.link.connected


class ElasticRemoteSite:
    """See ``site.ElasticSite``."""

    def __init__(
        self, job: Job, starter: Starter, interfaces: Sequence[str], record: JobOutput, selector: selectors.BaseSelector
    ) -> None:
        self._job, self._starter, self._record, self._selector = job, starter, record, selector
        self._settings = env.settings(job.environment)
        self._open = contextlib.ExitStack()
        self._wake = Wake(selector)
        self._open.callback(self._wake.close)
        self._reception = Reception(job, starter, interfaces, selector, self._open, room=_ROOM)
        self.secret: bytes | None = self._reception.secret
        self._hub: Hub | None = None
        self._wanted: dict[str, int] = {}
        self._places: dict[str, _Place] = {}
        self._started = 0  # cookies that were given out
        self._began = time.monotonic()
        self._next_beat = 0.0
        self._pending: list[failure.Ending] = []
        self._halted: dict[str, tuple[int, ...]] = {}
        self._complaints: list[str] = []
        self._closing = False

    @property
    def hub(self) -> Hub | None:
        return self._hub

    @hub.setter
    def hub(self, hub: Hub | None) -> None:
        self._hub = hub
        if hub is not None:
            for listener in self._reception.hub_listeners:
                hub.open_tcp(listener.dup())

    # ---- hosts ----

    def want(self, hosts: Mapping[str, int]) -> None:
        self._wanted = dict(hosts)
        now = time.monotonic()
        for host in hosts:
            place = self._places.setdefault(host, _Place())
            if place.link is None and now >= place.again_at and not self._closing:
                self._send_for(host, place, now)
        for host, place in self._places.items():
            if host not in hosts and place.link is not None and not place.link.running:
                self._dismiss(place)

    def usable(self) -> Mapping[str, int]:
        return {host: slots for host, slots in self._wanted.items() if self._places[host].connected}

    def _send_for(self, host: str, place: _Place, now: float) -> None:
        self._job.say(f"starting an agent on {host} by {self._starter.name}")
        share = o.Share(host, f"{self._job.name}.{self._started}", ())
        self._started += 1
        try:
            (place.carrier,) = self._starter.start([host])
        except EnvironmentUnfit as error:
            self._failed(host, place, str(error))
            return
        if place.carrier.handle is not None:
            self._selector.register(place.carrier.handle, selectors.EVENT_READ)
        place.link, place.since = AgentConnection(share, self._wake.wake), now
        place.carrier.feed(self._reception.order([share], self._settings.start_timeout_s))

    def _failed(self, host: str, place: _Place, why: str) -> None:
        """Let go of a host, and try it again later."""
        if place.link is not None:
            place.link.hang_up()
        if place.carrier is not None:
            self._unwatch(place.carrier)
            self._stop_meanwhile(place.carrier)
        place.link = place.carrier = None
        self._halted.pop(host, None)
        place.failures += 1
        place.again_at = time.monotonic() + min(_AGAIN_S * 2 ** (place.failures - 1), _MOST_AGAIN_S)
        if why != place.why:
            place.why = why
            self._complaints.append(why)

    def _stop_meanwhile(self, carrier: AgentCarrier) -> None:
        """What carried a lost host may take a while to end (an srun waits for Slurm), and the job continues at once."""
        thread = threading.Thread(target=carrier.stop, name="hora-stop")
        thread.start()
        self._open.callback(thread.join)

    def _unwatch(self, carrier: AgentCarrier) -> None:
        if carrier.handle is not None and carrier.handle in self._selector.get_map():
            self._selector.unregister(carrier.handle)

    def complaint(self) -> str:
        text, self._complaints = "\n".join(self._complaints), []
        return text

    def hopeless(self) -> str:
        """Every host has failed before any worker could be started."""
        places = [self._places[host] for host in self._wanted if host in self._places]
        if not places or any(place.link is not None or not place.why for place in places):
            return ""
        return "\n".join(place.why for place in places) + "\nThe job was not started."

    # ---- workers ----

    def start(self, worker: int, host: str, slot: int) -> None:
        place = self._places.get(host)
        self._record.add_worker(worker)
        if place is None or place.link is None or not place.connected:
            self._lose_worker(worker, host, 0, f"host {host} was lost before it could start")
            return
        local_size = max(self._wanted.get(host, 1), 1)
        place.link.running[worker] = f"worker {worker} on {host}"
        place.link.send(
            o.Launch(o.WorkerTask(worker, slot % local_size, local_size, environment_of_worker(worker, host)))
        )

    def signal_one(self, worker: int, number: signal.Signals) -> None:
        for place in self._places.values():
            if place.link is not None and worker in place.link.running:
                place.link.send(o.SignalOne(worker, number))

    def stopped(self) -> Sequence[int]:
        return [worker for halted in self._halted.values() for worker in halted]

    def running(self) -> Mapping[int, str]:
        return {
            worker: words
            for place in self._places.values()
            if place.link is not None
            for worker, words in place.link.running.items()
        }

    def send(self, number: signal.Signals) -> None:
        for place in self._places.values():
            if place.link is not None:
                place.link.send(o.Signal(number))
                place.link.heard = time.monotonic()  # who is continued has not been listening

    def _lose_worker(self, worker: int, host: str, pid: int, why: str) -> None:
        seconds = time.monotonic() - self._began
        self._pending.append(failure.Ending(worker, host, pid, _LOST_CODE, seconds, False, 0.0, 0, lost=why))

    # ---- watch ----

    def step(self) -> list[failure.Ending]:
        now = time.monotonic()
        self._wake.clear()
        for host, newcomer in self._reception.agent_listener.newcomers():
            link = place.link if (place := self._places.get(host)) is not None else None
            if link is None or not link.take(newcomer):
                self._reception.agent_listener.turn_away(newcomer)
            else:
                self._job.say(f"{host} connected from {link.address}")
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            for place in self._places.values():
                if place.link is not None:
                    place.link.send(o.Heartbeat())
        for host, place in self._places.items():
            self._serve(host, place, now)
        endings, self._pending = self._pending, []
        return endings

    def _serve(self, host: str, place: _Place, now: float) -> None:
        link, carrier = place.link, place.carrier
        if link is None or carrier is None:
            return
        if not link.connected:
            if (code := carrier.poll()) is not None:
                self._failed(host, place, self._starter.explain(host, code, carrier.said()))
            elif now - place.since > self._settings.start_timeout_s:
                self._failed(host, place, f"{host} did not connect within {self._settings.start_timeout_s:.0f} s")
            return
        try:
            for message in link.receive():
                self._heard(host, link, message)
            link.give_credit()
            silent_s = now - link.heard
            if silent_s > self._settings.host_timeout_s:
                self._lose(host, place, f"{host} has not answered for {silent_s:.1f} s ({link.address})")
        except WireError:
            self._lose(host, place, f"the connection to the agent on {host} ({link.address}) broke")

    def _heard(self, host: str, link: AgentConnection, message: o.FromAgent) -> None:
        if isinstance(message, o.Output):
            link.output(self._record, message)
        elif isinstance(message, o.WorkerEnded):
            link.running.pop(message.ending.rank, None)
            self._pending.append(message.ending)
        elif isinstance(message, o.Launched):
            link.launched(message.rank, message.pid)
        elif isinstance(message, o.Halted):
            self._halted[host] = message.ranks
        elif isinstance(message, o.HostRefused):
            raise EnvironmentUnfit(f"{host}: {message.text}")
        elif isinstance(message, o.HostDone):
            link.done = True

    def _lose(self, host: str, place: _Place, why: str) -> None:
        link = place.link
        assert link is not None
        self._selector.unregister(link.endpoint)
        if link.done:
            self._dismissed(place)
            return
        for worker in link.running:
            self._lose_worker(worker, host, link.pid_of(worker), why)
        link.running.clear()
        self._failed(host, place, f"host {host} was lost: {why}")

    def longest_wait_s(self) -> float:
        on_the_way = any(place.link is not None and not place.connected for place in self._places.values())
        return 0.05 if on_the_way else BEAT_S / 2

    # ---- end ----

    def _dismiss(self, place: _Place) -> None:
        """This host is wanted no more: its agent ends, and then its carrier."""
        if place.connected and place.link is not None:
            place.link.send(o.EndJob())
        elif place.carrier is not None:
            self._unwatch(place.carrier)
            place.carrier.stop()
            place.link = place.carrier = None

    def _dismissed(self, place: _Place) -> None:
        if place.link is not None:
            place.link.hang_up()
        if place.carrier is not None:
            self._unwatch(place.carrier)
            place.carrier.leave()
        place.link = place.carrier = None

    def close(self) -> None:
        self._closing = True
        deadline = time.monotonic() + _LEAVE_S
        try:
            for place in self._places.values():
                self._dismiss(place)
            while any(place.connected for place in self._places.values()) and time.monotonic() < deadline:
                self._selector.select(0.05)
                self.step()
                if any(place.link.unwritten for place in self._places.values() if place.link is not None):
                    deadline = time.monotonic() + _LEAVE_S
        finally:
            for place in self._places.values():
                if place.carrier is not None:
                    self._unwatch(place.carrier)
                    place.carrier.stop()
                if place.link is not None:
                    place.link.hang_up()
            self._open.close()
