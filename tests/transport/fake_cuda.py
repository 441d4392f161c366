"""A GPU that is none: host tensors taken for a GPU's, streams that only keep a record, Gloo in NCCL's place.

It has the methods of ``transport.cuda.Cuda``. Work is done at once, so values are right whatever the order of streams;
the order is checked instead: a collective on a stream that has not waited for what made its data is an AssertionError,
and so is reading on the host what has not been waited for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hora.transport import cuda


class Stream(NamedTuple):
    name: str


class Event(NamedTuple):
    stream: Stream
    number: int


class FakeCuda:
    """``is_gpu`` says which tensors count as a GPU's; ``identity_of`` names the GPU of the calling thread's rank."""

    def __init__(
        self,
        is_gpu: Callable[[torch.Tensor], bool] = lambda tensor: True,
        identity_of: Callable[[], str] = lambda: str(threading.get_ident()),
        why_not: str = "",
    ) -> None:
        self._is_gpu, self._identity_of, self._why_not = is_gpu, identity_of, why_not
        self._local = threading.local()
        self._lock = threading.Lock()
        self._numbers = 0
        self.log: deque[tuple[str, str, Any]] = deque(maxlen=1000)  # what, on which stream, and with what: the latest
        self._followed: set[str] = set()  # streams that have waited for another
        self.groups: list[FakeGroup] = []

    # ---- transport.cuda.Cuda ----

    def present(self) -> bool:
        return True

    def type_of(self, tensor: torch.Tensor) -> str:
        return "cuda" if self._is_gpu(tensor) else tensor.device.type

    def why_not(self) -> str:
        return self._why_not

    def identity(self, where: torch.device) -> str:
        return self._identity_of()

    def stream(self, where: torch.device) -> Stream:
        return Stream(f"mover-{threading.get_ident()}")

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self._local.stream = self.current, stream
        try:
            yield
        finally:
            self._local.stream = before

    def mark(self, where: torch.device) -> Event:
        with self._lock:
            self._numbers += 1
        event = Event(self.current, self._numbers)
        self._note("mark", event)
        return event

    def follow(self, event: Event, where: torch.device) -> None:
        assert isinstance(event, Event)
        self._note("follow", event)
        self._followed.add(self.current.name)

    def settle(self, stream: Stream) -> None:
        self._note("settle", stream)

    def keep(self, tensor: torch.Tensor) -> None:
        self._note("keep", tensor.data_ptr())

    def host_memory(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def group(self, store: Any, rank: int, size: int, timeout_s: float) -> FakeGroup:
        group = FakeGroup(self, store, rank, size)
        self.groups.append(group)
        return group

    def abort(self, group: FakeGroup) -> None:
        group.aborted = True

    # ---- for tests ----

    @property
    def current(self) -> Stream:
        return getattr(self._local, "stream", None) or Stream(f"user-{threading.get_ident()}")

    def _note(self, what: str, thing: Any) -> None:
        with self._lock:
            self.log.append((what, self.current.name, thing))

    def call(self, what: str) -> None:
        """A collective is queued on the current stream, which must have waited for a user's."""
        stream = self.current.name
        assert stream.startswith("mover"), f"{what} was queued on {stream}"
        assert stream in self._followed, f"{what} was queued before anything was waited for"
        self._note(what, None)


class FakeGroup:
    """A process group of Gloo with the calls of NCCL's that the mover makes, with their signatures."""

    def __init__(self, fake: FakeCuda, store: Any, rank: int, size: int) -> None:
        self._fake, self.aborted, self._rank, self._size = fake, False, rank, size
        assert store.check(["never set"]) is False
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=20)
        self._group = dist.ProcessGroupGloo(store, rank, size, options)

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        assert isinstance(options, dist.AllreduceOptions)
        return self._called("allreduce", self._group.allreduce, tensors, options)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor) -> Any:
        assert output.numel() == input.numel() * self._size
        return self._called("allgather", self._group._allgather_base, output, input)

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:
        return self._called("broadcast", self._group.broadcast, tensors, options)

    def alltoall_base(
        self, output: torch.Tensor, input: torch.Tensor, received: list[int], sent: list[int], options: Any
    ) -> Any:
        return self._called("alltoall", self._group.alltoall_base, output, input, received, sent, options)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, options: Any) -> Any:
        """Which Gloo does not have for every type: everything is reduced, and most of it thrown away."""
        assert input.dim() == 1 and input.numel() == output.numel() * self._size
        whole, sum_up = input.clone(), dist.AllreduceOptions()
        sum_up.reduceOp = options.reduceOp
        work = self._called("reducescatter", self._group.allreduce, [whole], sum_up)
        work.wait()
        output.copy_(whole.view(self._size, -1)[self._rank])
        return work

    def _called(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if self.aborted:
            raise RuntimeError("NCCL communicator was aborted")
        self._fake.call(what)
        return call(*arguments)


@contextlib.contextmanager
def installed(fake: FakeCuda) -> Iterator[FakeCuda]:
    """The fake in the place of ``torch.cuda``."""
    before, cuda.device = cuda.device, fake  # type: ignore[assignment]
    try:
        yield fake
    finally:
        cuda.device = before
