"""What other launchers set in the environment by which workers on several hosts can find each other."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hora.config.nodelist import expand
from hora.errors import UsageError

__all__ = ["LauncherHints", "launcher_hints"]


class LauncherHints(msgspec.Struct, frozen=True, kw_only=True):
    """``engine.hub_discovery`` has what is made of them. Whatever a launcher did not leave is empty.

    ``nodes``: of the Slurm step, in the order of their tasks, and ``slurm_conf``, which knows where munge is.
    ``master``: the ``host:port`` of torchrun's store; ``master_runs`` if it is there without our doing.
    ``pmi_fd``: the connection to a PMI-1 server (MPICH, Intel MPI).
    ``pmix``: directories where the library may be that speaks to a PMIx server (Open MPI, ``srun --mpi=pmix``).
    """

    nodes: tuple[str, ...] = ()
    slurm_conf: str = ""
    master: str = ""
    master_runs: bool = False
    pmi_fd: int = -1
    pmix: tuple[str, ...] = ()


def launcher_hints(env: Mapping[str, str], launcher: str) -> LauncherHints:
    """
    >>> launcher_hints({"SLURM_STEP_NODELIST": "h[1-2]"}, "slurm").nodes
    ('h1', 'h2')
    >>> launcher_hints({"MASTER_ADDR": "h1", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"},
    ...     "torchrun").master
    'h1:29500'
    """
    pmix: tuple[str, ...] = ()
    if "PMIX_NAMESPACE" in env:
        pmix = tuple(env[name] for name in ("PMIX_PREFIX", "OPAL_PREFIX", "OMPI_LIBDIR_LOC") if env.get(name)) or ("",)
    if launcher == "slurm":
        return LauncherHints(
            nodes=_nodes(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")),
            slurm_conf=env.get("SLURM_CONF") or "/etc/slurm/slurm.conf",
            pmix=pmix,
        )
    if launcher == "torchrun" and env.get("MASTER_ADDR") and env.get("MASTER_PORT", "").isdigit():
        runs = env.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
        return LauncherHints(master=f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}", master_runs=runs)
    if launcher == "mpich" and env.get("PMI_FD", "").isdigit():
        return LauncherHints(pmi_fd=int(env["PMI_FD"]))
    return LauncherHints(pmix=pmix) if launcher == "openmpi" else LauncherHints()


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except UsageError:  # then they are not found that way
        return ()
