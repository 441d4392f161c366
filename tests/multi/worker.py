"""One rank of a crew of ``hora.torch``. ``python -m tests.multi.worker SOCKET``."""

from __future__ import annotations

import sys

from tests.light import light_torch

if __name__ == "__main__":
    light_torch()

import torch
from tests.multi.body import all_bodies
from tests.multi.serve import serve

import hora.torch as hvd


def main(path: str) -> None:
    torch.set_num_threads(1)
    serve(path, hvd, {name: body.function for name, body in all_bodies().items()}, torch.manual_seed)


if __name__ == "__main__":
    main(sys.argv[1])
