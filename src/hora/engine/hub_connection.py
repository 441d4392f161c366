"""A worker's connection to the hub: one socket and one reading thread, shared by all backends.

The reading thread does nothing that could hang. Whatever the user's threads and the transport do, it notices deaths,
answers other workers' questions about this one's Python stacks, and hands everything else to the current generation.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

from hora.wire.frame import Channel, WireClosed, WireError
from hora.wire.messages import (
    AnyMessage,
    Died,
    Hello,
    Message,
    Refused,
    SnapshotAsk,
    SnapshotReply,
    StackAsk,
    StackReply,
    Standby,
    StoreGet,
    StoreReply,
    StoreSet,
    Updated,
    Welcome,
    decode,
    portions,
)

__all__ = ["Greeting", "HubConnection", "python_stacks"]

_log = logging.getLogger("hora.line")

_SEND_S = 30.0
_FRAME_S = 30.0
_SLICE_S = 0.2  # waits are sliced, for Ctrl-C
_STACK_CHARACTERS = 64 * 2**10


class Greeting(NamedTuple):
    """The answer to a Hello; ``descriptor`` is the segment's, -1 if none came."""

    message: Welcome | Refused | Standby
    descriptor: int = -1


class _Question:
    def __init__(self) -> None:
        self.answered = threading.Event()
        self.answer: Message | None = None


class HubConnection:
    """The connection of one worker to its hub. Thread-safe.

    ``host_pid`` is the process that runs the hub, whose end is noticed even if its children keep the socket open.
    """

    def __init__(self, channel: Channel, *, host_pid: int = 0) -> None:
        self.lost = ""  # why the line is dead, once it is
        self._channel = channel
        self._pidfd = -1
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(host_pid) if host_pid > 0 else -1
        self._lock = threading.Lock()
        self._questions: dict[int, _Question] = {}
        self._next_id = 1
        self._greeting: Greeting | None = None
        self._greeted = threading.Condition(self._lock)
        self._generation = -1
        self._any_later = False  # an elastic job: the hub numbers the generations
        self.updated = -1  # the last generation that was told to come for a new one
        self._handler: Callable[[AnyMessage], None] | None = None
        self._on_lost: Callable[[str], None] | None = None
        self._unheard: list[AnyMessage] = []  # came before there was a handler
        self._thread = threading.Thread(target=self._listen, name="hora-line", daemon=True)
        self._thread.start()

    def key_for(self, use: str) -> bytes:
        """A key that only the workers of this job have; another for every use."""
        return self._channel.key_for(use)

    def send(self, message: Message) -> None:
        """Raises WireError if the hub is gone or does not read."""
        if self.lost:
            raise WireClosed(self.lost)
        for payload in portions(message):
            self._channel.send(payload, timeout_s=_SEND_S)

    def greet(self, hello: Hello, timeout_s: float) -> Greeting | None:
        """Say Hello and wait for the answer; None if there was none in time."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._greeting, self._generation, self._any_later = None, hello.generation, not hello.members
            self._handler, self._on_lost, self._unheard = None, None, []
        self.send(hello)
        with self._greeted:
            while self._greeting is None and not self.lost and time.monotonic() < deadline:
                self._greeted.wait(min(_SLICE_S, max(0.0, deadline - time.monotonic())))  # in slices, for Ctrl-C
            if self._greeting is None and self.lost:
                raise WireClosed(self.lost)
            return self._greeting

    def subscribe(self, handler: Callable[[AnyMessage], None], on_lost: Callable[[str], None]) -> None:
        """Hand the current generation's messages to ``handler``, on the reading thread; ``on_lost`` at most once."""
        with self._lock:
            for message in self._unheard:
                handler(message)
            self._unheard, self._handler, self._on_lost = [], handler, on_lost
        if self.lost:
            on_lost(self.lost)

    def death(self) -> Died | None:
        """The first of this generation that died before ``subscribe``, if one did."""
        with self._lock:
            return next((message for message in self._unheard if isinstance(message, Died)), None)

    def unsubscribe(self) -> None:
        with self._lock:
            self._generation, self._handler, self._on_lost, self._unheard = -1, None, None, []

    # ---- questions ----

    def python_stack(self, generation: int, rank: int, timeout_s: float) -> str:
        """The Python stacks of another worker's threads, or why they could not be had."""
        try:
            answer = self._ask(lambda ask_id: StackAsk(generation, ask_id, rank), timeout_s)
        except WireError as error:
            return f"rank {rank}'s stack could not be had: {error}"
        if isinstance(answer, StackReply):
            return answer.text
        return f"rank {rank} did not answer within {timeout_s:g} s: it is stopped, or busy outside Python"

    def snapshot(self, generation: int, timeout_s: float) -> bytes | None:
        """What ``engine.snapshot`` packed; None if it does not come in time."""
        answer = self._ask(lambda ask_id: SnapshotAsk(generation, ask_id), timeout_s)
        return answer.snapshot if isinstance(answer, SnapshotReply) else None

    def store_set(self, generation: int, key: str, value: bytes) -> None:
        self.send(StoreSet(generation, key, value))

    def store_get(
        self, generation: int, key: str, timeout_s: float, given_up: Callable[[], bool] = lambda: False
    ) -> bytes | None:
        """The value of a key, once it is set; None if it is not in time, or ``given_up`` says it no longer matters."""
        answer = self._ask(lambda ask_id: StoreGet(generation, ask_id, key), timeout_s, given_up)
        return answer.value if isinstance(answer, StoreReply) else None

    def close(self) -> None:
        """Hang up. Safe to call twice."""
        self._channel.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _ask(
        self, make: Callable[[int], Message], timeout_s: float, given_up: Callable[[], bool] = lambda: False
    ) -> Message | None:
        question = _Question()
        with self._lock:
            ask_id, self._next_id = self._next_id, self._next_id + 1
            self._questions[ask_id] = question
        try:
            self.send(make(ask_id))
            deadline = time.monotonic() + timeout_s
            while not question.answered.wait(min(_SLICE_S, max(0.0, deadline - time.monotonic()))):
                if self.lost:
                    raise WireClosed(self.lost)
                if time.monotonic() >= deadline or given_up():
                    break
            return question.answer
        finally:
            with self._lock:
                self._questions.pop(ask_id, None)

    # ---- the reading thread ----

    def _listen(self) -> None:
        poller = select.poll()
        poller.register(self._channel.fileno(), select.POLLIN)
        if self._pidfd >= 0:
            poller.register(self._pidfd, select.POLLIN)
        reason = ""
        try:
            while True:
                if not self._channel.buffered:
                    ready = [descriptor for descriptor, _ in poller.poll()]
                    if ready == [self._pidfd]:  # only then: the last words are read first
                        raise WireClosed("the process that ran the hub has ended")
                payload = self._channel.receive(timeout_s=_FRAME_S)
                self._hear(decode(payload))
        except WireError as error:
            reason = str(error)
        except Exception as error:
            _log.exception("the connection to the hub failed: internal error")
            reason = f"{type(error).__name__}: {error}"
        finally:
            if self._pidfd >= 0:
                os.close(self._pidfd)
            self._hang_up(reason)

    def _hear(self, message: AnyMessage) -> None:
        match message:
            case StackAsk(generation=generation, id=ask_id):
                self.send(StackReply(generation, ask_id, python_stacks()))
            case StackReply(id=ask_id) | SnapshotReply(id=ask_id) | StoreReply(id=ask_id):
                with self._lock:
                    question = self._questions.pop(ask_id, None)
                if question is not None:
                    question.answer = message
                    question.answered.set()
            case Welcome(generation=generation):
                descriptor = self._channel.take_descriptor() if message.descriptor else -1
                with self._greeted:
                    if generation == self._generation or (self._any_later and generation > self._generation):
                        self._generation, self._any_later = generation, False
                        self._greeting = Greeting(message, descriptor)
                        self._greeted.notify_all()
                    elif descriptor >= 0:
                        os.close(descriptor)
            case Updated(generation=generation):
                self.updated = generation
            case Standby():
                with self._greeted:
                    self._greeting = Greeting(message)
                    self._greeted.notify_all()
            case Refused(generation=generation) if self._handler is None:
                with self._greeted:
                    if generation == self._generation:
                        self._greeting = Greeting(message)
                        self._greeted.notify_all()
            case _:
                with self._lock:
                    if message.generation != self._generation:
                        return  # late news of a generation that is over
                    handler = self._handler
                    if handler is None:
                        self._unheard.append(message)
                if handler is not None:
                    handler(message)

    def _hang_up(self, reason: str) -> None:
        with self._greeted:
            self.lost = reason or "the line was closed"
            on_lost, self._on_lost = self._on_lost, None
            questions, self._questions = self._questions, {}
            self._greeted.notify_all()
        for question in questions.values():
            question.answered.set()
        if on_lost is not None:
            on_lost(self.lost)


def python_stacks() -> str:
    """The Python stacks of this process's threads, the main thread first, Hora's own left out."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    parts = []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        name = names.get(ident, f"thread {ident}")
        if not name.startswith("hora-"):
            parts.append(f"{name}:\n" + "".join(traceback.format_stack(frame)))
    return "\n".join(parts)[:_STACK_CHARACTERS]
