"""The way to start workers on several hosts, through an agent on each. Same promises as on one host, same reports.

The agents are sent on their way before anything else. Whatever is needed to talk with them (``remote_site``) is
imported and made meanwhile.
"""

from __future__ import annotations

import selectors
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hora.config import env
from hora.launch.job import Job
from hora.launch.job_output import JobOutput
from hora.launch.planning.plan import shares
from hora.launch.starters.starter import Starter

if TYPE_CHECKING:
    from hora.launch.site import ElasticSite
    from hora.launch.ways.remote_site import RemoteSite

__all__ = ["RemoteLaunch"]


class RemoteLaunch:
    """The way to start workers with agents; ``starter`` brings those to their hosts."""

    def __init__(self, starter: Starter, *, interfaces: Sequence[str] = ()) -> None:
        self.name, self._starter, self._interfaces = starter.name, starter, tuple(interfaces)

    def site(self, job: Job, record: JobOutput, selector: selectors.BaseSelector) -> RemoteSite:
        # Should the launcher be killed, they need no guardian: an agent without an order, or without its launcher,
        # ends, and with it what carries it.
        carriers = self._starter.start(_hosts(job))
        try:
            from hora.launch.ways.remote_site import RemoteSite

            return RemoteSite(job, self._starter, carriers, self._interfaces, record, selector)
        except BaseException:
            for carrier in carriers:
                carrier.stop()
            raise

    def elastic_site(self, job: Job, record: JobOutput, selector: selectors.BaseSelector) -> ElasticSite:
        from hora.launch.ways.elastic_remote import ElasticRemoteSite as ElasticRemote

        return ElasticRemote(job, self._starter, self._interfaces, record, selector)

    def preview(self, job: Job) -> list[str]:
        before, passed = env.environ(), self._starter.environment(job.environment)
        lines = [f"agent on {host}: {command}" for host, command in self._starter.commands(_hosts(job))]
        for share in shares(job.plan, job.name):
            for task in share.tasks:
                new = {name: value for name, value in passed.items() if before.get(name) != value}
                words = [f"{name}={shlex.quote(value)}" for name, value in sorted({**new, **task.environment}.items())]
                lines.append(f"rank {task.rank} on {share.host}: {' '.join(words)} {shlex.join(job.command)}")
        return lines


def _hosts(job: Job) -> list[str]:
    return [host.name for host in job.plan.hosts]
