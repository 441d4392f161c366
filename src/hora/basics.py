"""What every front-end offers besides tensors: who and where a worker is, process sets, errors, reduce operations.

``from hora.basics import *`` is how a front-end gets all of it: a name that is added here, or an error that is added to
``hora.errors``, is in all of them. Most of it is Horovod's, with its meanings.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

from hora import errors as _errors
from hora.engine import session
from hora.engine.preempt import PREEMPTED_EXIT_CODE, preempted
from hora.engine.process_set import ProcessSet, add_process_set, global_process_set, remove_process_set
from hora.engine.session import is_initialized, rank, shutdown, size, start_timeline, stop_timeline
from hora.errors import *  # noqa: F403
from hora.types import ReduceOp as _ReduceOp

__all__ = [
    *_errors.__all__,
    "PREEMPTED_EXIT_CODE",
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "preempted",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

Average, Sum, Adasum = _ReduceOp.AVERAGE, _ReduceOp.SUM, _ReduceOp.ADASUM
Min, Max, Product = _ReduceOp.MIN, _ReduceOp.MAX, _ReduceOp.PRODUCT


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Start Hora in this process; returns once all workers have called it. Called again while it runs, does nothing.

    Args:
        comm: all workers (None), a list of the ranks that form a world of their own, or an mpi4py communicator.
        process_sets: sets to make known, the same on all ranks; "dynamic" is Horovod's word for sets that are added
            later, which is always possible here.

    >>> init()
    >>> rank(), size(), local_rank()      # alone, unless a launcher started several
    (0, 1, 0)
    >>> shutdown()
    """
    session.init(comm, process_sets)


# ---- where this process is ----


def local_rank() -> int:
    """This worker's number on its host: which GPU to take."""
    return session.engine().world.local_rank


def local_size() -> int:
    """How many workers are on this host."""
    return session.engine().world.local_size


def cross_rank() -> int:
    """The number of this host among those that have a worker with this local rank."""
    return session.engine().world.cross_rank


def cross_size() -> int:
    """How many hosts have a worker with this local rank."""
    return session.engine().world.cross_size


def is_homogeneous() -> bool:
    """Whether every host has the same number of workers."""
    return session.engine().world.homogeneous


# ---- what is there ----


def mpi_threads_supported() -> bool:
    """True: Hora never calls MPI from two threads at once, so any MPI will do."""
    session.engine()
    return True


def mpi_built() -> bool:
    """Whether MPI can carry data (mpi4py is installed)."""
    return importlib.util.find_spec("mpi4py") is not None


def mpi_enabled() -> bool:
    """Whether MPI carries data now."""
    return session.engine().transport.endswith("mpi")


def gloo_built() -> bool:
    """Whether Gloo can carry data (torch is installed)."""
    return importlib.util.find_spec("torch") is not None


def gloo_enabled() -> bool:
    """Whether Hora's own engine is in charge, as it always is: it takes the place of Horovod's Gloo controller."""
    return True


def nccl_built() -> int:
    """The version of NCCL as one number (2.21.5 is 22105), 0 if torch has none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()
    return int(major * 10000 + minor * 100 + patch)


def ddl_built() -> bool:
    """False: IBM's DDL is no more."""
    return False


def ccl_built() -> bool:
    """False: oneCCL is not used."""
    return False


def cuda_built() -> bool:
    """Whether torch was built for CUDA."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether torch was built for ROCm."""
    torch = sys.modules.get("torch")
    return torch is not None and getattr(torch.version, "hip", None) is not None
