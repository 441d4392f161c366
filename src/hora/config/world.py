"""A worker's rank, local rank and the sizes, found from what its launcher set in the environment.

``detect`` is a pure function of the environment (the host's name and the launcher's process can be passed in). It knows
``hora run``, Open MPI, MPICH and Intel MPI (hydra), torchrun and Slurm steps, and otherwise says "alone", except where
that would be wrong: inside an allocation of several tasks it refuses, because otherwise every task would
train a model of its own, and nobody would notice.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from hora.config.env import Secret, find, flag, launcher_option, launcher_process
from hora.config.launcher_hints import LauncherHints, launcher_hints
from hora.errors import EnvironmentUnfit

__all__ = [
    "MOST_HOSTS",
    "MOST_ON_A_HOST",
    "MOST_WORKERS",
    "Launcher",
    "RankPosition",
    "World",
    "detect",
    "is_homogeneous",
    "places",
]

MOST_ON_A_HOST = 512  # core.h: MAX_HERE; workers that can share its memory
MOST_WORKERS, MOST_HOSTS = 16384, 1024  # of a job that takes the core's own connections (MAX_RANKS, MAX_HOSTS)
Launcher = Literal["hora", "slurm", "openmpi", "mpich", "torchrun", "alone"]


class World(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's place.

    ``job_key`` is the same on all workers of a job and differs between jobs. Where the launcher runs a hub, ``hub_fd``
    is an inherited connection to it, or ``hub_addresses`` is where it listens and ``secret_fd`` or ``secret`` what
    proves that this worker belongs to it (-1, or nothing, if not). Otherwise workers on several hosts find each other
    through ``rendezvous_dir`` or by ``hints``. Launchers that do not say how the other hosts are filled (Open MPI,
    hydra, torchrun) are taken to fill every host alike; ``places`` gives the exact answer once all hosts are known.
    In an ``elastic`` job ``rank`` is the number that the launcher has given this worker, and the rest is only known
    once it has met the others.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    host: str = "localhost"
    launcher: Launcher = "alone"
    job_key: str = ""
    hub_fd: int = -1
    hub_addresses: tuple[str, ...] = ()
    secret_fd: int = -1
    secret: Secret = Secret()
    rendezvous_dir: str = ""
    hints: LauncherHints = LauncherHints()
    homogeneous: bool = True
    elastic: bool = False


class RankPosition(NamedTuple):
    """One rank's position inside its host and across hosts."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def places(hosts: Sequence[str]) -> tuple[RankPosition, ...]:
    """Every rank's place, given the host of each rank in rank order.

    The local rank counts the ranks of one host; the cross rank counts, in order of first appearance, the hosts that
    have that local rank, so on uneven hosts ``cross_size`` shrinks with the local rank, as it does in Horovod.

    >>> places(["a", "a", "b"])
    (RankPosition(local_rank=0, local_size=2, cross_rank=0, cross_size=2), RankPosition(local_rank=1, local_size=2,
    cross_rank=0, \
cross_size=1), RankPosition(local_rank=0, local_size=1, cross_rank=1, cross_size=2))
    """
    sizes = Counter(hosts)  # keeps the order of first appearance
    seen: Counter[str] = Counter()
    result = []
    for host in hosts:
        local_rank = seen[host]
        seen[host] += 1
        across = [name for name, count in sizes.items() if count > local_rank]
        result.append(RankPosition(local_rank, sizes[host], across.index(host), len(across)))
    return tuple(result)


def is_homogeneous(hosts: Sequence[str]) -> bool:
    """Whether every host has the same number of ranks.

    >>> is_homogeneous(["a", "a", "b", "b"]), is_homogeneous(["a", "a", "b"])
    (True, False)
    """
    return len(set(Counter(hosts).values())) <= 1


def detect(
    env: Mapping[str, str],
    *,
    host: str | None = None,
    launcher_of: Callable[[str], str] = launcher_process,
    option_of: Callable[[str], str] = launcher_option,
) -> World:
    """The world that ``env`` describes.

    >>> detect({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    ...         "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-7@1"}, host="node7").local_rank
    1
    >>> detect({}, host="laptop").launcher
    'alone'
    """
    here = find(env, "HOSTNAME") or host or socket.gethostname()
    if flag(env, "ALONE"):
        return World(host=here)
    world = _detect(env, here, launcher_of, option_of)
    if world.launcher == "alone":
        return world
    secret_fd = find(env, "SECRET_FD")
    return msgspec.structs.replace(
        world,
        hub_addresses=find(env, "HUB_ADDRESSES") or (),
        secret_fd=-1 if secret_fd is None else secret_fd,
        secret=find(env, "SECRET") or Secret(),
        rendezvous_dir=find(env, "RENDEZVOUS_DIR") or "",
        hints=launcher_hints(env, world.launcher),
    )


def _detect(
    env: Mapping[str, str], here: str, launcher_of: Callable[[str], str], option_of: Callable[[str], str]
) -> World:
    if find(env, "WORKER") is not None:
        return _elastic(env, here)
    if find(env, "RANK") is not None:
        return _hora(env, here)
    if "OMPI_COMM_WORLD_RANK" in env:
        return _openmpi(env, here)
    if "PMI_RANK" in env and ("MPI_LOCALRANKID" in env or not _in_slurm_step(env)):
        return _mpich(env, here, launcher_of, option_of)
    if "RANK" in env and "WORLD_SIZE" in env:
        return _torchrun(env, here)
    if _in_slurm_step(env):
        return _slurm(env, here)
    _refuse_silent_loneliness(env)
    return World(host=here)


# ---- one function a launcher ----


def _hora(env: Mapping[str, str], host: str) -> World:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    values = [find(env, name) for name in names]
    missing = [f"HORA_{name}" for name, value in zip(names, values, strict=True) if value is None]
    if missing:
        raise _incomplete("hora run", "HORA_RANK", missing)
    rank, size, local_rank, local_size, cross_rank, cross_size = values
    homogeneous = find(env, "HOMOGENEOUS")
    job = find(env, "JOB")
    hub_fd = find(env, "HUB_FD")
    return _checked(
        World(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            cross_rank=cross_rank,
            cross_size=cross_size,
            host=host,
            launcher="hora",
            job_key=job or f"horovodrun-{env.get('HOROVOD_GLOO_RENDEZVOUS_PORT', '')}",
            hub_fd=-1 if hub_fd is None else hub_fd,
            homogeneous=local_size * cross_size == size if homogeneous is None else homogeneous,
        )
    )


def _elastic(env: Mapping[str, str], host: str) -> World:
    number, hub_fd = find(env, "WORKER"), find(env, "HUB_FD")
    return World(
        rank=number,
        size=number + 1,
        host=host,
        launcher="hora",
        job_key=find(env, "JOB") or "",
        hub_fd=-1 if hub_fd is None else hub_fd,
        elastic=True,
    )


def _openmpi(env: Mapping[str, str], host: str) -> World:
    read = _Reader(env, "Open MPI")
    # Open MPI 5 names the job in PMIX_NAMESPACE, 4 in both, older ones only in the last.
    job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid") or env.get("OMPI_MCA_orte_ess_jobid", "")
    return _filled_alike(
        rank=read("OMPI_COMM_WORLD_RANK"),
        size=read("OMPI_COMM_WORLD_SIZE"),
        local_rank=read("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=read("OMPI_COMM_WORLD_LOCAL_SIZE"),
        host=host,
        launcher="openmpi",
        job_key=f"openmpi-{job}",
    )


def _mpich(
    env: Mapping[str, str], host: str, launcher_of: Callable[[str], str], option_of: Callable[[str], str]
) -> World:
    read = _Reader(env, "MPICH or Intel MPI")
    size, local_rank, local_size = read("PMI_SIZE"), read("MPI_LOCALRANKID"), read("MPI_LOCALNRANKS")
    # Hydra tells its workers no name of the job. On one host they have an ancestor in common; on several each has one
    # that was told where mpiexec listens. Where that cannot be read, a scheduler may have a name.
    job = launcher_of("PMI_RANK") if local_size == size else option_of("--control-port") or _scheduled_job(env)
    return _filled_alike(
        rank=read("PMI_RANK"),
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        host=host,
        launcher="mpich",
        job_key=f"mpich-{job}" if job else "",
    )


def _torchrun(env: Mapping[str, str], host: str) -> World:
    read = _Reader(env, "torchrun")
    size = read("WORLD_SIZE")
    # Restarted workers are a new job: nothing of the old one may be met again.
    job = [
        env.get(name, "")
        for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    ]
    return _filled_alike(
        rank=read("RANK"),
        size=size,
        local_rank=read("LOCAL_RANK", 0),
        local_size=read("LOCAL_WORLD_SIZE", size if "LOCAL_RANK" in env else 1),
        host=host,
        launcher="torchrun",
        job_key="torchrun-" + "-".join(job),
    )


def _slurm(env: Mapping[str, str], host: str) -> World:
    read = _Reader(env, "srun")
    local_rank = read("SLURM_LOCALID")
    node = read("SLURM_NODEID", 0)
    per_node = _tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE", ""))
    if node >= len(per_node):
        raise EnvironmentUnfit(
            f"SLURM_NODEID={node} is not among the {len(per_node)} nodes of SLURM_TASKS_PER_NODE, so the local size is "
            "unknown. Start the workers with a plain srun."
        )
    across = [index for index, tasks in enumerate(per_node) if tasks > local_rank]
    return _checked(
        World(
            rank=read("SLURM_PROCID"),
            size=read("SLURM_STEP_NUM_TASKS", read("SLURM_NTASKS", sum(per_node))),
            local_rank=local_rank,
            local_size=per_node[node],
            cross_rank=across.index(node) if node in across else 0,
            cross_size=max(1, len(across)),
            host=find(env, "HOSTNAME") or env.get("SLURMD_NODENAME", host),
            launcher="slurm",
            job_key="slurm-{}.{}.{}".format(
                env.get("SLURM_JOB_ID", ""), env["SLURM_STEP_ID"], env.get("SLURM_RESTART_COUNT", "0")
            ),
            homogeneous=len(set(per_node)) == 1,
        )
    )


# ---- what they share ----


def _scheduled_job(env: Mapping[str, str]) -> str:
    """The name that a batch system gave the job, if one did."""
    return next((f"{name}-{env[name]}" for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID") if env.get(name)), "")


def _in_slurm_step(env: Mapping[str, str]) -> bool:
    """Whether this is a task of a step. Slurm numbers special steps (batch, interactive shell, extern) from the top."""
    step = env.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < 0xFFFFFFF0


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's notation for the tasks on each node.

    >>> _tasks_per_node("2(x3),1"), _tasks_per_node("2,1")
    ([2, 2, 2, 1], [2, 1])
    """
    result: list[int] = []
    for part in text.split(","):
        tasks, _, times = part.strip().removesuffix(")").partition("(x")
        if not tasks.isdigit() or not (times or "1").isdigit():
            raise EnvironmentUnfit(
                f"SLURM_TASKS_PER_NODE={text!r} cannot be read, so the place of this worker is unknown. "
                "It should look like 2(x3),1; start the workers with a plain srun."
            )
        result += [int(tasks)] * int(times or "1")
    return result


def _refuse_silent_loneliness(env: Mapping[str, str]) -> None:
    tasks = env.get("SLURM_NTASKS", "1")
    if tasks.isdigit() and int(tasks) > 1:
        raise EnvironmentUnfit(
            f"this process is in a Slurm allocation of {tasks} tasks but was not started by srun, so it would train "
            f"alone. Start it with 'srun python …' or 'hora run -np {tasks} python …', or set HORA_ALONE=1 if one "
            "worker is meant."
        )


class _Reader:
    """Reads whole numbers of one launcher's environment, or says which variable is missing or odd."""

    def __init__(self, env: Mapping[str, str], launcher: str) -> None:
        self._env, self._launcher = env, launcher

    def __call__(self, name: str, default: int | None = None) -> int:
        text = self._env.get(name, "")
        if not text:
            if default is not None:
                return default
            raise _incomplete(self._launcher, name, [name])
        if not (text.isascii() and text.isdigit()):
            raise EnvironmentUnfit(
                f"{name}={text!r}, set by {self._launcher}, is not a whole number, so the place of this worker is "
                "unknown. Unset it, or set HORA_ALONE=1 if one worker is meant."
            )
        return int(text)


def _incomplete(launcher: str, sign: str, missing: Sequence[str]) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"this process looks like a worker of {launcher} but {', '.join(missing)} is not set, so its place is unknown. "
        f"Pass {launcher}'s whole environment on, or set HORA_ALONE=1 if one worker is meant ({sign} is then ignored)."
    )


def _filled_alike(
    *, rank: int, size: int, local_rank: int, local_size: int, host: str, launcher: Launcher, job_key: str
) -> World:
    """The world of a launcher that does not tell how other hosts are filled: alike, and host after host."""
    return _checked(
        World(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            cross_rank=rank // max(1, local_size),
            cross_size=-(-size // max(1, local_size)),
            host=host,
            launcher=launcher,
            job_key=job_key,
            homogeneous=size % max(1, local_size) == 0,
        )
    )


def _checked(world: World) -> World:
    pairs = ((world.rank, world.size), (world.local_rank, world.local_size), (world.cross_rank, world.cross_size))
    if any(not 0 <= rank < size for rank, size in pairs) or world.local_size > world.size:
        raise EnvironmentUnfit(
            f"{world.launcher} describes an impossible world: rank {world.rank} of {world.size}, local rank "
            f"{world.local_rank} of {world.local_size}, cross rank {world.cross_rank} of {world.cross_size}. Variables "
            "of two launchers are probably mixed; unset the stale ones, or set HORA_ALONE=1 if one worker is meant."
        )
    return world
