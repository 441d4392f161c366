"""Starting workers on this host, and the guardian that watches over them.

Every worker leads a process group of its own, inherits exactly the descriptors meant for it, and carries the job's
cookie. Nothing runs between fork and exec, so starting is fast and safe whatever threads the caller has.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from hora.config import env
from hora.errors import EnvironmentUnfit
from hora.launch.host import guardian

__all__ = ["Guardian", "Process", "wait_handle"]

_FOR_THE_LEADER = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def wait_handle(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends, or None where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


class Process:
    """One running worker. ``returncode`` is None until ``poll`` has seen its end (negative: the signal)."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        inherit: Sequence[int],
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        try:
            self._popen = subprocess.Popen(
                command,
                env=environment,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=tuple(inherit),
                process_group=0,
                bufsize=0,
            )
        except OSError as error:
            raise EnvironmentUnfit(
                f"{command[0]!r} could not be started: {error.strerror}. The job was not started. "
                "Check the command, its permissions and the limits on processes and open files."
            ) from error
        self.pid = self._popen.pid
        self.started = time.monotonic()
        self.ended = 0.0
        self.usage: resource.struct_rusage | None = None
        self.handle = wait_handle(self.pid)

    @property
    def returncode(self) -> int | None:
        return self._popen.returncode

    def take_pipes(self) -> tuple[int, int]:
        """The reading ends of stdout and stderr; the caller owns them from now on."""
        return _detach(self._popen.stdout), _detach(self._popen.stderr)

    def poll(self, on_end: Callable[[int], None] = lambda code: None) -> int | None:
        """Reap it if it has ended, keeping what it used. ``on_end`` is told how it ended before that: reaping was seen
        to take more than half a second, and the other workers wait to be told."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        if end := os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            on_end(end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)
            # What it leaves in its group ends with it, and now: once it is reaped, the number may become another's.
            self._send_group(signal.SIGTERM)
            _, status, self.usage = os.wait4(self.pid, 0)
            self._popen.returncode = os.waitstatus_to_exitcode(status)
            self.ended = time.monotonic()
        return self._popen.returncode

    def close(self) -> None:
        """Free its handle."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def send(self, number: int) -> None:
        """Signal the worker: alone, if it may want to save its state first, and needs its helpers for that (the workers
        of a data loader would die at once); with its whole group, if it is to end or stop, or was interrupted."""
        if number in _FOR_THE_LEADER and self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)
        else:
            self._send_group(number)

    def _send_group(self, number: int) -> None:
        """Signal the whole group, while its leader is known to be alive or unreaped."""
        if self._popen.returncode is None:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                pass
            except PermissionError:  # a set-user-id command; nothing to be done
                pass

    def take_terminal(self) -> bool:
        """Give it the terminal if we have it, so that a debugger can read from it and Ctrl-C reaches it."""
        given = _pass_terminal(os.getpgrp(), self.pid)
        self.send(signal.SIGCONT)  # it may have read, and been stopped, before it had the terminal
        return given

    def return_terminal(self) -> None:
        """Take the terminal back if it still has it."""
        _pass_terminal(self.pid, os.getpgrp())

    def halted(self) -> bool:
        """Whether it is stopped at this moment, by a signal or a debugger."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in b"Tt"
        except (OSError, IndexError):
            return False

    def stopped(self) -> bool:
        """Whether it was stopped (Ctrl-Z) since this was asked last."""
        return self.returncode is None and os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None


def _pass_terminal(giver: int, taker: int) -> bool:
    """Make one process group instead of another the terminal's foreground; False if it was not the giver's to give."""
    # Whoever does this from the background is stopped by SIGTTOU unless it is ignored.
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        if os.tcgetpgrp(0) != giver:
            return False
        os.tcsetpgrp(0, taker)
        return True
    except OSError:  # there is no terminal
        return False
    finally:
        signal.signal(signal.SIGTTOU, before)


def _detach(pipe: IO[Any] | None) -> int:
    assert pipe is not None
    fd = os.dup(pipe.fileno())
    pipe.close()
    return fd


class Guardian:
    """The launcher's side of ``guardian.py``. If the guardian dies, another takes its place."""

    def __init__(self, cookie: str) -> None:
        self._cookie = cookie
        self._groups: set[int] = set()
        self._restarts_left = 3
        self._start()

    def watch(self, group: int) -> None:
        self._groups.add(group)
        self._tell(f"watch {group}")

    def forget(self, group: int) -> None:
        self._groups.discard(group)
        self._tell(f"forget {group}")

    def alive(self) -> bool:
        return self._popen.poll() is None

    def revive(self) -> bool:
        """Start another in its place, unless they die again and again."""
        if not self._restarts_left:
            return False
        self._restarts_left -= 1
        self._release()
        self._start()
        return True

    def done(self) -> None:
        """Nothing is left to guard. It is killed before it could take the end of its input for our death."""
        self._popen.kill()
        self._popen.wait()
        self._release()

    def _start(self) -> None:
        # Without the cookie of this job or of one around it: a guardian must not be swept away with what it guards.
        environment = {name: value for name, value in env.environ().items() if name != guardian.COOKIE}
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, self._cookie],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            text=True,
        )
        self.handle = wait_handle(self._popen.pid)
        for group in self._groups:
            self._tell(f"watch {group}")

    def _tell(self, line: str) -> None:
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(line + "\n")
            self._popen.stdin.flush()
        except (BrokenPipeError, ValueError):  # it died; revive() tells the next one
            pass

    def _release(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
