"""Where a worker computes: ``--device``, and the state of a device's random numbers.

All functions take any device that torch has a module for; nothing here is CUDA's but cuDNN's choice of algorithms.
"""

from __future__ import annotations

import torch

import hora.torch as hvd
from hora.config import env
from hora.errors import EnvironmentUnfit
from hora.transport import device as devices

__all__ = ["check", "of_this_worker", "random_state", "seeded", "set_random_state"]


def check(wanted: str, flag: str = "--device") -> None:
    """Refuse a device that is not there, with the reason.

    >>> check("cpu")
    >>> check("auto")
    """
    if wanted in ("auto", "cpu"):
        return
    module = devices.module_of(wanted)
    if module is not None and module.is_available():
        return
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    hidden = env.environ().get("CUDA_VISIBLE_DEVICES")
    if wanted == "cuda" and not built:
        why, change = f"torch {torch.__version__} was built without CUDA", "Install a torch for CUDA"
    elif wanted == "cuda" and hidden is not None:
        why, change = f"torch sees no GPU with CUDA_VISIBLE_DEVICES={hidden!r}", "Set it to the GPUs of this host"
    else:
        why, change = (
            "torch sees none on this host",
            "Ask 'hora doctor --gpus' what is missing",
        )
    raise EnvironmentUnfit(f"{flag} {wanted}: {why}, so there is nothing to compute on. {change}, or give {flag} cpu.")


def of_this_worker(wanted: str = "auto") -> torch.device:
    """The device of this rank's place on its host, of those it sees; ``auto``: the CPU if Hora can move data between
    none. It is the current one from now on."""
    check(wanted)
    kind = devices.kind() if wanted == "auto" else wanted
    if kind in ("", "cpu"):
        return torch.device("cpu")
    if kind == "cuda":
        torch.backends.cudnn.benchmark = True  # shapes stay the same: it is worth trying all ways of a convolution once
    return devices.current(hvd.local_rank(), kind)


# A stream's state is a list: the CPU's generator, and the device's if it has one.


def random_state(device: torch.device) -> list[torch.Tensor]:
    own = [] if device.type == "cpu" else [devices.module_of(device.type).get_rng_state(device)]
    return [torch.get_rng_state(), *own]


def set_random_state(state: list[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1 and device.type != "cpu":
        devices.module_of(device.type).set_rng_state(state[1], device)


def seeded(seed: int, device: torch.device) -> list[torch.Tensor]:
    places = [torch.device("cpu"), *([] if device.type == "cpu" else [device])]
    return [torch.Generator(place).manual_seed(seed).get_state() for place in places]
