"""Agents over ssh, one client a host, all at once. Never asks anything: no password, no terminal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from hora.config import env
from hora.errors import UsageError
from hora.launch.planning.hosts import is_here
from hora.launch.starters.starter import AgentCarrier, Command, agent_command, explain_end, shown

__all__ = ["SshStarter", "exported"]

# What a user expects to find again on another machine. The rest of an environment belongs to its machine.
_PREFIXES = (
    "HORA_", "HOROVOD_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "NUMEXPR_", "GOMP_", "CUDA_", "NCCL_", "GLOO_", "UCX_",
    "FI_", "PYTHON", "TORCH", "TF_", "XLA_", "JAX_", "KERAS_", "HF_", "CONDA_", "LC_",
)  # fmt: skip
_NAMES = {"PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "TZ"}
_OURS = {"HORA_JOB", "HORA_HUB_FD", "HORA_SECRET", "HORA_SECRET_FD", "HORA_HUB_ADDRESSES"}  # of a job around this one

_OPTIONS = (
    "BatchMode=yes", "StrictHostKeyChecking=accept-new", "ConnectTimeout=10", "LogLevel=ERROR", "ServerAliveInterval=5",
    "ServerAliveCountMax=2",
)  # fmt: skip


def exported(environment: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """The part of an environment that goes to other machines; ``more`` are names that the user added (-x).

    >>> exported({"OMP_NUM_THREADS": "4", "EDITOR": "vi", "TOKEN": "t"}, ["TOKEN"])
    {'OMP_NUM_THREADS': '4', 'TOKEN': 't'}
    """
    return {
        name: value
        for name, value in environment.items()
        if (name.startswith(_PREFIXES) or name in _NAMES or name in more) and name not in _OURS
    }


class SshStarter:
    """Reaches hosts by ssh; this machine, if it is among them, without."""

    name = "ssh"

    def __init__(
        self, *, port: int | None = None, identity_file: str | None = None, export: Sequence[str] = ()
    ) -> None:
        self._export = tuple(export)
        given = env.find(env.environ(), "SSH") or "ssh"
        try:
            self._ssh = shlex.split(given)
        except ValueError as error:
            raise UsageError(f"HORA_SSH={given!r} cannot be read: {error}. Write it as for a shell.") from None
        # ssh takes the first value it meets, so that options in HORA_SSH win over these.
        for option in _OPTIONS:
            self._ssh += ["-o", option]
        self._ssh += ["-T", "-x"]
        self._ssh += ["-p", str(port)] if port is not None else []
        self._ssh += ["-i", identity_file] if identity_file is not None else []

    def environment(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        return exported(environment, self._export)

    def commands(self, hosts: Sequence[str]) -> list[tuple[str, str]]:
        return [(host, shown(self._command(host))) for host in hosts]

    def start(self, hosts: Sequence[str]) -> list[AgentCarrier]:
        carriers: list[AgentCarrier] = []
        try:
            for host in hosts:
                carriers.append(Command([host], self._command(host)))
        except BaseException:
            for carrier in carriers:
                carrier.stop()
            raise
        return carriers

    def explain(self, host: str, code: int, said: str) -> str:
        text = explain_end(host, "the agent" if is_here(host) else "ssh", code, said)
        if code != 255:  # ssh's own failure
            return text
        return f"{text} Try 'ssh -o BatchMode=yes {host} true': it must work without asking for anything."

    def _command(self, host: str) -> list[str]:
        if is_here(host):
            return agent_command()
        path = env.environ().get("PYTHONPATH")
        there = [*(["env", f"PYTHONPATH={path}"] if path else []), *agent_command()]
        return [*self._ssh, host, f"exec {shlex.join(there)}"]
