"""Which cores and how many threads each worker of a host gets, so that workers do not fight for cores. Starts nothing.

Frameworks take a thread per core by default; several workers on a host then compute with several threads a core, which
is the first thing that makes training on CPUs scale badly. The rule here:

* The cores that the launcher may use are shared out between the host's workers, all of them, no core twice. A worker's
  cores are neighbours and, where there are enough, of one NUMA node. Whole cores come first; hyperthreads are dealt out
  one by one only when there are more workers than cores.
* A worker computes with as many threads as it has whole cores. ``--threads-per-worker N`` sets another number.
* More workers than CPUs, or more threads than a worker's share has CPUs: nothing is bound, and the kernel shares out.

GPUs go by local rank: a worker sees all GPUs of its host and takes ``torch.cuda.set_device(hvd.local_rank())``. Where
each task was given GPUs of its own (Slurm's ``--gpus-per-task``) it sees fewer than there are workers; ``gpu_for`` is
the rule that is right in both cases.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from hora.errors import UsageError

__all__ = ["Cpu", "Topology", "cpus_for", "environment", "gpu_for", "ranges", "read_topology"]

# What the libraries under the frameworks read. TensorFlow's second pool only runs independent operations side by side.
_COMPUTE = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "TF_NUM_INTRAOP_THREADS",
)  # fmt: skip
_INTER = "TF_NUM_INTEROP_THREADS"
_MOST_INTER = 2


class Cpu(NamedTuple):
    """Where a logical CPU is: its NUMA node, and its core, named by the first of the CPUs that share it."""

    node: int
    core: int


Topology = Mapping[int, Cpu]
T = TypeVar("T")


@functools.cache
def read_topology(root: Path = Path("/sys/devices/system")) -> Topology:
    """The machine's CPUs as the kernel reports them; empty where it does not.

    >>> read_topology(Path("/nonexistent"))
    {}
    """
    nodes: dict[int, int] = {}
    for path in root.glob("node/node[0-9]*/cpulist"):
        with contextlib.suppress(OSError, ValueError):
            nodes.update(dict.fromkeys(_numbers(path.read_text()), int(path.parent.name.removeprefix("node"))))
    found = {}
    for path in root.glob("cpu/cpu[0-9]*/topology/thread_siblings_list"):
        with contextlib.suppress(OSError, ValueError):
            number = int(path.parents[1].name.removeprefix("cpu"))
            found[number] = Cpu(nodes.get(number, 0), min(_numbers(path.read_text())))
    return found


def cpus_for(
    local_rank: int,
    local_size: int,
    allowed: Sequence[int],
    topology: Topology | None = None,
    *,
    threads: int | None = None,
) -> tuple[int, ...]:
    """The CPUs to bind a worker to; none if it must not be bound: more workers, or more ``threads``, than CPUs.

    >>> [cpus_for(rank, 2, range(6), topology={}) for rank in (0, 1)]
    [(0, 1, 2), (3, 4, 5)]
    >>> two_threads_a_core = {cpu: Cpu(node=0, core=cpu % 2) for cpu in range(4)}
    >>> [cpus_for(rank, 2, range(4), two_threads_a_core) for rank in (0, 1)]
    [(0, 2), (1, 3)]
    >>> cpus_for(0, 5, range(4), topology={})
    ()
    >>> cpus_for(0, 2, range(4), topology={}, threads=3)
    ()
    """
    mine = _cpus_of(local_rank, local_size, allowed, read_topology() if topology is None else topology)
    return mine if threads is None or threads <= len(mine) else ()


def environment(
    local_rank: int,
    local_size: int,
    allowed: Sequence[int],
    *,
    threads: int | None,
    bind: bool,
    env: Mapping[str, str],
    topology: Topology | None = None,
) -> dict[str, str]:
    """The variables that tell a worker's libraries how many threads to use; those that ``env`` has already stay.

    Args:
        threads: what ``--threads-per-worker`` says; it beats ``env``. None: what ``OMP_NUM_THREADS`` in ``env`` says,
            and otherwise the worker's share.
        bind: whether the worker is bound to ``cpus_for`` it; then the whole cores among them are its share.

    >>> environment(0, 2, range(8), threads=None, bind=True, env={"MKL_NUM_THREADS": "1"}, topology={})
    {'OMP_NUM_THREADS': '4', 'OPENBLAS_NUM_THREADS': '4', 'NUMEXPR_NUM_THREADS': '4',
     'TF_NUM_INTRAOP_THREADS': '4', 'TF_NUM_INTEROP_THREADS': '2'}
    >>> environment(0, 2, range(8), threads=None, bind=True, env={"OMP_NUM_THREADS": "1"})["OPENBLAS_NUM_THREADS"]
    '1'
    """
    known = read_topology() if topology is None else topology
    if threads is not None:
        if threads < 1:
            raise UsageError(f"--threads-per-worker {threads}: a worker needs a thread. Give a number, at least 1.")
        count, kept = threads, set()
    else:
        kept = {name for name in (*_COMPUTE, _INTER) if env.get(name)}
        count = _first_number(env.get("OMP_NUM_THREADS", "")) or _threads(local_rank, local_size, allowed, bind, known)
    values = {**dict.fromkeys(_COMPUTE, count), _INTER: min(count, _MOST_INTER)}
    return {name: str(value) for name, value in values.items() if name not in kept}


def gpu_for(local_rank: int, visible: int) -> int:
    """The device that a worker takes of the ``visible`` ones: its local rank, starting again where those run out.

    >>> [gpu_for(rank, 4) for rank in range(4)]     # every worker sees the host's four
    [0, 1, 2, 3]
    >>> [gpu_for(rank, 1) for rank in range(4)]     # each sees only its own
    [0, 0, 0, 0]
    """
    if visible < 1:
        raise UsageError(f"local rank {local_rank} sees no GPU. Run on CPUs, or ask the scheduler for GPUs.")
    return local_rank % visible


def ranges(cpus: Sequence[int]) -> str:
    """CPUs as the kernel and Slurm write them.

    >>> ranges((0, 1, 2, 3, 8, 12, 13))
    '0-3,8,12-13'
    """
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


# ---- the sharing ----


def _cpus_of(local_rank: int, local_size: int, allowed: Sequence[int], topology: Topology) -> tuple[int, ...]:
    nodes = _cores_by_node(allowed, local_size, topology)
    count = sum(map(len, nodes))
    if local_size > count:
        return ()
    if local_size <= len(nodes):  # whole nodes each
        mine = [core for node in _share(nodes, local_rank, local_size) for core in node]
        return tuple(sorted(cpu for core in mine for cpu in core))
    for node, workers in zip(nodes, _workers_by_node(nodes, local_size), strict=True):
        if local_rank < workers:
            return tuple(sorted(cpu for core in _share(node, local_rank, workers) for cpu in core))
        local_rank -= workers
    raise UsageError(f"there is no local rank {local_rank} among {local_size}. Ranks count from 0.")


def _cores_by_node(allowed: Sequence[int], local_size: int, topology: Topology) -> list[list[list[int]]]:
    """The allowed CPUs as nodes of cores of CPUs; with more workers than cores every CPU counts as a core."""
    where = {cpu: topology.get(cpu, Cpu(0, cpu)) for cpu in sorted(set(allowed))}
    apart = local_size > len(set(where.values()))
    nodes: dict[int, dict[tuple[int, int], list[int]]] = {}
    for cpu, place in where.items():
        nodes.setdefault(place.node, {}).setdefault((place.core, cpu if apart else 0), []).append(cpu)
    return [[cores[key] for key in sorted(cores)] for _, cores in sorted(nodes.items())]


def _workers_by_node(nodes: Sequence[Sequence[object]], local_size: int) -> list[int]:
    """How many workers each node takes: each goes where it finds most cores for itself."""
    workers = [0] * len(nodes)
    for _ in range(local_size):
        best = max(range(len(nodes)), key=lambda n: (len(nodes[n]) / (workers[n] + 1), -n))
        workers[best] += 1
    return workers


def _share(things: Sequence[T], index: int, parts: int) -> Sequence[T]:
    return things[index * len(things) // parts : (index + 1) * len(things) // parts]


def _threads(local_rank: int, local_size: int, allowed: Sequence[int], bind: bool, topology: Topology) -> int:
    """The whole cores of a worker's share, at least one."""
    cores = len({topology.get(cpu, Cpu(0, cpu)) for cpu in allowed})
    if bind and local_size <= cores:
        mine = _cpus_of(local_rank, local_size, allowed, topology)
        return len({topology.get(cpu, Cpu(0, cpu)) for cpu in mine})
    return max(1, cores // local_size)


def _numbers(text: str) -> list[int]:
    """The numbers of a list such as ``0-3,8``."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _first_number(text: str) -> int | None:
    """The first number of a list for nested loops, as OpenMP allows, which is the outermost."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and int(first) > 0 else None
