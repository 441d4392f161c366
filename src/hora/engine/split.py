"""Two backends side by side, where there are GPUs: tensors on the host stay with the table in shared memory (and what
connects the hosts' tables), those on GPUs are agreed on by messages and carried by NCCL.

The second is started by the first operation on a GPU. The two know nothing of each other; what concerns both is here:
joining, leaving, and a tensor that is on a GPU on some ranks and on the host on others. Then each backend would
wait for the other's ranks, so this is looked for, and the operation fails on all of them with every rank's device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hora.engine.backend import Backend, Operation, OperationEvent, Pending, RankState, Snapshot
from hora.engine.explain import explain_mismatch
from hora.engine.request import Request

__all__ = ["SplitBackend"]

_LONGEST_WAIT_S = 1.0  # operations younger than this may be two that happen to have one name


class SplitBackend(Backend):
    """``engine.backend.Backend`` over ``host``, and over what ``start`` makes for GPUs."""

    def __init__(self, host: Backend, start: Callable[[], Backend], kind: str = "cuda") -> None:
        self.carries = (kind,)
        self._host, self._start = host, start
        self.narrows, self.finds_not_finite = host.narrows, host.finds_not_finite
        self.shares_memory = host.shares_memory
        self._gpu: Backend | None = None
        self._tracing = False
        self._lock = threading.Lock()

    @property
    def _both(self) -> list[Backend]:
        return [self._host] if self._gpu is None else [self._gpu, self._host]

    def _started(self) -> Backend:
        with self._lock:
            if self._gpu is None:
                self._gpu = self._start()
                self._gpu.trace(self._tracing)
            return self._gpu

    # ---- operations ----

    def prepare(self, request: Request) -> Operation:
        backend = self._host if request.device not in self.carries else self._gpu or self._started()
        return backend.prepare(request)

    def join(self, average_active: bool, begun: Callable[[], None] = lambda: None) -> int:
        """On both: the others may need this rank's answer on either, before they join themselves.

        On the host first. Who still works with others that have joined, on a GPU or not, then joins the host's after
        them, so the host's last rank is the last of all.
        """
        gpu = self._started()
        ended: list[BaseException | None] = []

        def join_gpu() -> None:
            try:
                gpu.join(average_active)
                ended.append(None)
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=join_gpu, name="hora-join", daemon=True)

        def both_begin() -> None:
            thread.start()
            begun()

        last = self._host.join(average_active, both_begin)
        thread.join()
        if (error := ended[0]) is not None:
            raise error
        return last

    def help(self) -> None:
        self._host.help()

    def allocate(self, nbytes: int) -> Any:
        return self._host.allocate(nbytes)

    def shares(self, address: int, nbytes: int) -> bool:
        return self._host.shares(address, nbytes)

    def serve(self, nbytes: int) -> bool:
        return self._host.serve(nbytes)

    # ---- looking at one another ----

    def waiting(self) -> bool:
        return any(backend.waiting() for backend in self._both)

    def snapshot(self) -> Snapshot:
        """Both backends' state. Who is blocked is only said if one of them has nothing to do: then it is certain."""
        host = self._host.snapshot()
        gpu = self._gpu.snapshot() if self._gpu is not None else Snapshot(0, (), ())
        self._fail_crossed(host, gpu)
        if not gpu.pending or not host.pending:
            return host._replace(progress=host.progress + gpu.progress) if not gpu.pending else gpu
        ranks = tuple(RankState(r.rank, r.pid, False, r.waiting_on, r.silent) for r in host.ranks)
        return Snapshot(host.progress + gpu.progress, ranks, host.pending + gpu.pending)

    def _fail_crossed(self, host: Snapshot, gpu: Snapshot) -> None:
        """Fail what some ranks wait for on the host and others on a GPU, under one name."""
        waited = {(name, members) for state in (*host.ranks, *gpu.ranks) for name, members in state.waiting_on}
        on_host = {(p.name, p.members): p for p in host.pending if p.age_s >= _LONGEST_WAIT_S}
        for there in gpu.pending:
            here = on_host.get((there.name, there.members))
            if here is None or there.age_s < _LONGEST_WAIT_S or here.requests.keys() & there.requests.keys():
                continue
            if (there.name, there.members) in waited:
                text = explain_mismatch({**here.requests, **there.requests}) or f"devices differ for '{there.name}'"
                self.fail(here, "mismatch", text)

    def fail(self, pending: Pending, kind: str, text: str) -> None:
        for backend in self._both:
            for found in backend.snapshot().pending:
                if (found.name, found.members) == (pending.name, pending.members):
                    backend.fail(found, kind, text)

    def give_up(self, rank: int, status: str) -> None:
        for backend in self._both:
            backend.give_up(rank, status)

    def python_stack(self, rank: int, timeout_s: float) -> str:
        return self._host.python_stack(rank, timeout_s)

    def say(self, text: str) -> None:
        for backend in self._both:
            backend.say(text)

    def trace(self, on: bool) -> None:
        self._tracing = on
        for backend in self._both:
            backend.trace(on)

    def events(self) -> list[OperationEvent]:
        found = [event for backend in self._both for event in backend.events()]
        return sorted(found, key=lambda event: event.time_ns)

    # ---- the end ----

    def leave(self) -> None:
        for backend in self._both:
            backend.leave()

    def close(self) -> None:
        for backend in self._both:
            backend.close()
