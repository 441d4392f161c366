"""A device that PyTorch takes for an accelerator, so that what is written for GPUs can be tried without one.

``standin.cpp`` is compiled with this machine's g++ and torch's headers, once for each version of both, into ``build/``.
Its tensors are real ones, of their own device type (``"standin"``); streams, events, pinned memory, ``record_stream``,
random numbers and the autograd engine's threads for devices are torch's. STANDIN_DEVICES says how many there are.

It promises that the order is checked: whoever reads or writes memory of the device without having waited for those who
wrote or read it before gets a RuntimeError; ``faults()`` lists all that were found, also those that no call could raise
(memory freed while a stream uses it).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

__all__ = ["KIND", "compiled", "count", "faults", "load"]

KIND = "standin"
SOURCE = Path(__file__).with_name("standin.cpp")
BUILD = Path(__file__).parents[2] / "build" / "standin"
_DEADLINE_S = 600.0


def compiled() -> Path:
    """The compiled device; whoever comes first compiles it, others wait."""
    known = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = BUILD / f"{known}.so"
    if library.exists():
        return library
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            torch_folder = Path(torch.__file__).parent
            include, lib = torch_folder / "include", torch_folder / "lib"
            made = library.with_suffix(f".{os.getpid()}")
            command = [
                "g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-w", f"-isystem{include}",
                f"-isystem{include}/torch/csrc/api/include", str(SOURCE), "-o", str(made), f"-L{lib}", "-ltorch_cpu",
                "-lc10", f"-Wl,-rpath,{lib}",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S)
            if done.returncode:
                raise RuntimeError(f"the stand-in device does not compile:\n{done.stderr[-4000:]}")
            made.rename(library)
    return library


class Properties(NamedTuple):
    name: str
    uuid: str


def _module() -> types.ModuleType:
    """What ``torch.standin`` is: the functions that torch's own device modules have in common."""
    module: Any = types.ModuleType(f"torch.{KIND}")
    ops = torch.ops.standin

    def index_of(device: Any = None) -> int:
        index = device if isinstance(device, int) else None if device is None else torch.device(device).index
        return ops.current_device() if index is None else index

    @contextlib.contextmanager
    def stream(which: torch.Stream | None) -> Iterator[None]:
        before = torch.accelerator.current_stream(which.device)
        torch.accelerator.set_stream(which)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)

    def seed_all(seed: int) -> None:
        for index in range(ops.device_count()):
            ops.seed(seed, index)

    def properties(device: Any = None) -> Properties:
        visible = os.environ.get("STANDIN_NAMES", "").split(",")
        index = index_of(device)
        return Properties("a stand-in", visible[index] if index < len(visible) and visible[index] else f"card-{index}")

    module.is_available = lambda: ops.device_count() > 0
    module.device_count = lambda: ops.device_count()
    module.current_device = lambda: ops.current_device()
    module.set_device = lambda device: torch.accelerator.set_device_index(index_of(device))
    module.synchronize = lambda device=None: torch.accelerator.synchronize(index_of(device))
    module.current_stream = lambda device=None: torch.accelerator.current_stream(index_of(device))
    module.device = lambda device: torch.accelerator.device_index(index_of(device))
    module.stream, module.Stream, module.Event = stream, torch.Stream, torch.Event
    module.get_rng_state = lambda device=None: ops.rng_state(index_of(device))
    module.set_rng_state = lambda state, device=None: ops.set_rng_state(state, index_of(device))
    module.manual_seed = lambda seed: ops.seed(seed, index_of())
    module.manual_seed_all = seed_all
    module.get_device_properties = properties
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module._is_in_bad_fork = lambda: False
    return module


def load() -> None:
    """Register the device with torch, in this process."""
    if hasattr(torch, KIND):
        return
    torch.ops.load_library(str(compiled()))
    torch.utils.rename_privateuse1_backend(KIND)
    torch._register_device_module(KIND, _module())
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


def faults() -> list[str]:
    """What was done in a wrong order so far; they are forgotten then."""
    found: list[str] = torch.ops.standin.take_faults()
    return found


def count(what: str) -> int:
    """How often: "pinned" (memory was allocated), "to pinned" and "from pinned" (copied without waiting), "record",
    "wait" (of events), "synchronize" (of streams)."""
    number: int = torch.ops.standin.count(what)
    return number
