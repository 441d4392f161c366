"""What a supervisor needs of the place where workers run: one host, several, or those of mpirun."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from hora.launch.host.ending import Ending

if TYPE_CHECKING:
    from hora.engine.hub import Hub

__all__ = ["AnySite", "ElasticSite", "Site"]


class AnySite(Protocol):
    """The workers of one job, wherever they run. Used by one thread, which waits on a selector that the site adds to.

    Once started, ``step`` is called whenever the selector wakes and at least every ``longest_wait_s``.
    """

    hub: Hub | None  # what the workers meet at

    def step(self) -> list[Ending]:
        """Take note of what has happened; returns the workers that have ended since."""

    def running(self) -> Mapping[int, str]:
        """Workers that have not ended, each with words to find its process by."""

    def send(self, number: signal.Signals) -> None:
        """Signal every worker that has not ended."""

    def longest_wait_s(self) -> float:
        """How long nothing needs to be done unless the selector wakes."""

    def close(self) -> None:
        """End what is left of the job, everywhere, and hand in what is left of its output."""


class Site(AnySite, Protocol):
    """The site of a job whose workers all start at once. It makes the hub once somebody may need it, and closes it."""

    def start(self) -> None:
        """Begin. Raises EnvironmentUnfit if the job cannot be started."""


class ElasticSite(AnySite, Protocol):
    """The site of an elastic job. Its hub is set before anything is started."""

    secret: bytes | None  # of the job, if workers have to prove that they know it

    def want(self, hosts: Mapping[str, int]) -> None:
        """These hosts, with that many slots, may be used; see that they can be."""

    def usable(self) -> Mapping[str, int]:
        """Those on which workers can be started now."""

    def start(self, worker: int, host: str, slot: int) -> None:
        """Start one. Raises EnvironmentUnfit."""

    def signal_one(self, worker: int, number: signal.Signals) -> None:
        """Signal one, if it runs."""

    def stopped(self) -> Sequence[int]:
        """Those whose process is stopped at this moment, as far as is known."""

    def complaint(self) -> str:
        """A message about hosts that cannot be used; empty if nothing is new."""

    def hopeless(self) -> str:
        """Why no host at all can be used, if that is certain."""
