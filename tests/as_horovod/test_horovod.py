"""An unchanged Horovod script runs under ``hora run --as-horovod``."""

from __future__ import annotations

import sys
from pathlib import Path

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
from horovod.common.util import gpu_available, is_version_greater_equal_than, num_rank_is_power_2
from horovod.torch.mpi_ops import Average, Sum, allreduce_async, poll, synchronize
from horovod.torch.mpi_ops import handle_average_backwards_compatibility as meant
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
import hora

assert horovod.__version__ == "0.28.1" and horovod.run is run is hora.run
hvd.init()
assert HorovodBasics(__file__ if "__file__" in globals() else "", "x").rank() == hvd.rank()
assert not hvd.sycl_built() and not HorovodBasics().sycl_built()
assert extension_available("torch") and not extension_available("mxnet")
assert split_list([1, 2, 3], 2) == [[1, 2], [3]] and is_iterable([]) and not is_iterable(3)
total = hvd.allreduce(torch.ones(3) * (hvd.rank() + 1), op=hvd.Sum)
assert total.tolist() == [3.0] * 3, total
assert synchronize(allreduce_async(torch.ones(2), name="a", op=Average)).tolist() == [1.0, 1.0]
assert broadcast_object({"rank": hvd.rank()}, root_rank=1) == {"rank": 1}
assert hvd.optimizer.DistributedOptimizer is DistributedOptimizer is hvd.DistributedOptimizer
assert hvd.SyncBatchNorm is SyncBatchNorm is hvd.sync_batch_norm.SyncBatchNorm
assert meant(None, None) is meant(Average, None) is Average
fresh = torch.nn.Linear(2, 1)
broadcast_optimizer_state(torch.optim.Adam(fresh.parameters()), root_rank=0)
assert fresh.weight.grad.tolist() == [[0.0, 0.0]]
assert num_rank_is_power_2(4) and not num_rank_is_power_2(6) and not gpu_available("torch")
assert is_version_greater_equal_than(torch.__version__, "1.5.0")
print("fine", hvd.rank(), hvd.size())
"""

# What Horovod's PyTorch examples do with it: every option, one after the other.
TRAINING = """
import torch
import horovod
import horovod.torch as hvd

hvd.init()
torch.manual_seed(42 + hvd.rank())


def train(use_adasum=False, fp16=False, predivide=1.0, passes=1, clip=False):
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), hvd.SyncBatchNorm(5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    scale = hvd.size() if not use_adasum else hvd.local_size() if hvd.nccl_built() and torch.cuda.is_available() else 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * scale, momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=passes,
        compression=hvd.Compression.fp16 if fp16 else hvd.Compression.none,
        op=hvd.Adasum if use_adasum else hvd.Average, gradient_predivide_factor=predivide,
    )
    dataset = torch.utils.data.TensorDataset(torch.randn(64, 6), torch.randint(3, (64,)))
    sampler = torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for data, target in torch.utils.data.DataLoader(dataset, batch_size=8 * passes, sampler=sampler):
            optimizer.zero_grad()
            for part in range(0, len(data), 8):
                loss = torch.nn.functional.cross_entropy(model(data[part : part + 8]), target[part : part + 8])
                loss.div_(passes)
                loss.backward()
            if clip:
                optimizer.synchronize()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
    for name, value in model.named_parameters():
        assert torch.equal(value, hvd.broadcast(value.detach(), 0, name=name)), name
    return hvd.allreduce(loss.detach(), name="loss").item()


train()
train(fp16=True)
train(predivide=2.0)
train(passes=2)
train(clip=True)
train(use_adasum=True)
last = hvd.broadcast(torch.tensor(hvd.rank()), root_rank=1, name="resume_from_epoch").item()
print("trained", last)
"""

# What Horovod's own test suite counts on, beyond what its documentation says.
SUITE = """
import torch
import horovod.torch as hvd
from horovod.common.util import _cache
from horovod.runner.common.util.env import get_env_rank_and_size
from horovod.runner.launch import gloo_built, mpi_built, run_commandline
from horovod.runner.util.threads import in_thread

state = [1, 2]
once = _cache(lambda: state.pop())
assert once() == once() == 2 and state == [1]

seen = []
in_thread(seen.append, (1,)).join()
in_thread(seen.pop, (9,), silent=True).join()
assert seen == [1]

before = get_env_rank_and_size()
hvd.init()
rank = hvd.rank()
assert before == (rank, hvd.size())
assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: list(range(hvd.size()))}

# Nothing has finished when it is first asked about, and everything has in the end.
for start in (hvd.allreduce_async, hvd.mpi_ops.reducescatter_async):
    handle = start(torch.ones(4))
    assert not hvd.poll(handle)
    hvd.barrier()
    while not hvd.mpi_ops.poll(handle):
        pass
    assert hvd.synchronize(handle).max() == 1

# An operation that a collective does not have is a RuntimeError there, and a ValueError here: it is both.
for kind in (RuntimeError, ValueError, NotImplementedError):
    try:
        hvd.reducescatter(torch.ones(4), op=hvd.Adasum)
    except kind as error:
        assert "Adasum" in str(error)
    else:
        raise AssertionError(kind)

# Objects pair, however many unnamed calls a rank has made before; also if their types differ.
if rank == 0:
    hvd.join()
else:
    try:
        hvd.allgather(torch.ones(2))
    except RuntimeError:
        hvd.join()
    else:
        raise AssertionError
assert hvd.allgather_object(rank or "zero") == ["zero", 1]
assert hvd.broadcast_object("one" if rank else 0, root_rank=1) == "one"
assert hvd.allgather_object(rank, name="ranks", process_set=hvd.global_process_set) == [0, 1]

# The names of an optimizer's parameters: numbered without names, with and without Adasum.
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
groups = [{"params": net[0].parameters()}, {"params": net[1].parameters()}]
for op in (hvd.Average, hvd.Adasum):
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), op=op)
    names = optimizer._parameter_names
    assert len(set(names.values())) == 4 and set(names) == set(net.parameters())
    assert hvd.allgather_object(sorted(names.values()))[0] == sorted(names.values())
    groups = [{"params": list(net.parameters())}]
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
assert optimizer._parameter_names[net[1].bias] == "1.bias"
print("as the suite has it")
"""

ELASTIC = """
import torch
import horovod.torch as hvd
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.elastic import ElasticSampler, TorchState
from horovod.torch.elastic.state import ModelStateHandler

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(3, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
sampler = ElasticSampler(range(8))
failed = []


@hvd.elastic.run
def train(state, factor):
    start = state.batch
    for state.batch in range(start, 6):
        optimizer.zero_grad()
        (factor * model(torch.ones(1, 3)).sum()).backward()
        optimizer.step()
        state.commit()
        if state.batch == 3 and not failed:
            failed.append(True)
            state.batch = 99
            raise HorovodInternalError("as Horovod's tests do")
    return [round(float(w), 6) for w in model.weight[0]]


state = TorchState(model=model, optimizer=optimizer, sampler=sampler, batch=0, epoch=0)
state.register_reset_callbacks([lambda: print("reset", hvd.size())])
weights = train(state, 2.0)
assert hvd.allgather_object(weights) == [weights] * hvd.size(), weights
assert state.batch == 5 and len(sampler) == 8 // hvd.size()
assert isinstance(ModelStateHandler(model).capture(), dict) and ObjectState(None, hvd.rank, a=1).a == 1
print("trained", callable(run_fn))
"""


def test_an_unchanged_script() -> None:
    done = run_hora("run", "-np", "2", "--as-horovod", *python(SCRIPT), timeout_s=90)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:fine 0 2", "[1]<stdout>:fine 1 2"]


def test_training_as_horovods_examples_do_it() -> None:
    done = run_hora("run", "-np", "2", "--as-horovod", *python(TRAINING), timeout_s=90)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:trained 1", "[1]<stdout>:trained 1"]


def test_what_horovods_own_tests_count_on() -> None:
    done = run_hora("run", "-np", "2", "--as-horovod", *python(SUITE), timeout_s=90)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:as the suite has it" for rank in (0, 1)]


def test_elastic_at_a_fixed_number_of_workers() -> None:
    done = run_hora("run", "-np", "2", "--as-horovod", *python(ELASTIC), timeout_s=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("reset 2") == done.stdout.count("trained True") == 2


def test_without_the_flag_there_is_no_horovod() -> None:
    done = run_hora("run", "-np", "1", sys.executable, "-c", "import horovod")
    assert done.returncode == 1 and "ModuleNotFoundError" in done.stderr


DISCOVERY = """
import sys
from horovod.runner.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript

script = HostDiscoveryScript(sys.argv[1], 3)
assert isinstance(script, HostDiscovery) and script.find_available_hosts_and_slots() == {"h1": 2, "h2": 3}
fixed = FixedHosts({"h1": 2})
assert fixed.find_available_hosts_and_slots() == {"h1": 2}
fixed.set({"h2": 1})
assert fixed.find_available_hosts_and_slots() == {"h2": 1}
print("found")
"""


def test_hosts_are_discovered_by_horovods_names(tmp_path: Path) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho h1:2\necho h2\n")
    script.chmod(0o755)
    done = run_hora("run", "--as-horovod", "-np", "1", *python(DISCOVERY), str(script))
    assert done.returncode == 0 and "found" in done.stdout, done.stdout + done.stderr
