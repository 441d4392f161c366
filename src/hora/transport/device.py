"""What Hora needs of a device other than the CPU: which there is, streams and events in their order, memory kept while
they need it, and the library that connects several.

Nothing here is CUDA's but the names in ``LIBRARIES``: all is asked of torch's module for the device, and those modules
have these functions in common. The tests put a device of their own there.

The rule of streams: whoever submits marks its stream, the mover's stream waits for that mark before it touches the
data, marks its own end, and whoever asks for the result makes its stream wait for that. The host waits for nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hora.config import env

__all__ = [
    "LIBRARIES", "abort", "current", "error", "follow", "group", "host_memory", "identity", "keep", "kind", "mark",
    "module_of", "on", "settle", "stream", "why_not",
]  # fmt: skip

# The kinds of devices whose tensors stay where they are, and torch's process group that moves them. AMD's GPUs are also
# called cuda, and RCCL is called NCCL.
LIBRARIES = {"cuda": "ProcessGroupNCCL"}


def kind() -> str:
    """The kind of device that this process has and Hora can move data between; empty if there is none."""
    return next((kind for kind in LIBRARIES if (module := module_of(kind)) is not None and module.is_available()), "")


def module_of(kind: str) -> Any:
    """Torch's module for a kind of device, such as ``torch.cuda``; None if this torch has none."""
    return getattr(torch, kind, None)


def current(local_rank: int, kind: str) -> torch.device:
    """Take the device of this rank's place on its host, of those that the process sees, which may be its own only."""
    module = module_of(kind)
    device = torch.device(kind, local_rank % module.device_count())
    module.set_device(device)
    return device


def why_not(kind: str) -> str:
    """Why the library for such devices cannot be used here; empty if it can."""
    name = LIBRARIES[kind]
    there = hasattr(dist, name)
    return "" if there else f"torch {torch.__version__} was built without {name.removeprefix('ProcessGroup')}"


def identity(where: torch.device) -> str:
    """What tells this device from every other, in every process."""
    return str(module_of(where.type).get_device_properties(where).uuid)


# ---- streams and events ----


def stream(where: torch.device) -> Any:
    """A new stream."""
    return module_of(where.type).Stream(where)


def on(stream: Any) -> AbstractContextManager[Any]:
    """Put work on this stream meanwhile."""
    context: AbstractContextManager[Any] = module_of(stream.device.type).stream(stream)
    return context


def mark(where: torch.device) -> Any:
    """An event: everything put on the current stream so far."""
    module = module_of(where.type)
    event = module.Event()
    event.record(module.current_stream(where))
    return event


def follow(event: Any, where: torch.device) -> None:
    """What is put on the current stream from now on comes after this event. The host does not wait."""
    module_of(where.type).current_stream(where).wait_event(event)


def settle(stream: Any) -> None:
    """The host waits for everything on this stream."""
    stream.synchronize()


def keep(tensor: torch.Tensor) -> None:
    """Its memory is used by the current stream: it is not given to others before that is done with it."""
    tensor.record_stream(module_of(tensor.device.type).current_stream(tensor.device))


def host_memory(nbytes: int) -> torch.Tensor:
    """Host memory that a device can copy from and to by itself."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


# ---- the library that connects several ----


def group(kind: str, store: Any, rank: int, size: int, timeout_s: float, interface: str) -> Any:
    """A process group of the library, that is nobody else's; its connections go over ``interface``, if that is given
    and the user has named none.

    Torch would end the process on an error of NCCL's, before anybody could say why; what it is told here (2: only
    abort the communicator) it reads nowhere but in the environment. NCCL reads the interface there when it connects.
    """
    library = getattr(dist, LIBRARIES[kind])
    options = library.Options()
    options._timeout = timedelta(seconds=timeout_s)
    if interface:
        env.default("NCCL_SOCKET_IFNAME", interface)
    with env.during(TORCH_NCCL_ASYNC_ERROR_HANDLING="2"):
        return library(store, rank, size, options)


def error(group: Any) -> str:
    """What went wrong in the group after it was asked to do something; empty if nothing did, or torch cannot tell."""
    ask = getattr(group, "get_error", None)  # since torch 2.7
    state = ask() if ask is not None else None
    return "" if state is None or state.name == "SUCCESS" else str(state.name)


def abort(group: Any) -> None:
    """End what the group has under way, and the group; it waits for nobody."""
    end = getattr(group, "abort", None) or group._shutdown  # its name until torch 2.5
    end()
