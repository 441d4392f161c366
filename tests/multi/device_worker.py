"""A rank of a crew whose tensors are on the stand-in device: ``python -m tests.multi.device_worker SOCKET``.

The bodies do not know of it: tensors are made on the device by default, and numpy gets at them through the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tests.light import light_torch

if __name__ == "__main__":
    light_torch()

import torch
from tests import device as standin
from tests.device import nccl
from tests.multi import data
from tests.multi.body import all_bodies
from tests.multi.serve import serve

import hora.torch as hvd
from hora.config import env
from hora.engine.table import TableBackend
from hora.transport import device


class _Torch:
    """Torch, for where the bodies get their data from."""

    def __init__(self, where: torch.device) -> None:
        self._where = where

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def from_numpy(self, values: Any) -> torch.Tensor:
        return torch.from_numpy(values).to(self._where)


def live_on(where: torch.device) -> None:
    """From now on tensors are made there."""
    torch.set_default_device(where)
    array, numpy = torch.Tensor.__array__, torch.Tensor.numpy
    data.torch = _Torch(where)  # type: ignore[attr-defined]
    torch.Tensor.__array__ = lambda tensor, *more, **how: array(tensor.cpu(), *more, **how)  # type: ignore[method-assign]
    torch.Tensor.numpy = lambda tensor, **how: numpy(tensor.cpu(), **how)  # type: ignore[method-assign]


def checked(body: Callable[..., Any]) -> Callable[..., Any]:
    """A body during which nothing may be done in a wrong order."""

    def run(*arguments: Any) -> Any:
        standin.faults()
        result = body(*arguments)
        found = standin.faults()
        assert not found, "\n".join(found)
        return result

    return run


def main(path: str) -> None:
    torch.set_num_threads(1)
    nccl.install()
    TableBackend.finds_not_finite = False  # nobody looks into memory of a device
    live_on(device.current(int(env.environ()["HORA_LOCAL_RANK"]), standin.KIND))
    bodies = {name: checked(body.function) for name, body in all_bodies().items()}
    serve(path, hvd, bodies, torch.manual_seed)


if __name__ == "__main__":
    main(sys.argv[1])
