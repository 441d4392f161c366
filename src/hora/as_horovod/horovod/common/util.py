"""``horovod.common.util``: probes of the build, and the odds and ends that scripts and tests import from there."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from hora import basics
from hora.transport import movers

__all__ = [
    "EXTENSIONS",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

T = TypeVar("T")

EXTENSIONS = ["tensorflow", "torch", "mxnet"]

_cache = functools.cache


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether Hora has a front-end of that name whose framework is installed."""
    return all(importlib.util.find_spec(name) is not None for name in (f"hora.{ext_base_name}", ext_base_name))


def check_extension(ext_name: str, *names: str) -> None:
    """Raise ImportError unless the front-end ``horovod.<framework>`` is there."""
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(
            f"{ext_name} is not available: Hora has no such front-end, or its framework is not installed."
        )


def get_ext_suffix() -> str:
    """How the file name of an extension module ends on this system."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Nothing to check: Hora is not built against a framework."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is a GPU whose tensors are moved without the host: PyTorch's are, by NCCL."""
    return "torch" in ext_base_name and bool(movers.device_kind())


def mpi_built(verbose: bool = False) -> bool:
    return bool(basics.mpi_built())


def gloo_built(verbose: bool = False) -> bool:
    return bool(basics.gloo_built())


def nccl_built(verbose: bool = False) -> bool:
    return bool(basics.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    return bool(basics.ddl_built())


def ccl_built(verbose: bool = False) -> bool:
    return bool(basics.ccl_built())


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


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether one version of three numbers is at least another; what follows the numbers does not count.

    >>> is_version_greater_equal_than("2.13.0+cpu", "2.4.1"), is_version_greater_equal_than("1.10.0", "1.11.0")
    (True, False)
    """

    def numbers(version: str) -> list[int]:
        found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
        if found is None:
            raise ValueError(f"{version!r} is no version of three numbers, such as 2.4.1.")
        return [int(number) for number in found.groups()]

    return numbers(ver) >= numbers(target)


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """A function of ``op`` and the older ``average`` that says which operation is meant."""

    def meant(op: Any, average: bool | None) -> Any:
        if op is not None and average is not None:
            raise ValueError("op and average are both given, and they say the same thing. Give only op.")
        if op is not None:
            return op
        if average is not None:
            warnings.warn("average is deprecated; give op instead", DeprecationWarning, stacklevel=2)
        return reduce_ops.Sum if average is False else reduce_ops.Average

    return meant
