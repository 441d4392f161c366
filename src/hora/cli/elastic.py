"""The flags of an elastic job: horovodrun's, and ``--spares``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hora.cli.workers import option
from hora.launch.elastic.choose import FLAGS

__all__ = ["OPTIONS", "is_asked"]

OPTIONS = (
    option("--min-np", "--min-num-proc", "min_np", type=int, metavar="N",
           help="Elastic: the fewest workers to go on with; with fewer the job waits. By itself -np."),
    option("--max-np", "--max-num-proc", "max_np", type=int, metavar="N",
           help="Elastic: the most workers to use. By itself -np, or all slots of a --host-discovery-script."),
    option("--host-discovery-script", metavar="COMMAND",
           help="Elastic: prints the hosts there are now, 'name:slots' a line; asked every second."),
    option("--slots-per-host", type=int, metavar="N", help="Elastic: slots of hosts that are named without a number."),
    option("--elastic-timeout", type=int, metavar="S",
           help="Elastic: how long to wait for --min-np workers, or for one that does not come back; 600."),
    option("--reset-limit", type=int, metavar="N", help="Elastic: how often workers may change; by itself any number."),
    option("--blacklist-cooldown-range", type=int, nargs=2, metavar="MIN MAX",
           help="Elastic: how many seconds a host rests after it lost a worker, at first and at most; 1 60."),
    option("--spares", type=int, metavar="N", help="Elastic: workers to keep ready beside those that train; 0."),
)  # fmt: skip


def is_asked(given: Mapping[str, Any]) -> bool:
    """Whether any flag asks for an elastic job.

    >>> is_asked({"np": 2, "min_np": 1}), is_asked({"np": 2})
    (True, False)
    """
    return any(given.get(name) is not None for name in FLAGS)
