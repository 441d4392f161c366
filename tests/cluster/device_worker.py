"""A worker with a stand-in device, on one of several hosts: its tensors, and the host's, take their own ways."""

from __future__ import annotations

import json
import os

import torch
from tests import device as standin
from tests.device import nccl

import hora.torch as hvd
from hora.engine import session
from hora.transport import device


def main() -> None:
    nccl.install()
    hvd.init()
    where = device.current(hvd.local_rank(), standin.KIND)
    os.environ["STANDIN_NAMES"] = ",".join(f"card {i} of host {hvd.cross_rank()}" for i in range(2))
    mine = torch.full((5,), hvd.rank() + 1.0, device=where)
    total = hvd.allreduce(mine, op=hvd.Sum, name="device")
    on_host = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="host")
    rows = hvd.allgather(torch.ones(hvd.rank() + 1, device=where), name="rows")
    for step in range(hvd.rank() + 1):  # who has less data joins earlier
        hvd.allreduce(mine, name=f"step {step}", op=hvd.Sum)
    said = {
        "backend": type(session.engine().backend).__name__, "transport": session.engine().transport,
        "sums": [total[0].item(), on_host[0].item(), rows.numel()], "last": hvd.join(), "faults": standin.faults(),
        "by": sorted({group.interface for group in nccl.groups}),
    }  # fmt: skip
    print("said " + json.dumps(said), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
