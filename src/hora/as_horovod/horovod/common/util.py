"""``horovod.common.util``: probes of the build, and the odds and ends that scripts and tests import from there."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from hora.engine import session

__all__ = [
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

T = TypeVar("T")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether Hora has a front-end of that name whose framework is installed."""
    return all(importlib.util.find_spec(name) is not None for name in (f"hora.{ext_base_name}", ext_base_name))


def check_extension(ext_name: str, *names: str) -> None:
    """Raise ImportError unless the front-end ``horovod.<framework>`` is there."""
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(
            f"{ext_name} is not available: Hora has no such front-end, or its framework is not installed."
        )


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Nothing to check: Hora is not built against a framework."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether tensors are moved by the GPU; they are not yet."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    return bool(session.mpi_built())


def gloo_built(verbose: bool = False) -> bool:
    return bool(session.gloo_built())


def nccl_built(verbose: bool = False) -> bool:
    return bool(session.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    return bool(session.ddl_built())


def ccl_built(verbose: bool = False) -> bool:
    return bool(session.ccl_built())


@contextlib.contextmanager
def env(**changes: str | None) -> Iterator[None]:
    """Set environment variables inside a ``with``; None leaves one as it is."""
    wanted = {name: value for name, value in changes.items() if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank.bit_count() == 1


def split_list(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Cut a sequence into ``parts`` pieces whose lengths differ by one at most, the longer ones first."""
    each, extra = divmod(len(items), parts)
    cuts = [part * each + min(part, extra) for part in range(parts + 1)]
    return [items[cuts[part] : cuts[part + 1]] for part in range(parts)]


def is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True
