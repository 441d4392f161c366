"""How long an allreduce takes: latency and bandwidth inside and between hosts, as a ring, a tree, or host by host.

Every formula here is the textbook's, and takes numbers or numpy arrays alike, so that what predicts a step is also
what is fitted to a table. Nothing here knows about overlap: see ``step.py``.

>>> cluster = Cluster(workers=8, per_host=4)
>>> cluster.hosts
2
>>> inside, between = Link(10e9, 5e-6), Link(5e9, 20e-6)
>>> round(1e3 * float(traffic(cluster, "ring").seconds(102e6, inside, between)), 2)
35.98
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from hora.errors import UsageError

__all__ = ["ALGORITHMS", "Algorithm", "Cluster", "Link", "Number", "Traffic", "parse_link", "traffic"]

Number: TypeAlias = float | NDArray[np.float64]
Algorithm = Literal["ring", "tree", "hierarchical"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@dataclass(frozen=True)
class Link:
    """What a message meets on its way to the next worker: ``latency_s`` once, and ``bytes_per_s``."""

    bytes_per_s: Number
    latency_s: Number = 0.0


@dataclass(frozen=True)
class Cluster:
    """Workers filled into hosts of ``per_host`` each.

    >>> Cluster(24, 4).hosts, Cluster(3, 4).local, Cluster(9, 4).hosts
    (6, 3, 3)
    """

    workers: int
    per_host: int

    def __post_init__(self) -> None:
        if self.workers < 1 or self.per_host < 1:
            raise UsageError(
                f"a cluster of {self.workers} workers with {self.per_host} a host. "
                "There is no step without a worker. Give at least one of each"
            )

    @property
    def hosts(self) -> int:
        return math.ceil(self.workers / self.per_host)

    @property
    def local(self) -> int:
        """Workers on the fullest host."""
        return min(self.workers, self.per_host)


@dataclass(frozen=True)
class Traffic:
    """What an allreduce asks of the links: turns, which cost a latency each, and how often the bytes pass."""

    inside_turns: Number
    inside_share: Number
    between_turns: Number
    between_share: Number

    def seconds(self, size: Number, inside: Link, between: Link) -> Number:
        """A message between hosts passes through both ends' insides: the slower of the two sets its pace."""
        slower = np.minimum(inside.bytes_per_s, between.bytes_per_s)
        turning = self.inside_turns * inside.latency_s + self.between_turns * between.latency_s
        return turning + size * (self.inside_share / inside.bytes_per_s + self.between_share / slower)


def traffic(cluster: Cluster, algorithm: Algorithm) -> Traffic:
    """The traffic of an allreduce.

    ``ring`` is one ring through all workers: each link carries 2(n-1)/n of the bytes in 2(n-1) turns. ``tree`` goes up
    and down a pipelined tree: 2 log2(n) turns, twice the bytes on every link. ``hierarchical`` sums inside each host
    first, and only one worker a host speaks with other hosts.

    >>> traffic(Cluster(4, 4), "ring")
    Traffic(inside_turns=6, inside_share=1.5, between_turns=0, between_share=0.0)
    >>> traffic(Cluster(8, 4), "ring")
    Traffic(inside_turns=0, inside_share=0.0, between_turns=14, between_share=1.75)
    >>> traffic(Cluster(8, 4), "tree")
    Traffic(inside_turns=0, inside_share=0.0, between_turns=6, between_share=2.0)
    >>> traffic(Cluster(8, 4), "hierarchical")
    Traffic(inside_turns=6, inside_share=1.5, between_turns=2, between_share=1.0)
    """
    n = cluster.workers
    if n == 1:
        return Traffic(0, 0.0, 0, 0.0)
    if algorithm == "hierarchical":
        return Traffic(*_ring(cluster.local), *_ring(cluster.hosts))
    asked = _ring(n) if algorithm == "ring" else (2 * math.ceil(math.log2(n)), 2.0)
    return Traffic(*asked, 0, 0.0) if cluster.hosts == 1 else Traffic(0, 0.0, *asked)


def _ring(n: int) -> tuple[int, float]:
    return 2 * (n - 1), 2 * (n - 1) / n


_RATES = {"gbit": 1e9 / 8, "mbit": 1e6 / 8, "gb": 1e9, "mb": 1e6}


def parse_link(text: str) -> Link:
    """A link as it is written on a command line: a rate, and perhaps a latency in microseconds.

    >>> parse_link("10gbit:50us")
    Link(bytes_per_s=1250000000.0, latency_s=5e-05)
    >>> parse_link("5GB")
    Link(bytes_per_s=5000000000.0, latency_s=0.0)
    """
    rate, _, latency = text.strip().lower().removesuffix("/s").partition(":")
    for unit, factor in _RATES.items():
        if rate.endswith(unit):
            try:
                found = Link(float(rate.removesuffix(unit)) * factor, float(latency.removesuffix("us") or 0) / 1e6)
            except ValueError:
                break
            if found.bytes_per_s > 0 and found.latency_s >= 0:
                return found
            break
    raise UsageError(
        f"{text!r} is no link. Rate and latency decide how long gradients travel. "
        "Write it as 10gbit:50us, 100mbit:200us or 5GB (bytes), with the latency in microseconds or left out"
    )
