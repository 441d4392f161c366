"""The workers that a command starts: the flags that say how many, where and by what, the job they make, and how its end
is reported. What `hora run` and `hora train` have in common."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from hora.cli.fit import fitted
from hora.config import env
from hora.config.settings import PREEMPTED_EXIT_CODE
from hora.engine.explain import compact_ranks
from hora.errors import UsageError
from hora.launch import failure
from hora.launch.job import Job, JobResult
from hora.launch.output import Console
from hora.launch.planning.allocation import find_allocation
from hora.launch.planning.hosts import Host, read_hosts
from hora.launch.planning.pick import LaunchChoice, pick
from hora.launch.ways import make_way

__all__ = ["OPTIONS", "choose", "environment", "job", "option", "say", "switch", "tell", "warn_if_crowded"]


def option(*names: str, help: str, **more: Any) -> click.Option:
    return click.Option(list(names), help=help, **more)


def switch(*names: str, help: str) -> click.Option:
    return option(*names, help=help, is_flag=True)


def _number(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == "auto":
        return value
    number = int(value) if value.isascii() and value.isdigit() else 0
    if number < 1:
        raise UsageError(
            f"-np {value!r} is not a number of workers. Give 1, 2, … or 'auto' for as many as there is room for."
        )
    return number


OPTIONS = (
    option("-np", "--num-proc", "np", metavar="N|auto", callback=_number,
           help="Number of workers. auto: one per slot of the hosts, or per core of this host."),
    option("-H", "--hosts", "hosts", metavar="h1:2,h2:4",
           help="Hosts and their slots; ranges such as h[1-4]:2 work too."),
    option("-hostfile", "--hostfile", "-f", "hostfile", metavar="FILE",
           help="File with one 'host slots=N' or 'host:N' per line."),
    option("-ppn", "ppn", metavar="N", type=click.IntRange(min=1),
           help="Workers per host, whatever its slots, as with mpiexec."),
    option("--on", type=click.Choice(["local", "ssh", "slurm", "mpi", "ray"]),
           help="What starts the workers.  [default: slurm in a Slurm allocation, ssh for other hosts, else local]"),
    option("-x", "--env", "export", metavar="NAME[=VALUE]", multiple=True,
           help="Environment variable to pass to all workers, also on other hosts; repeatable."),
    option("--threads-per-worker", type=click.IntRange(min=1), metavar="N",
           help="Threads per worker.  [default: as many as it has cores]"),
    option("--bind/--no-bind", default=True, help="Bind each worker to its own cores.  [default: bind]"),
    option("--network-interfaces", "--network-interface", "interfaces", metavar="NAME,…", multiple=True,
           help="Network interfaces to use between hosts.  [default: any that work]"),
    option("-p", "--ssh-port", "ssh_port", metavar="PORT", type=int, help="ssh port of the hosts."),
    option("-i", "--ssh-identity-file", "ssh_identity_file", metavar="FILE", help="Private key for ssh."),
    option("--mpi-args", metavar="ARGS", default="", help="Additional arguments for mpirun."),
    option("--binding-args", metavar="ARGS", default="", help="Binding arguments for mpirun.  [default: Hora binds]"),
    switch("--verbose", help="Show what the launcher does."),
)  # fmt: skip


def choose(given: Mapping[str, Any]) -> LaunchChoice:
    """How many workers, where, and what starts them."""

    def ray_hosts() -> tuple[Host, ...]:
        from hora.launch.starters.ray import cluster_hosts

        return cluster_hosts()

    hosts, hostfile = given["hosts"], given["hostfile"]
    if given.get("ppn"):
        hosts, hostfile = _per_host(hosts, hostfile, given["ppn"]), None
    return pick(
        env.environ(),
        np=given["np"],
        hosts=hosts,
        hostfile=hostfile,
        on=given["on"],
        ray_hosts=ray_hosts,
    )


def _per_host(hosts: str | None, hostfile: str | None, each: int) -> str:
    """The hosts with that many workers each, as mpiexec's -ppn has it.

    >>> _per_host("h1:8,h2:8", None, 4)
    'h1:4,h2:4'
    """
    if hosts is None and hostfile is None:
        allocation = find_allocation(env.environ())
        found = allocation.hosts if allocation is not None else (Host("localhost", each),)
    else:
        found = read_hosts(hosts, hostfile, None)
    return ",".join(f"{host.name}:{each}" for host in found)


def warn_if_crowded(choice: LaunchChoice) -> None:
    """Say at once that workers of this host have to share cores: they will not be faster than fewer."""
    cores, workers = len(os.sched_getaffinity(0)), choice.plan.size
    if choice.on == "local" and workers > cores:
        say(f"{workers} workers share {cores} core{'s'[: cores > 1]}: expect no more speed than from -np {cores}")


def environment(given: Mapping[str, Any]) -> dict[str, str]:
    """This process's variables, and those that the flags set for the workers.

    >>> environment({"export": ["A=1", "HOME"], "interfaces": ["eth0,eth1"]})["HORA_GLOO_IFACE"]
    'eth0,eth1'
    """
    pairs = [word.partition("=") for word in given["export"]]
    before = env.environ()
    made = {**before, **env.quiet_tensorflow(before), **{name: value for name, equals, value in pairs if equals}}
    if given["interfaces"]:
        made["HORA_GLOO_IFACE"] = made["HOROVOD_GLOO_IFACE"] = ",".join(_names(given["interfaces"]))
    return made


def job(
    given: Mapping[str, Any],
    choice: LaunchChoice,
    *,
    command: tuple[str, ...],
    environment: Mapping[str, str],
    console: Console,
    **more: Any,
) -> Job:
    """The job that the flags describe; ``more`` is what else a Job takes."""
    return Job(
        plan=choice.plan,
        way=make_way(
            choice.on,
            interfaces=_names(given["interfaces"]),
            ssh_port=given["ssh_port"],
            ssh_identity_file=given["ssh_identity_file"],
            export=[word.partition("=")[0] for word in given["export"]],
            mpi_args=given["mpi_args"],
            binding_args=given["binding_args"],
        ),
        command=command,
        environment=environment,
        console=console,
        prefix=choice.plan.size != 1,
        filter_tensorflow="TF_CPP_MIN_LOG_LEVEL" not in env.environ(),
        keep_last_words=not env.flag(environment, "FULL_TRACEBACK"),
        threads_per_worker=given["threads_per_worker"],
        bind=given["bind"],
        say=say if given["verbose"] else lambda line: None,
        announce=(lambda line: None) if given["verbose"] else say,
        **more,
    )


def _names(given: Sequence[str]) -> list[str]:
    """Names that were given one by one, or several with commas between."""
    return [name.strip() for words in given for name in words.split(",") if name.strip()]


def say(line: str) -> None:
    """Print a message to the user, between the output of the workers."""
    click.echo(fitted(f"hora: {line}", sys.stderr), err=True)


def tell(verdict: JobResult, *, go_on: str, explained: Sequence[int] = ()) -> None:
    """Print how the job ended. ``go_on`` says how to continue a preempted one; for exit codes in ``explained``, the
    workers have printed the reason."""
    if verdict.interrupted_by is signal.SIGPIPE:
        return  # nobody listens
    leaving = verdict.exit_code == PREEMPTED_EXIT_CODE
    first = verdict.first
    if first is None or leaving or verdict.interrupted_by is not None or verdict.exit_code in explained:
        asked = verdict.interrupted_by is signal.SIGINT  # where Ctrl-C met each worker says nothing
        kept = {
            rank: said for rank, said in verdict.last_words.items() if not (asked and failure.is_interruption(said))
        }
        _tell_last_words(kept, len(verdict.tails))
    if verdict.exit_code in explained:
        return
    if leaving:
        left = compact_ranks(e.rank for e in verdict.endings if e.returncode == PREEMPTED_EXIT_CODE)
        say(f"{left} saved and exited because the job is preempted (exit code {PREEMPTED_EXIT_CODE}); {go_on}")
    elif verdict.interrupted_by is not None:
        say(f"stopped by {verdict.interrupted_by.name}; all workers have ended")
    elif first is not None:
        words = verdict.last_words
        own = {rank: said for rank, said in words.items() if not failure.adds_nothing(rank, first.rank, words)}
        _tell_last_words(own, len(verdict.tails))
        tail = verdict.tails[first.rank] if len(verdict.tails) > 1 else None  # one worker's output is not labelled
        failure.show(*failure.explain(first, verdict.endings, tail, words), sys.stderr)


def _tell_last_words(words: Mapping[int, bytes], workers: int) -> None:
    """Print the output that was held back: what several ranks printed is printed once, without ranks if all did."""
    alike: dict[bytes, list[int]] = {}
    for rank, said in sorted(words.items()):
        alike.setdefault(said, []).append(rank)
    for said, ranks in alike.items():
        label = "" if len(ranks) == workers else f"[{ranks[0]}]<stderr>:"
        lines = [f"{label}{line}" for line in said.decode("utf-8", "replace").splitlines()]
        click.echo(fitted("\n".join(lines), sys.stderr), err=True)
        if label and len(ranks) > 1:
            say(f"{compact_ranks(ranks[1:])} said the same")
