"""Two hosts on this machine, for trying things by hand and for measuring between hosts. Needs root.

    python -m tests.cluster [--rate 1gbit] COMMAND …

makes hosts h1 and h2 that can be reached by ssh, with links of that speed, and runs the command on a third, ``login``.
Everything is gone when it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

from tests.cluster.hosts import Cluster, missing_for_hosts
from tests.cluster.sshd import Sshd, missing_for_ssh


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", default="", help="what each host may send, such as 1gbit")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run on login")
    given = parser.parse_args()
    if missing := missing_for_hosts() or missing_for_ssh():
        print(f"no hosts can be made here: {missing}", file=sys.stderr)
        return 3
    beside = str(Path(sys.executable).parent)  # so that `hora` and `mpirun` are those of this Python
    with tempfile.TemporaryDirectory(prefix="cluster-") as place, contextlib.ExitStack() as stack:
        cluster = Cluster(2, Path(place))
        stack.callback(cluster.close)
        Sshd(cluster)
        if given.rate:
            for host in cluster.hosts:
                stack.enter_context(host.limited(given.rate))
        path = f"{beside}:{os.environ['PATH']}:/usr/sbin:/sbin"
        # Open MPI tries docker0 too, which is the same address everywhere, and may wait for it for half a minute.
        environment = {"PATH": path, "PRTE_MCA_prte_if_exclude": "docker0"}
        process = cluster.login.popen(given.command or ["bash"], stdin=None, cwd=Path.cwd(), env=environment)
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())
