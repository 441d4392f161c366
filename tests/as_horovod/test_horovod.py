"""An unchanged Horovod script runs under ``hora run --as-horovod``."""

from __future__ import annotations

import sys

from tests.launch.jobs import python, run_hora

SCRIPT = """
import torch
import horovod
import horovod.torch as hvd
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import env, extension_available, gloo_built, is_iterable, split_list
from horovod.runner import run
from horovod.torch.compression import Compression
from horovod.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from horovod.torch.mpi_ops import Average, Sum, allreduce_async, poll, synchronize
import hora

assert horovod.__version__ == "0.28.1" and horovod.run is run is hora.run
hvd.init()
assert HorovodBasics(__file__ if "__file__" in globals() else "", "x").rank() == hvd.rank()
assert extension_available("torch") and not extension_available("mxnet")
assert split_list([1, 2, 3], 2) == [[1, 2], [3]] and is_iterable([]) and not is_iterable(3)
total = hvd.allreduce(torch.ones(3) * (hvd.rank() + 1), op=hvd.Sum)
assert total.tolist() == [3.0] * 3, total
assert synchronize(allreduce_async(torch.ones(2), name="a", op=Average)).tolist() == [1.0, 1.0]
assert broadcast_object({"rank": hvd.rank()}, root_rank=1) == {"rank": 1}
print("fine", hvd.rank(), hvd.size())
"""


def test_an_unchanged_script() -> None:
    done = run_hora("run", "-np", "2", "--as-horovod", *python(SCRIPT), timeout_s=90)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:fine 0 2", "[1]<stdout>:fine 1 2"]


def test_without_the_flag_there_is_no_horovod() -> None:
    done = run_hora("run", "-np", "1", sys.executable, "-c", "import horovod")
    assert done.returncode == 1 and "ModuleNotFoundError" in done.stderr
