"""``hora run`` on hosts that are only names: every agent is a plain process of this machine, reached over loopback.

``python tests/launch/farm.py -np 4 -H a:2,b:2 command`` is the launcher itself, to be killed and signalled by tests.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hora.cli import workers
from hora.cli.main import main
from hora.launch.starters.starter import AgentCarrier, Command, agent_command, explain_end
from hora.launch.ways.remote import RemoteLaunch

FARM = Path(__file__)


class Plain:
    """Agents without anything in between."""

    name = "nothing"

    def environment(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        return environment

    def commands(self, hosts: Sequence[str]) -> list[tuple[str, str]]:
        return [(host, " ".join(agent_command())) for host in hosts]

    def start(self, hosts: Sequence[str]) -> list[AgentCarrier]:
        return [Command([host], agent_command()) for host in hosts]

    def explain(self, host: str, code: int, said: str) -> str:
        return explain_end(host, "the agent", code, said)


def farm(*arguments: str) -> list[str]:
    return [sys.executable, str(FARM), *arguments]


if __name__ == "__main__":
    workers.make_way = lambda on, **options: RemoteLaunch(Plain())
    main(["run", *sys.argv[1:]])
