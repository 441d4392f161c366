"""One rank of a crew: runs the bodies it is told to and reports. ``python -m tests.multi.worker SOCKET``.

It is told which body to run, and reports the result, over a Unix socket of the test process and not through Hora, so
that a body that breaks a collective cannot take the reporting with it. One JSON object a line, both ways.
"""

from __future__ import annotations

import faulthandler
import json
import socket
import sys
import traceback

import torch
from tests.multi.body import all_bodies

import hora.torch as hvd


def main(path: str) -> None:
    torch.set_num_threads(1)
    bodies = all_bodies()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        lines = connection.makefile("rw", buffering=1)
        print(json.dumps({"rank": rank}), file=lines)
        for line in lines:
            task = json.loads(line)
            # A body that hangs must say where before the test process gives up on the crew.
            faulthandler.dump_traceback_later(task["timeout_s"], file=sys.stderr)
            failure = ""
            try:
                if not hvd.is_initialized():
                    hvd.init()
                torch.manual_seed(rank)
                bodies[task["body"]].function(hvd, rank, size)
            except BaseException:
                failure = traceback.format_exc()
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps({"rank": rank, "failure": failure}), file=lines)
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
