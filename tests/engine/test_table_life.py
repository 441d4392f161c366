"""Ranks that are stopped, killed, interrupted or shut down at a bad moment; and what a failed check inside does."""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.engine.table_crew import DEADLINE_S, Crew, Rank, run, until
from tests.launch.jobs import clean_environment

from hora.config.limits import limits_named
from hora.config.settings import Settings
from hora.engine.backend import Operation
from hora.engine.monitor import Monitor
from hora.engine.table import TableBackend
from hora.errors import EnvironmentUnfit, HorovodInternalError, MismatchError, PeerLostError, ShutDownError
from hora.transport import shm
from hora.types import Kind
from hora.wire.messages import Peer


class InterruptedIn:
    """The core's functions, with a Ctrl-C when this one has answered for the second time."""

    def __init__(self, library: Any, name: str) -> None:
        self._library, self._name, self._answers = library, name, 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        return function if name != self._name else lambda *arguments: self._answered(function(*arguments))

    def _answered(self, answer: Any) -> Any:
        self._answers += 1
        if self._answers == 2:
            signal.raise_signal(signal.SIGINT)
        return answer


def interrupted(me: Rank, name: str, call: Callable[[], object]) -> None:
    """The call comes back to Python again and again from this function of the core, so that Ctrl-C ends it."""
    library: Any = me.backend._lib
    me.backend._lib = InterruptedIn(library, name)  # type: ignore[assignment]
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        me.backend._lib = library


def test_ctrl_c_ends_every_call_while_a_stopped_rank_holds_the_lock() -> None:
    with Crew(2) as crew:
        zero, one = crew.ranks
        array = np.ones(5000)
        ticket = zero.allreduce(array, "x")
        again = next(iter(zero.operations.values()))
        one.hold_lock()
        interrupted(zero, "submit", lambda: zero.allreduce(np.ones(3), "y"))
        interrupted(zero, "submit_one", lambda: again.start_at(array.ctypes.data, array))
        interrupted(zero, "finish", ticket.wait)
        interrupted(zero, "join", lambda: zero.backend.join(False))
        interrupted(zero, "set", lambda: zero.allreduce(np.ones(3), "z", members=(0,)))
        interrupted(zero, "leave", zero.backend.leave)
        one.let_go_of_lock()
        own = np.ones(5000)
        one.allreduce(own, "x").wait()  # which goes on without whom Ctrl-C called away
        np.testing.assert_array_equal(own, np.full(5000, 2.0))
        pair = [rank.allreduce(np.ones(3), "y") for rank in crew.ranks]
        for waits in pair:
            waits.wait()
        assert zero.backend.snapshot().pending == ()


def test_who_holds_the_lock_and_does_not_run_is_named_and_given_up(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(stall_warn_s=0.3, stall_fail_s=1.2)
    crew = Crew(2, settings)
    zero, one = crew.ranks
    said: list[PeerLostError] = []

    def waits() -> None:
        with pytest.raises(PeerLostError) as caught:
            zero.allreduce(np.ones(3), "x").wait()
        said.append(caught.value)

    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    until(zero.backend.waiting)
    until(lambda: bool(zero.backend.snapshot().pending))
    one.hold_lock()
    with caplog.at_level(logging.WARNING):
        monitor = Monitor(0, 2, zero.backend, settings)
        thread.join(DEADLINE_S)
        monitor.close()
    assert not thread.is_alive()
    assert said[0].rank == 1 and "it has not answered for 1 s" in str(said[0])
    assert any("rank 1 (pid" in record.getMessage() for record in caplog.records)
    crew.__exit__()


def test_who_leaves_does_not_wait_for_ever_for_the_lock() -> None:
    crew = Crew(2, Settings(stall_fail_s=0.1))
    zero, one = crew.ranks
    one.hold_lock()
    zero.backend.leave()
    with pytest.raises(ShutDownError, match=r"'x' cannot be done: the others have given rank 1 up: it holds the lock"):
        one.allreduce(np.ones(3), "x").wait()
    crew.__exit__()


@pytest.mark.parametrize("kind", ["wait", "join", "again", "group"])
def test_a_thread_that_waits_while_another_shuts_down_is_told(kind: str) -> None:
    """In whatever it waits, and peers are not held up."""
    crew = Crew(2)
    zero, one = crew.ranks
    said: list[BaseException] = []
    ready = zero.allreduce(np.ones(4), "ready"), one.allreduce(np.ones(4), "ready")
    for ticket in ready:
        ticket.wait()
    again = next(iter(zero.operations.values()))
    array = np.ones(4)
    calls: dict[str, Callable[[], object]] = {
        "wait": lambda: zero.allreduce(np.ones(5000), "x").wait(),
        "join": lambda: zero.backend.join(False),
        "again": lambda: again.run(array.ctypes.data, array),
        "group": lambda: zero.submit(Kind.ALLREDUCE, "g", [np.ones(1)] * 5000, grouped=True).wait(),
    }

    def waits() -> None:
        try:
            calls[kind]()
        except BaseException as error:
            said.append(error)

    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    until(lambda: bool(one.backend.snapshot().ranks[0].waiting_on))
    crew.__exit__()  # leaves and closes, as shutdown() does
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    (error,) = said
    assert isinstance(error, ShutDownError), error
    assert "shut" in str(error) and "rank 1" not in str(error)


def test_calls_after_the_end_are_refused_and_harmless() -> None:
    crew = Crew(1)
    (me,) = crew.ranks
    again = _operation(me)
    core = me.backend._core
    crew.__exit__()
    me.backend._core = core  # as a thread has it that was about to call
    array = np.ones(4)
    with pytest.raises(ShutDownError, match="another thread of this process shut Hora down"):
        again.run(array.ctypes.data, array)
    with pytest.raises(ShutDownError, match="another thread of this process shut Hora down"):
        me.backend.join(False)
    with pytest.raises(ShutDownError, match="another thread of this process shut Hora down"):
        me.allreduce(array, "new")
    assert me.backend.snapshot().pending == () and me.backend.allocate(100) is None
    assert me.backend.events() == [] and not me.backend.shares(array.ctypes.data, 4)
    me.backend.help()
    me.backend._core = None


def _operation(me: Rank) -> Operation:
    me.allreduce(np.ones(4), "x").wait()
    return next(iter(me.operations.values()))


SHUTS_DOWN = """
import sys, threading
import numpy as np
from tests.engine.table_crew import Crew, until
said = []
def waits(rank, name):
    try:
        rank.allreduce(np.ones(3), name).wait()
    except BaseException as error:
        said.append(type(error).__name__)
for _ in range(20 if sys.argv[1] == "shutdown" else 1):
    crew = Crew(2)
    zero, one = crew.ranks
    threads = [threading.Thread(target=waits, args=(zero, f"x{i}"), daemon=True) for i in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(one.backend.snapshot().ranks[0].waiting_on) == 8)
    if sys.argv[1] == "shutdown":
        crew.__exit__()
        for thread in threads:
            thread.join()
print(len(said), *set(said))
sys.exit(7)
"""


@pytest.mark.parametrize("how", ["shutdown", "exit"])
def test_the_exit_code_is_the_scripts_own_though_a_thread_waits(how: str) -> None:
    process = _python(SHUTS_DOWN, how)
    text, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 7, text
    assert text.split() == (["160", "ShutDownError"] if how == "shutdown" else ["0"])


WAITS = """
import os, sys
import numpy as np
from hora.config.limits import limits_named
from hora.config.settings import Settings
from hora.engine.table import TableBackend
from hora.wire.messages import Peer
from tests.engine.table_crew import Rank
fd, parent = map(int, sys.argv[1:])
peers = [Peer(0, 0, parent, "here"), Peer(1, 1, os.getpid(), "here")]
me = Rank(TableBackend(fd, 1, peers, Settings()), 1, 2, None)
me.allreduce(np.ones(3), "both").wait()
me.allreduce(np.ones(3), "never").wait()
"""


def test_the_end_of_a_process_is_seen_without_a_hub() -> None:
    segment = shm.create_segment(2, 1, Settings())
    process = _python(WAITS, str(segment.fd), str(os.getpid()), fds=(segment.fd,))
    try:
        peers = [Peer(0, 0, os.getpid(), "here"), Peer(1, 1, process.pid, "here")]
        me = Rank(TableBackend(segment.fd, 0, peers, Settings()), 0, 2, None)
        array = np.ones(3)
        me.allreduce(array, "both").wait()
        np.testing.assert_array_equal(array, np.full(3, 2.0))
        ticket = me.allreduce(array, "another")
        assert me.backend._lib.dead(me.backend._core) == -1
        process.kill()
        with pytest.raises(PeerLostError, match=f"rank 1 .*pid {process.pid}") as caught:
            ticket.wait()
        assert caught.value.rank == 1 and me.backend._lib.dead(me.backend._core) == 1
        me.backend.leave()
        me.backend.close()
    finally:
        process.kill()
        process.communicate()
        segment.close()


def _python(program: str, *arguments: str, fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = clean_environment()
    environment["PYTHONPATH"] += os.pathsep + root
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], env=environment, pass_fds=fds,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_a_check_that_fails_ends_the_job_with_one_sentence_on_all_ranks() -> None:
    """Here: a wait for an operation that nobody submitted. Whatever a rank waits in, it is told."""
    sentence = (
        r"a check inside Hora failed: a wait for an operation that is not in flight \(engine.c:\d+\); please report"
    )

    def body(me: Rank) -> None:
        me.barrier()
        with pytest.raises(PeerLostError, match=sentence) as caught:
            if me.rank == 0:
                for waits in (1, 2, 3):
                    until(lambda waits=waits: bool(me.backend.snapshot().ranks[waits].waiting_on))  # type: ignore[misc]
                me.backend._lib.wait(me.backend._core, 12345, 0)
                me.allreduce(np.ones(3), "after")
            elif me.rank == 1:
                me.backend.join(False)
            else:
                me.allreduce(np.ones(3 if me.rank == 2 else 5000), f"x{me.rank}").wait()
        assert caught.value.rank == 0

    run(4, body)


@pytest.mark.parametrize("number", [-1, 1 << 20, 1 << 62])
def test_no_number_of_a_ticket_makes_the_core_read_what_is_not_its_own(number: int) -> None:
    crew = Crew(1)
    (me,) = crew.ranks
    lib, core = me.backend._lib, me.backend._core
    assert lib.done(core, number) == 1 and lib.failure(core, number) == 0 and not lib.take(core, number, 0, None)
    lib.release(core, number)
    lib.withdraw(core, number)
    me.allreduce(np.ones(3), "x").wait()
    assert lib.finish(core, number, 0) == 3  # ABORTED: see above
    crew.__exit__()


def test_a_failure_whose_reason_was_overwritten_is_told_as_one() -> None:
    """There is room for the reasons of 256 failures."""
    crew = Crew(2)
    zero, one = crew.ranks
    first = zero.allreduce(np.ones(1), "first"), one.allreduce(np.ones(2), "first")
    for _ in range(256):
        for ticket in [rank.allreduce(np.ones(1 + rank.rank), "next") for rank in crew.ranks]:
            with pytest.raises(MismatchError):
                ticket.wait()
    for ticket in first:
        with pytest.raises(HorovodInternalError, match="'first' failed, and so many others since"):
            ticket.wait()
    crew.__exit__()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN])
def test_a_core_that_cannot_start_its_threads_says_which_limit_it_met(number: int) -> None:
    """And its worker does not start. Without its executor it would hang others; without its watcher, miss a death."""
    settings, files = Settings(), resource.getrlimit(resource.RLIMIT_NOFILE)
    segment = shm.create_segment(2, 1, settings)
    peers = [Peer(r, r, os.getpid(), "here") for r in range(2)]
    libc, threads, huge = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
    for attributes in (threads, huge):
        assert libc.pthread_getattr_default_np(attributes) == 0
    assert libc.pthread_attr_setstacksize(huge, ctypes.c_size_t(1 << 50)) == 0
    try:
        if number == errno.EMFILE:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, files[1]))
        else:
            assert libc.pthread_setattr_default_np(huge) == 0  # there are no stacks so large
        wanted = r"rank 0 cannot start: no more (files|.* threads) can be"
        with pytest.raises(EnvironmentUnfit, match=wanted), limits_named("rank 0 cannot start"):
            TableBackend(segment.fd, 0, peers, settings)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        assert libc.pthread_setattr_default_np(threads) == 0
        segment.close()


def test_what_a_repeated_operation_writes_to_is_kept_when_the_job_ends_under_it() -> None:
    """The core may still be writing there; it is let go when the core is closed."""

    class Owner:
        pass

    with Crew(2) as crew:
        zero, one = crew.ranks
        for ticket in (zero.allreduce(np.ones(4), "x"), one.allreduce(np.ones(4), "x")):
            ticket.wait()
        operation, array, owner = next(iter(zero.operations.values())), np.ones(4), Owner()
        alive = weakref.ref(owner)
        raised: list[BaseException] = []

        def waits(kept: Owner) -> None:
            try:
                operation.run(array.ctypes.data, kept)
            except PeerLostError as error:
                raised.append(error.with_traceback(None))

        thread = threading.Thread(target=waits, args=(owner,), daemon=True)
        thread.start()
        del owner
        until(lambda: bool(one.backend.snapshot().ranks[0].waiting_on))
        one.backend.abort("it was enough")
        thread.join(DEADLINE_S)
        assert raised and "it was enough" in str(raised[0])
        del thread
        gc.collect()
        assert alive() is not None
    gc.collect()
    assert alive() is None
