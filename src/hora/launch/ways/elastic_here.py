"""Elastic workers on this host: inherited connections, no port."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
from collections.abc import Mapping, Sequence

from hora.engine.hub import Hub
from hora.launch import failure
from hora.launch.host.host_workers import HostWorkers
from hora.launch.host.orders import Share, WorkerTask
from hora.launch.job import Job
from hora.launch.job_output import JobOutput
from hora.launch.planning.plan import environment_of_worker

__all__ = ["ElasticLocalSite"]


class ElasticLocalSite:
    """See ``site.ElasticSite``."""

    def __init__(self, job: Job, host: str, record: JobOutput, selector: selectors.BaseSelector) -> None:
        self._job, self._host, self._record = job, host, record
        self.hub: Hub | None = None
        self.secret: bytes | None = None
        self._slots: dict[str, int] = {}
        self._host_workers = HostWorkers(
            Share(host, job.name, ()),
            selector,
            record.take_pipe,
            base=job.environment,
            threads=job.threads_per_worker,
            bind=job.bind,
            say=job.say,
        )

    def want(self, hosts: Mapping[str, int]) -> None:
        self._slots = {name: slots for name, slots in hosts.items() if name == self._host}

    def usable(self) -> Mapping[str, int]:
        return self._slots

    def start(self, worker: int, host: str, slot: int) -> None:
        local_size = max(self._slots.get(host, 1), 1)
        task = WorkerTask(worker, slot % local_size, local_size, environment_of_worker(worker, host))
        self._record.add_worker(worker)
        self._host_workers.start_more([task], self._job.command, self._connect, call=self._job.call)
        self._job.say(f"started worker {worker}: pid {self._host_workers.processes[worker].pid}")

    def _connect(self, worker: int, theirs: contextlib.ExitStack) -> tuple[Sequence[int], Mapping[str, str]]:
        assert self.hub is not None
        ours, their_end = socket.socketpair()
        theirs.enter_context(their_end)
        self.hub.add_worker(worker, ours)
        return [their_end.fileno()], {"HORA_HUB_FD": str(their_end.fileno())}

    def signal_one(self, worker: int, number: signal.Signals) -> None:
        self._host_workers.send_to(worker, number)

    def stopped(self) -> Sequence[int]:
        return self._host_workers.stopped()

    def step(self) -> list[failure.Ending]:
        return self._host_workers.reap()

    def complaint(self) -> str:
        return ""

    def hopeless(self) -> str:
        return ""

    def running(self) -> Mapping[int, str]:
        return {worker: f"pid {process.pid}" for worker, process in self._host_workers.running().items()}

    def send(self, number: signal.Signals) -> None:
        self._host_workers.send(number)

    def longest_wait_s(self) -> float:
        return 1.0 if self._host_workers.woken else 0.05

    def close(self) -> None:
        self._host_workers.end()
        self._host_workers.close()
