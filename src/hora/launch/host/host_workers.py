"""The workers of one host, as processes of this machine: starts, binds, watches and signals them, and leaves none
behind.

Used by the launcher for a job on its own host (``here``) and by the agent on every host of a larger one.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from hora.config import env
from hora.launch.host import guardian, local, placement
from hora.launch.host.ending import Ending, how_it_ended, out_of_memory_kills
from hora.launch.host.orders import Share, WorkerTask
from hora.transport.preload import preload

__all__ = ["Connect", "HostWorkers", "environment_of"]

_OF_AN_OUTER_JOB = ("HORA_WORKER", "HOROVOD_WORKER")

# Gives a worker its connection to the hub: descriptors to inherit (closed here afterwards), variables that name them.
Connect = Callable[[int, contextlib.ExitStack], tuple[Sequence[int], Mapping[str, str]]]


def environment_of(
    share: Share,
    task: WorkerTask,
    base: Mapping[str, str],
    connection: Mapping[str, str],
    threads: int | None,
    bind: bool,
) -> dict[str, str]:
    """The whole environment of one worker on this host."""
    wanted = env.find(base, "SHARED_GRADIENTS")
    allowed = sorted(os.sched_getaffinity(0))
    return {
        **{name: value for name, value in base.items() if name not in _OF_AN_OUTER_JOB},
        **(preload(base) if wanted is not False else {}),
        **placement.environment(task.local_rank, task.local_size, allowed, threads=threads, bind=bind, env=base),
        **task.environment,
        guardian.COOKIE: share.cookie,
        **connection,
        "PYTHONUNBUFFERED": "1",
    }


class HostWorkers:
    """The workers of one share. ``on_pipe(rank, stream, fd)`` takes over their pipes; ``on_end(rank, how)`` hears of an
    end before anything else is done about it."""

    def __init__(
        self,
        share: Share,
        selector: selectors.BaseSelector,
        on_pipe: Callable[[int, str, int], None],
        *,
        base: Mapping[str, str],
        threads: int | None = None,
        bind: bool = True,
        say: Callable[[str], None] = lambda line: None,
        on_end: Callable[[int, str], None] = lambda rank, how: None,
    ) -> None:
        self._share, self._selector, self._on_pipe = share, selector, on_pipe
        self._base, self._threads, self._bind, self._say, self._on_end = base, threads, bind, say, on_end
        self._oom_kills = out_of_memory_kills()
        self._guardian: local.Guardian | None = None
        self.processes: dict[int, local.Process] = {}

    def prepare(self) -> None:
        """Do what can be done before it is time to start."""
        if self._guardian is None:
            self._guardian = local.Guardian(self._share.cookie)
            self._watch(self._guardian.handle)

    def start(
        self, command: Sequence[str], connect: Connect, *, call: bytes | None = None, stdin: int = subprocess.DEVNULL
    ) -> None:
        """Start all of them. Raises EnvironmentUnfit; ``close`` then ends those that were started."""
        self.start_more(self._share.tasks, command, connect, call=call, stdin=stdin)

    def start_more(
        self,
        tasks: Sequence[WorkerTask],
        command: Sequence[str],
        connect: Connect,
        *,
        call: bytes | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Start these; an elastic job has more than its share began with."""
        self.prepare()
        with contextlib.ExitStack() as stack:
            call_fd = None
            if call is not None:
                call_fd = os.memfd_create("hora-call")
                stack.callback(os.close, call_fd)
                with open(call_fd, "wb", closefd=False) as file:
                    file.write(call)
            for task in tasks:
                self._start(task, command, connect, call_fd, stdin)

    def _start(
        self, task: WorkerTask, command: Sequence[str], connect: Connect, call_fd: int | None, stdin: int
    ) -> None:
        assert self._guardian is not None  # start() has made it
        with contextlib.ExitStack() as theirs:
            descriptors, connection = connect(task.rank, theirs)
            inherit, reader = list(descriptors), None
            if call_fd is not None:
                reader, writer = os.pipe()
                theirs.callback(os.close, writer)
                command, inherit = (*command, str(call_fd), str(writer)), [*inherit, call_fd, writer]
                self._on_pipe(task.rank, "answer", reader)
            environment = environment_of(self._share, task, self._base, connection, self._threads, self._bind)
            process = local.Process(command, environment, inherit=inherit, stdin=stdin)
        # From here, for whoever binds itself to start it would have to wait for those cores too.
        with contextlib.suppress(OSError):  # it has ended, or may not be bound
            if cpus := self._cpus(task, environment):
                os.sched_setaffinity(process.pid, cpus)
        self.processes[task.rank] = process
        self._guardian.watch(process.pid)
        self._watch(process.handle)
        for name, fd in zip(("stdout", "stderr"), process.take_pipes(), strict=True):
            self._on_pipe(task.rank, name, fd)

    def _cpus(self, task: WorkerTask, environment: Mapping[str, str]) -> tuple[int, ...]:
        """The cores for one worker; none: it is not bound."""
        if not self._bind:
            return ()
        threads = environment.get("OMP_NUM_THREADS", "")
        allowed = sorted(os.sched_getaffinity(0))
        return placement.cpus_for(
            task.local_rank, task.local_size, allowed, threads=int(threads) if threads.isdigit() else None
        )

    def running(self) -> dict[int, local.Process]:
        return {rank: process for rank, process in self.processes.items() if process.returncode is None}

    @property
    def woken(self) -> bool:
        """Whether the selector wakes at every death; without pidfds it does not."""
        return all(process.handle is not None for process in self.running().values())

    def reap(self) -> list[Ending]:
        """Those that have ended since this was asked last; and see that they are guarded."""
        endings = []
        for rank, process in self.running().items():
            returncode = process.poll(lambda code, rank=rank: self._on_end(rank, how_it_ended(code)))  # type: ignore[misc]
            if returncode is not None:
                self._unwatch(process.handle)
                process.close()
                if self._guardian is not None:
                    self._guardian.forget(process.pid)
                endings.append(self._ending(rank, process, returncode))
        self._keep_guarded()
        return endings

    def _ending(self, rank: int, process: local.Process, returncode: int) -> Ending:
        usage, oom_kills = process.usage, out_of_memory_kills()
        return Ending(
            rank=rank,
            host=self._share.host,
            pid=process.pid,
            returncode=returncode,
            seconds=process.ended - process.started,
            stopped=False,
            cpu_s=usage.ru_utime + usage.ru_stime if usage else 0.0,
            peak_bytes=usage.ru_maxrss * 1024 if usage else 0,
            oom_kills=None if oom_kills is None or self._oom_kills is None else oom_kills - self._oom_kills,
        )

    def send(self, number: int) -> None:
        for process in self.running().values():
            process.send(number)

    def send_to(self, rank: int, number: int) -> None:
        """Signal one worker, if it runs."""
        if (process := self.running().get(rank)) is not None:
            process.send(number)

    def stopped(self) -> list[int]:
        """Workers whose process is stopped at this moment (SIGSTOP, a debugger)."""
        return [rank for rank, process in self.running().items() if process.halted()]

    def end(self, *, gently: bool = False) -> list[Ending]:
        """Kill what is left, with all that workers have left behind; ``gently`` gives them a second to obey SIGTERM."""
        if not gently:
            self.send(signal.SIGKILL)
        groups = {process.pid for process in self.running().values()}
        if self.processes and (found := guardian.end_job(self._share.cookie, groups, grace_s=1.0)):
            self._say(f"ended {found} processes that workers had left behind")
        return self.reap()

    def close(self) -> None:
        """Nothing is left to guard."""
        if self._guardian is not None:
            self._unwatch(self._guardian.handle)
            self._guardian.done()
            self._guardian = None

    def _keep_guarded(self) -> None:
        guard = self._guardian
        if guard is not None and not guard.alive():
            self._unwatch(guard.handle)
            if guard.revive():
                self._watch(guard.handle)
                self._say("the guardian had died; another one has taken its place")

    def _watch(self, handle: int | None) -> None:
        if handle is not None:
            self._selector.register(handle, selectors.EVENT_READ)

    def _unwatch(self, handle: int | None) -> None:
        if handle is not None and handle in self._selector.get_map():
            self._selector.unregister(handle)
