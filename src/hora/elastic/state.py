"""The state of an elastic training: what it is made of, how it is kept, and how those who lack it get it.

Names and meanings are Horovod's. What is different: a commit copies (Horovod's keeps references, and "restores" a list
that was changed since), ``sync`` sends the state of whoever is furthest, not of rank 0, and only to those who lack it,
and a worker that has just come is never where it comes from.
"""

from __future__ import annotations

import copy
import ctypes
import struct
from collections.abc import Callable, Iterable
from typing import Any

from hora.elastic.tree import ArraysOutOfBand, OutOfBand, send
from hora.engine import session
from hora.engine.backend import UnderWay
from hora.engine.core import Engine
from hora.engine.request import OperationSpec
from hora.errors import HoraError, HostsUpdatedInterrupt, ShutDownError, UsageError
from hora.ops.objects import pack
from hora.types import DType, Kind, ReduceOp, Reduction

__all__ = ["Handler", "ObjectState", "State", "Updates"]


class Updates:
    """Whether the launcher wants all workers to come for a new generation: asked by all of them together.

    Each asks at every commit, and hears the answer at the next one: an answer that is given while gradients travel
    costs nothing, and it is the same for all of them, so they leave together. With ``now`` it is waited for.
    """

    def __init__(self) -> None:
        self._asked: tuple[Engine, UnderWay[bool]] | None = None

    def ask(self, wanted: bool, *, now: bool = False) -> bool:
        """This worker's word; returns the word of all, on the last call or on this one."""
        engine = session.engine()
        if engine.size == 1:
            self._asked = None
            return wanted
        asked, self._asked = self._asked, None
        if asked is not None and asked[0] is engine and asked[1].wait():
            return True
        try:
            asked = engine, _begin(engine, wanted)
            if now:
                return asked[1].wait()
        except ShutDownError:  # some have finished and left: whatever else they are needed for will say so
            return False
        self._asked = asked
        return False


def _begin(engine: Engine, wanted: bool) -> UnderWay[bool]:
    """Tell it; what is under way has the word of all."""
    word = (ctypes.c_int32 * 1)(int(wanted))
    spec = OperationSpec(Kind.ALLREDUCE, "elastic.updates", ((DType.INT32, (1,)),), how=Reduction(ReduceOp.MAX))
    return engine.prepare(spec).start_at(ctypes.addressof(word), word).then(lambda _: bool(word[0]))


class State:
    """What a training is made of. Subclass it with ``save``, ``restore`` and ``sync``, or use one that is there.

    Args:
        bcast_object: Taken for Horovod's sake; not needed.
        get_rank: Likewise.
    """

    def __init__(
        self, bcast_object: Callable[..., Any] | None = None, get_rank: Callable[[], int] | None = None
    ) -> None:
        self._updates = Updates()
        self._told = False
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Functions to call whenever the workers have changed, for instance to scale the learning rate anew."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The workers have changed: ``reset``, then the registered callbacks."""
        self._told = False
        self._updates = Updates()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float = 0.0, update_res: int = 0) -> None:
        """Have the next commit raise HostsUpdatedInterrupt, as if the launcher had asked for it."""
        self._told = True

    def commit(self) -> None:
        """Keep the state as it is now, to be restored after a failure; and let others in who wait for it.

        Raises HostsUpdatedInterrupt, on all workers at the same commit, if there are any; ``elastic.run`` takes it.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt, on all workers at the same call, if others wait to be let in."""
        if self._updates.ask(self._told or session.others_wait(), now=self._asks_now()):
            raise HostsUpdatedInterrupt

    def _asks_now(self) -> bool:
        return False

    def save(self) -> None:
        """Keep the state as it is now, in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all workers the same state."""
        raise NotImplementedError

    def reset(self) -> None:
        """Whatever has to be made anew when the workers have changed."""

    def leave(self) -> None:
        """The workers are about to change: let go of what only those of now can share."""


class Handler:
    """Takes care of one attribute of a state: an object that is changed in place, like a model.

    Subclasses say how it is taken out (``capture``) and put back (``load``); what they take out may be the live memory.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._saved: Any = None

    def capture(self) -> Any:
        """All there is to it, as it is now."""
        raise NotImplementedError

    def load(self, captured: Any) -> None:
        """Make it what was captured, here or elsewhere. ``captured`` stays whole."""
        raise NotImplementedError

    def save(self) -> None:
        """Keep a copy."""
        self._saved = copy.deepcopy(self.capture())

    def restore(self) -> None:
        """Go back to what was kept last."""
        if self._saved is not None:
            self.load(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Horovod's name for giving all workers the same; a state does that for all its handlers."""

    def set_value(self, value: Any) -> None:
        """The attribute was assigned to."""
        self.value = value
        self.save()


class ObjectState(State):
    """A state of attributes: those given are committed, restored and sent to others; use and change them freely.

    >>> session.init()
    >>> state = ObjectState(epoch=0, losses=[])
    >>> state.losses.append(1.0); state.commit(); state.losses.append(2.0); state.restore(); state.losses
    [1.0]
    >>> session.shutdown()

    Args:
        bcast_object: Taken for Horovod's sake; not needed.
        get_rank: Likewise.
        kwargs: The attributes and their first values.
    """

    def __init__(
        self,
        bcast_object: Callable[..., Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        self._handlers: dict[str, Handler] = {}
        self._names: list[str] = []
        self._kept: dict[str, Any] | None = None
        self._commits = -1  # how many there were, on whoever made the first; -1: this worker has no state yet
        self._beyond = False  # a step was finished since the last commit, and cannot be taken back
        super().__init__(bcast_object, get_rank)
        for name, value in kwargs.items():
            self._names.append(name)
            handler = self._handler_for(value)
            if handler is not None:
                self._handlers[name] = handler
            object.__setattr__(self, name, value)
        self._keep()

    def _handler_for(self, value: Any) -> Handler | None:
        """What takes care of an attribute; None for a plain value, which is copied."""
        return None

    def _apart(self) -> OutOfBand:
        """What keeps arrays out of pickled bytes."""
        return ArraysOutOfBand()

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers and handlers[name].value is not value:
            handlers[name].set_value(value)
        object.__setattr__(self, name, value)

    # ---- keeping ----

    def commit(self) -> None:
        self.save()
        self._commits, self._beyond = max(0, self._commits) + 1, False
        self.check_host_updates()

    def save(self) -> None:
        self._keep()

    def _keep(self) -> None:
        self._keep_values()
        for handler in self._handlers.values():
            handler.save()

    def _keep_values(self) -> None:
        kept = {}
        for name in self._plain():
            try:
                kept[name] = copy.deepcopy(getattr(self, name))
            except Exception as error:
                raise UsageError(
                    f"state.{name} cannot be copied ({type(error).__name__}: {error}), so a commit could not keep it. "
                    "Leave it out of the state, and make it anew in a reset callback."
                ) from error
        self._kept = kept

    def _plain(self) -> list[str]:
        return [name for name in self._names if name not in self._handlers]

    def restore(self) -> None:
        """Go back to the last commit."""
        for name, value in (self._kept or {}).items():
            object.__setattr__(self, name, copy.deepcopy(value))
        for handler in self._handlers.values():
            handler.restore()

    # ---- sending ----

    def sync(self) -> None:
        """Give those who lack it the state of whoever is furthest; then it is as if all had just committed it.

        Who is at the furthest commit already keeps what it has, and waits for nobody.
        """
        engine = session.engine()
        own_word = struct.pack(
            "<q", 2 * self._commits - self._beyond
        )  # a commit that is complete is better than one beyond
        said = [struct.unpack("<q", word)[0] for word in engine.exchange("elastic.commits", own_word)]
        furthest = max(said)
        if furthest < -1:
            self.begin()
        source = said.index(furthest)
        lacking = [rank for rank, word in enumerate(said) if word < furthest or (furthest < -1 and rank != source)]
        if lacking:
            own = self._captured() if engine.rank == source else None
            received = self._send(own, source, lacking)
            if engine.rank in lacking:
                self._take(received)
        self._commits, self._beyond = max(0, (furthest + 1) // 2), False
        self._keep()

    def begin(self) -> None:
        """Nobody has a state: the first generation, or all that had one were lost. Called on all ranks together, before
        the first rank's is sent to the others."""

    def _send(self, own: Any, source: int, lacking: list[int]) -> Any:
        try:
            return send(own, source, lacking, self._apart())
        except HoraError:
            raise
        except Exception as error:
            raise UsageError(
                f"{self._unpicklable(own) or 'the state'} cannot be sent to other workers "
                f"({type(error).__name__}: {error}): it holds something that cannot be pickled. Leave that out of the "
                "state, and make it anew in a reset callback."
            ) from error

    def _unpicklable(self, own: Any) -> str:
        """Which attributes cannot be pickled, each tried by itself; empty if each of them can."""
        parts = {**own["values"], **own["handled"]} if own is not None else {}
        failed = [name for name, value in parts.items() if pack(value, b"", 0, self._apart().persistent_id)[1]]
        return " and ".join(f"state.{name}" for name in failed)

    def _captured(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self._plain()}
        return {"values": values, "handled": {name: handler.capture() for name, handler in self._handlers.items()}}

    def _take(self, received: dict[str, Any]) -> None:
        for name, value in received["values"].items():
            object.__setattr__(self, name, value)
        for name, captured in received["handled"].items():
            if name in self._handlers:
                self._handlers[name].load(captured)
