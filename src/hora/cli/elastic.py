"""The flags of an elastic job: horovodrun's, and ``--spares``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hora.cli.workers import option
from hora.launch.elastic.choose import FLAGS

__all__ = ["OPTIONS", "is_asked"]

OPTIONS = (
    option("--min-np", "--min-num-proc", "min_np", type=int, metavar="N",
           help="Elastic: fewest workers to train with; with fewer the job waits.  [default: -np]"),
    option("--max-np", "--max-num-proc", "max_np", type=int, metavar="N",
           help="Elastic: most workers to use.  [default: -np, or all slots that the discovery script finds]"),
    option("--host-discovery-script", metavar="COMMAND",
           help="Elastic: prints the available hosts, one 'name:slots' per line; run every second."),
    option("--slots-per-host", type=int, metavar="N", help="Elastic: slots of a host that is listed without a number."),
    option("--elastic-timeout", type=int, metavar="SECONDS",
           help="Elastic: how long to wait for --min-np workers, or for a lost one to return.  [default: 600]"),
    option("--reset-limit", type=int, metavar="N", help="Elastic: how often workers may change.  [default: no limit]"),
    option("--blacklist-cooldown-range", type=int, nargs=2, metavar="MIN MAX",
           help="Elastic: seconds a host is not used after losing a worker, at first and at most.  [default: 1 60]"),
    option("--spares", type=int, metavar="N", help="Elastic: standby workers to keep ready.  [default: 0]"),
)  # fmt: skip


def is_asked(given: Mapping[str, Any]) -> bool:
    """Whether any flag asks for an elastic job.

    >>> is_asked({"np": 2, "min_np": 1}), is_asked({"np": 2})
    (True, False)
    """
    return any(given.get(name) is not None for name in FLAGS)
