"""A worker that trains on the stand-in device: ``python -m tests.workloads.on_standin WORKLOAD OPTIONS_AS_JSON``."""

from __future__ import annotations

import sys

from tests.light import light_torch

if __name__ == "__main__":
    light_torch()

import msgspec
import torch
from tests import device as standin
from tests.device import nccl

from hora.workloads import options_of
from hora.workloads.start import train_here

if __name__ == "__main__":
    torch.set_num_threads(1)
    # Every device draws other random numbers, and what is learned is compared.
    torch.nn.functional.dropout = torch.nn.functional.dropout2d = lambda values, *_, **__: values
    nccl.install()
    name, document = sys.argv[1:]
    code = train_here(msgspec.json.decode(document, type=options_of(name)), bf16_tried=True)
    for fault in standin.faults():
        sys.exit(fault)
    by_nccl = sum(call.startswith("ncclAll") for call in nccl.recorded)
    print(f"{torch.standin.current_device()} {bool(by_nccl)} {standin.count('from pinned') > 0}", flush=True)  # type: ignore[attr-defined]
    sys.exit(code)
