"""Running a planned job on this host from first process to last: output, deaths, signals, and the verdict.

Promises: the first failure ends the job; its peers get a moment to say what they saw, then SIGTERM, then SIGKILL.
Signals to the launcher are passed on, a second one kills at once. Whatever happens, nothing of the job is left when
``supervise`` returns, nor soon after the launcher is killed (``guardian``).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

from hora.config import env
from hora.errors import EnvironmentUnfit
from hora.launch import failure, guardian, local, output
from hora.launch.plan import Plan, Worker
from hora.launch.signals import Signals
from hora.transport.preload import preload

if TYPE_CHECKING:
    from hora.engine.hub import Hub

__all__ = ["Job", "Verdict", "supervise", "worker_environment"]

_LAST_WORDS_S = 1.0  # for peers of a failed rank to notice and say so
_CULPRIT_S = 5.0  # for the rank whose end made the others fail to end itself
_TERM_S = 5.0  # from SIGTERM to SIGKILL after a failure
_GRACE_S = 30.0  # from a forwarded signal to SIGKILL: workers may be saving their state
_UNKILLABLE_S = 10.0  # a process stuck in the kernel is reported, not waited for


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    ``environment`` is the workers', without their places. ``inherit`` are further descriptors that every worker gets.
    With ``on_answer(rank, data)`` each worker also gets a pipe to answer on; its number is the last argument of its
    command.
    """

    plan: Plan
    command: tuple[str, ...]
    environment: Mapping[str, str]
    console: output.Console
    prefix: bool = True
    timestamp: bool = False
    output_directory: Path | None = None
    forward_stdin: bool = False
    inherit: tuple[int, ...] = ()
    on_answer: Callable[[int, bytes], None] | None = None
    say: Callable[[str], None] = lambda line: None
    name: str = msgspec.field(default_factory=lambda: os.urandom(8).hex())


class Verdict(NamedTuple):
    """How it went: the exit code to pass on, the first failure if any, every worker's end in the order seen."""

    exit_code: int
    first: failure.Ending | None
    endings: tuple[failure.Ending, ...]
    tails: Mapping[int, output.Tail]
    interrupted_by: signal.Signals | None
    oom_kills: int | None


def worker_environment(job: Job, worker: Worker, hub_fd: int | str) -> dict[str, str]:
    """The whole environment of one worker."""
    wanted = env.find(job.environment, "SHARED_GRADIENTS")
    return {
        **job.environment,
        **(preload(job.environment) if wanted is not False else {}),
        **job.plan.environment(worker),
        guardian.COOKIE: job.name,
        "HORA_HUB_FD": str(hub_fd),
        "PYTHONUNBUFFERED": "1",
    }


def supervise(job: Job) -> Verdict:
    """Run the job to its end. Raises EnvironmentUnfit if it could not be started; then nothing of it is left."""
    oom_before = failure.out_of_memory_kills()
    with Signals() as signals:
        supervisor = _Supervisor(job, signals)
        try:
            supervisor.start()
            supervisor.watch()
        finally:
            supervisor.close()
    oom_now = failure.out_of_memory_kills()
    oom_kills = None if oom_before is None or oom_now is None else oom_now - oom_before
    return supervisor.verdict(oom_kills)


class _Supervisor:
    """The state of one job. Used by one thread; only the output is read in another."""

    def __init__(self, job: Job, signals: Signals) -> None:
        self._job, self._signals = job, signals
        self._processes: dict[int, local.Process] = {}
        self._sockets: dict[int, socket.socket] = {}  # our ends of the workers' connections, until the hub has them
        self._endings: list[failure.Ending] = []
        self._tails = {worker.rank: output.Tail() for worker in job.plan.workers}
        self._pump = output.Pump(lambda: signals.put(signal.SIGPIPE))
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.fd, selectors.EVENT_READ)
        self._guardian: local.Guardian | None = None
        self._hub: Hub | None = None
        self._due: tuple[float, signal.Signals] | None = None  # when to send what to those still alive
        self._stopping = False
        self._interrupted_by: signal.Signals | None = None
        self._has_terminal = False

    # ---- start ----

    def start(self) -> None:
        files = self._open_files()
        self._guardian = local.Guardian(self._job.name)
        self._watch(self._guardian.handle)
        for worker in self._job.plan.workers:
            self._start_worker(worker, files)
        self._pump.start()
        pids = ", ".join(str(process.pid) for process in self._processes.values())
        self._job.say(f"started {len(self._processes)} workers: pid {pids}")
        # Imported while the workers start up: it costs them nothing.
        from hora.engine.hub import Hub

        self._hub = Hub(len(self._sockets), host=self._job.plan.workers[0].host)
        for rank in list(self._sockets):
            self._hub.add_worker(rank, self._sockets.pop(rank))

    def _start_worker(self, worker: Worker, files: Mapping[tuple[int, str], BinaryIO]) -> None:
        assert self._guardian is not None  # start() has made it
        rank, on_answer = worker.rank, self._job.on_answer
        with contextlib.ExitStack() as theirs:
            self._sockets[rank], hub_end = socket.socketpair()
            theirs.enter_context(hub_end)
            command, inherit = self._job.command, [hub_end.fileno(), *self._job.inherit]
            if on_answer is not None:
                reader, writer = os.pipe()
                theirs.callback(os.close, writer)
                self._pump.add(reader, partial(on_answer, rank))
                command, inherit = (*command, str(writer)), [*inherit, writer]
            process = local.Process(
                command,
                worker_environment(self._job, worker, hub_end.fileno()),
                inherit=inherit,
                stdin=0 if self._job.forward_stdin else subprocess.DEVNULL,
            )
        self._processes[rank] = process
        self._guardian.watch(process.pid)
        self._watch(process.handle)
        for fd, name in zip(process.take_pipes(), ("stdout", "stderr"), strict=True):
            stream = output.WorkerStream(
                name,
                rank,
                getattr(self._job.console, name),
                self._tails[rank],
                prefix=self._job.prefix,
                timestamp=self._job.timestamp,
                file=files.get((rank, name)),
            )
            self._pump.add(fd, stream.take, stream.close)
        if self._job.forward_stdin:
            self._has_terminal = process.take_terminal()

    def _open_files(self) -> dict[tuple[int, str], BinaryIO]:
        directory = self._job.output_directory
        if directory is None:
            return {}
        files: dict[tuple[int, str], BinaryIO] = {}
        try:
            for worker in self._job.plan.workers:
                folder = output.rank_directory(directory, worker.rank, self._job.plan.size)
                folder.mkdir(parents=True, exist_ok=True)
                for name in ("stdout", "stderr"):
                    files[worker.rank, name] = open(folder / name, "wb", buffering=0)  # noqa: SIM115
        except OSError as error:
            for file in files.values():
                file.close()
            raise EnvironmentUnfit(
                f"{error.filename!r} cannot be written: {error.strerror}. Nothing was started, because the output "
                "would be lost. Give --output-filename a directory that can be written."
            ) from error
        return files

    # ---- watch ----

    def watch(self) -> None:
        """Until every worker has ended."""
        while self._alive():
            now = time.monotonic()
            next_due = self._due[0] if self._due else now + 60.0
            # Nothing wakes us at a stop, nor, without pidfds, at a death: then look often.
            woken = not self._has_terminal and all(p.handle is not None for p in self._alive().values())
            self._selector.select(max(0.0, min(next_due - now, 60.0 if woken else 0.1)))
            self._reap()
            self._follow_a_stop()
            for number in self._signals.take():
                self._on_signal(number)
            self._send_what_is_due()
            self._keep_guarded()

    def _alive(self) -> dict[int, local.Process]:
        return {rank: process for rank, process in self._processes.items() if process.returncode is None}

    def _reap(self) -> None:
        for rank, process in self._alive().items():
            returncode = process.poll()
            if returncode is not None:
                self._unwatch(process.handle)
                process.close()
                if self._guardian is not None:
                    self._guardian.forget(process.pid)
                self._ended(rank, process, returncode)

    def _ended(self, rank: int, process: local.Process, returncode: int) -> None:
        usage = process.usage
        ending = failure.Ending(
            rank=rank,
            host=self._job.plan.workers[rank].host,
            pid=process.pid,
            returncode=returncode,
            seconds=process.ended - process.started,
            stopped=self._stopping,
            cpu_s=usage.ru_utime + usage.ru_stime if usage else 0.0,
            peak_bytes=usage.ru_maxrss * 1024 if usage else 0,
        )
        self._endings.append(ending)
        if self._hub is not None:
            self._hub.worker_exited(rank, failure.how_it_ended(returncode))
        self._job.say(f"rank {rank} ended: {failure.how_it_ended(returncode)} after {ending.seconds:.2f} s")
        if ending.failed and not self._due and not self._stopping:
            self._due = time.monotonic() + _LAST_WORDS_S, signal.SIGTERM

    def _on_signal(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if number == signal.SIGTSTP:
            self._send(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._send(signal.SIGCONT)  # reached when the shell continues us
        elif number in (signal.SIGUSR1, signal.SIGUSR2):
            self._send(number)
        elif self._interrupted_by is not None:
            self._due = now, signal.SIGKILL
        elif number == signal.SIGPIPE:  # nobody reads our output any more
            self._interrupted_by = number
            self._due = now, signal.SIGTERM
        else:
            self._interrupted_by = number
            self._send(number)
            self._due = now + _GRACE_S, signal.SIGKILL
            self._job.say(f"{number.name} passed on to {len(self._alive())} workers; a second one kills them at once")

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
        self._send(number)
        if number == signal.SIGTERM:
            self._send(signal.SIGCONT)  # a stopped worker would not notice
            self._due = now + _TERM_S, signal.SIGKILL
        else:
            self._await_the_killed()

    def _culprit_is_still_ending(self) -> bool:
        """Only ranks that lost a peer have failed so far: the peer is on its way out, and its exit code is wanted."""
        failed = [ending for ending in self._endings if ending.failed]
        recent = sum(self._processes[ending.rank].ended + _CULPRIT_S > time.monotonic() for ending in failed)
        return recent > 0 and all(failure.is_consequence(self._tails[ending.rank]) for ending in failed)

    def _await_the_killed(self) -> None:
        deadline = time.monotonic() + _UNKILLABLE_S
        while self._alive() and time.monotonic() < deadline:
            self._selector.select(0.02)
            self._reap()
        if self._alive():
            pids = ", ".join(str(process.pid) for process in self._alive().values())
            raise EnvironmentUnfit(
                f"pid {pids} did not end {_UNKILLABLE_S:.0f} s after SIGKILL: stuck in the kernel, usually on a dead "
                "file system or device. Look at its state with 'ps', and at the kernel's log."
            )

    def _send(self, number: signal.Signals) -> None:
        for process in self._alive().values():
            process.send(number)

    def _follow_a_stop(self) -> None:
        """Ctrl-Z stopped the worker that has the terminal: stop too, so that the shell gets it back."""
        if self._has_terminal and self._processes[0].stopped():
            self._processes[0].return_terminal()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._processes[0].take_terminal()

    def _keep_guarded(self) -> None:
        guard = self._guardian
        assert guard is not None
        if not guard.alive():
            self._unwatch(guard.handle)
            if guard.revive():
                self._watch(guard.handle)
                self._job.say("the guardian had died; another one has taken its place")

    def _watch(self, handle: int | None) -> None:
        if handle is not None:
            self._selector.register(handle, selectors.EVENT_READ)

    def _unwatch(self, handle: int | None) -> None:
        if handle is not None and handle in self._selector.get_map():
            self._selector.unregister(handle)

    # ---- end ----

    def close(self) -> None:
        """End what is left, read what is left, free everything."""
        for process in self._alive().values():
            process.send(signal.SIGKILL)
        groups = {process.pid for process in self._alive().values()}
        if self._processes and (found := guardian.end_job(self._job.name, groups, grace_s=1.0)):
            self._job.say(f"ended {found} processes that workers had left behind")
        self._reap()
        if self._has_terminal:
            self._processes[0].return_terminal()
        if self._pump.ident is None:  # starting failed half-way
            self._pump.start()
        self._pump.finish()
        for unused in self._sockets.values():
            unused.close()
        if self._hub is not None:
            self._hub.close()
        if self._guardian is not None:
            self._guardian.done()
        self._selector.close()

    def verdict(self, oom_kills: int | None) -> Verdict:
        first = failure.first_failure(self._endings, self._tails)
        code = failure.exit_code(first.returncode) if first else 0
        if self._interrupted_by == signal.SIGPIPE:
            code = 128 + signal.SIGPIPE
        return Verdict(code, first, tuple(self._endings), self._tails, self._interrupted_by, oom_kills)
