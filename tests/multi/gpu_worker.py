"""A rank of a crew whose floating-point tensors are taken for a GPU's: ``python -m tests.multi.gpu_worker SOCKET``.

What is not floating point stays on the host, so that both backends are at work in one job. The short cuts that only
host tensors have are closed, as they are for tensors on a GPU.
"""

from __future__ import annotations

import os
import sys

from tests.light import light_torch

if __name__ == "__main__":
    light_torch()

from tests.multi import worker
from tests.transport.fake_cuda import FakeCuda, installed

from hora.engine.split import SplitBackend


def main(path: str) -> None:
    for shortcut in ("immediate", "allocate", "serve", "shares", "finds_not_finite"):
        setattr(SplitBackend, shortcut, None)
    fake = FakeCuda(is_gpu=lambda tensor: tensor.is_floating_point(), identity_of=lambda: f"GPU-{os.getpid()}")
    with installed(fake):
        worker.main(path)


if __name__ == "__main__":
    main(sys.argv[1])
