"""What Hora needs of a GPU: which one it is, streams and events in their order, memory kept while they need it.

The only file that calls ``torch.cuda``. ``device`` is what the others use; tests put a stand-in there, so that the
order of events can be checked without a GPU.

The rule of streams: whoever submits marks its stream, the mover's stream waits for that mark before it touches the
data, marks its own end, and whoever asks for the result makes its stream wait for that. The host waits for nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hora.config import env

__all__ = ["Cuda", "device"]


class Cuda:
    """NVIDIA's GPUs, and AMD's, which torch calls by the same name."""

    def present(self) -> bool:
        """Whether this process has a GPU to use."""
        return torch.cuda.is_available()

    def type_of(self, tensor: torch.Tensor) -> str:
        """The kind of device the tensor is on, "cpu" or "cuda" or another."""
        return tensor.device.type

    def why_not(self) -> str:
        """Why NCCL cannot be used here; empty if it can."""
        return "" if dist.is_nccl_available() else f"torch {torch.__version__} was built without NCCL"

    def identity(self, where: torch.device) -> str:
        """What tells this GPU from every other, in every process."""
        return str(torch.cuda.get_device_properties(where).uuid)

    # ---- streams and events ----

    def stream(self, where: torch.device) -> Any:
        """A new stream."""
        return torch.cuda.Stream(where)

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Put work on this stream meanwhile."""
        with torch.cuda.stream(stream):
            yield

    def mark(self, where: torch.device) -> Any:
        """An event: everything put on the current stream so far."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(where))
        return event

    def follow(self, event: Any, where: torch.device) -> None:
        """What is put on the current stream from now on comes after this event. The host does not wait."""
        torch.cuda.current_stream(where).wait_event(event)

    def settle(self, stream: Any) -> None:
        """The host waits for everything on this stream."""
        stream.synchronize()

    def keep(self, tensor: torch.Tensor) -> None:
        """Its memory is used by the current stream: it is not given to others before that is done with it."""
        tensor.record_stream(torch.cuda.current_stream(tensor.device))

    # ---- memory and NCCL ----

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Host memory that a GPU can copy from and to by itself."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def group(self, store: Any, rank: int, size: int, timeout_s: float) -> Any:
        """A process group of NCCL that is nobody else's.

        Torch would end the process on an error of NCCL's, before anybody could say why; what it is told here (2: only
        abort the communicator) it reads nowhere but in the environment.
        """
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        with env.during(TORCH_NCCL_ASYNC_ERROR_HANDLING="2"):
            return dist.ProcessGroupNCCL(store, rank, size, options)

    def abort(self, group: Any) -> None:
        """End what the group has under way, and the group; it waits for nobody."""
        end = getattr(group, "abort", None) or group._shutdown  # its name until torch 2.5
        end()


device = Cuda()
