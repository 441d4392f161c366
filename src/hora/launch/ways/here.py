"""Workers on this host: inherited connections, no port; a single worker also gets the terminal."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hora.config import env
from hora.launch import failure
from hora.launch.host.host_workers import HostWorkers, environment_of
from hora.launch.host.orders import Share
from hora.launch.job import Job
from hora.launch.job_output import JobOutput
from hora.launch.planning.plan import shares

if TYPE_CHECKING:
    from hora.engine.hub import Hub
    from hora.launch.site import ElasticSite

__all__ = ["LocalLaunch"]


class LocalLaunch:
    """The way to start workers on this host."""

    name = "local"

    def site(self, job: Job, record: JobOutput, selector: selectors.BaseSelector) -> _Site:
        return _Site(job, record, selector)

    def elastic_site(self, job: Job, record: JobOutput, selector: selectors.BaseSelector) -> ElasticSite:
        from hora.launch.ways.elastic_here import ElasticLocalSite as ElasticHere

        return ElasticHere(job, job.plan.hosts[0].name, record, selector)

    def preview(self, job: Job) -> list[str]:
        share, before = _share(job), env.environ()
        lines = []
        for task in share.tasks:
            environment = environment_of(
                share, task, job.environment, {"HORA_HUB_FD": "<inherited>"}, job.threads_per_worker, job.bind
            )
            new = {name: value for name, value in environment.items() if before.get(name) != value}
            shown = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(new.items()))
            lines.append(f"rank {task.rank} on {share.host}: {shown} {shlex.join(job.command)}")
        return lines


def _share(job: Job) -> Share:
    (share,) = shares(job.plan, job.name)
    return Share(share.host, job.name, share.tasks)


class _Site:
    def __init__(self, job: Job, record: JobOutput, selector: selectors.BaseSelector) -> None:
        self._job = job
        self.hub: Hub | None = None
        self._sockets: dict[int, socket.socket] = {}  # our ends of the workers' connections, until the hub has them
        self._has_terminal = False
        self._host_workers = HostWorkers(
            _share(job),
            selector,
            record.take_pipe,
            base=job.environment,
            threads=job.threads_per_worker,
            bind=job.bind,
            say=job.say,
            on_end=self._tell_hub,
        )

    def start(self) -> None:
        stdin = 0 if self._job.forward_stdin else subprocess.DEVNULL
        self._host_workers.start(self._job.command, self._connect, call=self._job.call, stdin=stdin)
        if self._job.forward_stdin:
            self._has_terminal = self._host_workers.processes[0].take_terminal()
        pids = ", ".join(str(process.pid) for process in self._host_workers.processes.values())
        self._job.say(f"started {len(self._host_workers.processes)} workers: pid {pids}")
        self._open_hub()

    def _connect(self, rank: int, theirs: contextlib.ExitStack) -> tuple[Sequence[int], Mapping[str, str]]:
        self._sockets[rank], their_end = socket.socketpair()
        theirs.enter_context(their_end)
        return [their_end.fileno()], {"HORA_HUB_FD": str(their_end.fileno())}

    def _open_hub(self) -> None:
        from hora.engine.hub import Hub  # imported while the workers start up: it costs them nothing

        self.hub = Hub(len(self._sockets), host=self._job.plan.workers[0].host)
        for rank in list(self._sockets):
            self.hub.add_worker(rank, self._sockets.pop(rank))

    def _tell_hub(self, rank: int, how: str) -> None:
        if self.hub is not None:
            self.hub.worker_exited(rank, how)

    def step(self) -> list[failure.Ending]:
        endings = self._host_workers.reap()
        self._follow_a_stop()
        return endings

    def running(self) -> Mapping[int, str]:
        return {rank: f"pid {process.pid}" for rank, process in self._host_workers.running().items()}

    def send(self, number: signal.Signals) -> None:
        self._host_workers.send(number)

    def longest_wait_s(self) -> float:
        # Nothing wakes us at a stop, nor, without pidfds, at a death: then look often.
        return 60.0 if self._host_workers.woken and not self._has_terminal else 0.1

    def close(self) -> None:
        self._host_workers.end()
        if self._has_terminal:
            self._host_workers.processes[0].return_terminal()
        for unused in self._sockets.values():
            unused.close()
        if self.hub is not None:
            self.hub.close()
        self._host_workers.close()

    def _follow_a_stop(self) -> None:
        """Ctrl-Z stopped the worker that has the terminal: stop too, so that the shell gets it back."""
        if self._has_terminal and self._host_workers.processes[0].stopped():
            self._host_workers.processes[0].return_terminal()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._host_workers.processes[0].take_terminal()
