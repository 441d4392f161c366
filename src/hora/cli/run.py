"""``hora run``: start a command in several workers. Takes horovodrun's flags; ``flags`` has those that tune workers."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hora import __version__
from hora.cli import flags
from hora.config import env
from hora.errors import EnvironmentUnfit, UsageError
from hora.launch import failure
from hora.launch.hosts import read_hosts
from hora.launch.output import Console
from hora.launch.plan import Plan, make_plan, require_this_host, threads_per_worker
from hora.launch.supervise import Job, Verdict, supervise, worker_environment

__all__ = ["run"]

_SHIM = Path(__file__).resolve().parent.parent / "as_horovod"
_ELASTIC = (
    "--min-np", "--max-np", "--slots-per-host", "--elastic-timeout", "--reset-limit", "--blacklist-cooldown-range",
    "--host-discovery-script",
)  # fmt: skip


def _workers(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    if value == "auto":
        return len(os.sched_getaffinity(0))
    number = int(value) if value.isascii() and value.isdigit() else 0
    if number < 1:
        raise click.BadParameter(f"{value!r} is not a number of workers. Give 1, 2, … or 'auto' for one per core.")
    return number


def _option(*names: str, help: str, **more: Any) -> click.Option:
    return click.Option(list(names), help=help, **more)


def _switch(*names: str, help: str) -> click.Option:
    return _option(*names, help=help, is_flag=True)


_UNUSED = "Accepted; not needed on one host."
_NOT_YET = "Elastic jobs are not available yet."

_OPTIONS = (
    _option("-np", "--num-proc", "np", metavar="N|auto", callback=_workers, help="Workers; auto: one per core."),
    _option("-H", "--hosts", "hosts", metavar="h1:2,h2:4", help="Hosts and their slots."),
    _option("-hostfile", "--hostfile", "hostfile", metavar="FILE", help="File with lines 'host slots=N'."),
    _option("--on", type=click.Choice(["local", "ssh", "slurm", "mpi", "ray"]), default="local", show_default=True,
            help="What starts the workers; only local in this version."),
    _switch("--as-horovod", help="Let 'import horovod.torch' in the command find Hora."),
    _option("--output-filename", metavar="DIR", help="Also write DIR/rank.N/stdout and DIR/rank.N/stderr."),
    _switch("-prefix-timestamp", "--prefix-output-with-timestamp", "timestamp", help="Start lines with the time."),
    _switch("--dry-run", help="Show hosts, ranks, environment and commands; start nothing."),
    _switch("--verbose", help="Say what the launcher does."),
    _switch("--summary", help="Say now and then how training goes, and at the end how each rank did."),
    _option("--config-file", metavar="FILE", help="Flags in a YAML or TOML file; those given here win."),
    _switch("-cb", "--check-build", "check_build", help="Show what this installation can use, and exit."),
    _switch("-v", "--version", "version", help="Show the version, and exit."),
    _switch("--gloo", help="Move data with gloo instead of shared memory."),
    _switch("--mpi", help="Accepted; one host needs no MPI."),
    _switch("--jsrun", help="Not available."),
    *flags.options(),
    _switch("--disable-cache", help=_UNUSED),
    _option("--network-interfaces", "--network-interface", "interfaces", multiple=True, help="Interfaces for gloo."),
    _option("-p", "--ssh-port", "ssh_port", type=int, help=_UNUSED),
    _option("-i", "--ssh-identity-file", "ssh_identity_file", help=_UNUSED),
    _option("--mpi-args", help=_UNUSED),
    _option("--binding-args", help=_UNUSED),
    _switch("--tcp", help=_UNUSED),
    _option("--min-np", "--min-num-proc", "min_np", type=int, help=_NOT_YET),
    _option("--max-np", "--max-num-proc", "max_np", type=int, help=_NOT_YET),
    *(_option(name, type=int, help=_NOT_YET) for name in ("--slots-per-host", "--elastic-timeout", "--reset-limit")),
    _option("--blacklist-cooldown-range", type=int, nargs=2, help=_NOT_YET),
    _option("--host-discovery-script", help=_NOT_YET),
    click.Argument(["command"], nargs=-1, type=click.UNPROCESSED),
)  # fmt: skip


def _run(**given: Any) -> int:
    if given["version"]:
        click.echo(__version__)
        return 0
    if given["check_build"]:
        click.echo(_check_build(), nl=False)
        return 0
    _refuse_what_is_not_there_yet(given)
    file = flags.read_config_file(Path(given["config_file"])) if given["config_file"] else {}
    plan = _plan(given)
    job = Job(
        plan=plan,
        command=_resolve(given["command"]),
        environment=_environment(given, file, plan),
        console=Console.of_process(),
        prefix=plan.size > 1,
        timestamp=given["timestamp"],
        output_directory=Path(given["output_filename"]) if given["output_filename"] else None,
        forward_stdin=plan.size == 1,
        say=_say if given["verbose"] else lambda line: None,
    )
    if given["dry_run"]:
        click.echo(_dry_run(job), nl=False)
        return 0
    verdict = supervise(job)
    _tell(verdict, summary=given["summary"])
    return verdict.exit_code


run = click.Command(
    "run",
    callback=_run,
    params=list(_OPTIONS),
    help="Start COMMAND in several workers on this host. COMMAND and what follows it are passed on untouched; a .py "
    "file runs with this Python. The exit code is that of the first worker that fails.",
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
    no_args_is_help=False,
)


# ---- what to run ----


def _refuse_what_is_not_there_yet(given: Mapping[str, Any]) -> None:
    for flag in _ELASTIC:
        if given[flag.lstrip("-").replace("-", "_")] is not None:
            raise EnvironmentUnfit(f"{flag}: elastic jobs are not available yet in this version. Give -np alone.")
    if given["on"] != "local":
        raise EnvironmentUnfit(f"--on {given['on']} is not available yet in this version. Use --on local.")
    if given["jsrun"]:
        raise EnvironmentUnfit("--jsrun is not available. Leave it out to start workers on this host.")
    if given["gloo"] and given["mpi"]:
        raise UsageError("--gloo and --mpi exclude each other. Give one of them.")


def _plan(given: Mapping[str, Any]) -> Plan:
    np = given["np"]
    if np is None and given["hosts"] is None and given["hostfile"] is None:
        raise UsageError("the number of workers is missing. Give -np N, or -np auto for one per core.")
    hosts = read_hosts(given["hosts"], given["hostfile"], np)
    plan = make_plan(hosts, sum(host.slots for host in hosts) if np is None else np)
    require_this_host(plan)
    return plan


def _resolve(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with its program found, so that a wrong name is one message and not one from every worker."""
    if not command:
        raise UsageError("there is no command to run. Write for example 'hora run -np 2 python train.py'.")
    program, path = command[0], Path(command[0])
    if program.endswith(".py") and not (path.is_file() and os.access(path, os.X_OK)):
        if not path.is_file():
            raise EnvironmentUnfit(f"the script {program!r} does not exist here ({Path.cwd()}). Check the path.")
        return (sys.executable, *command)
    if shutil.which(program) is None:
        if path.is_file():
            raise EnvironmentUnfit(
                f"{program!r} is not executable. Run 'chmod +x {shlex.quote(program)}', or name its interpreter."
            )
        raise EnvironmentUnfit(f"the command {program!r} was not found. Check its name, or PATH.")
    return command


def _environment(given: Mapping[str, Any], file: Mapping[str, Any], plan: Plan) -> dict[str, str]:
    """The workers' environment, without their places."""
    environment = {**env.environ(), **flags.environment_of(given, file)}
    if given["gloo"] or (file.get("controller") == "gloo" and not given["mpi"]):
        environment["HORA_TRANSPORT"] = "gloo"
    if given["interfaces"]:
        environment["HORA_GLOO_IFACE"] = environment["HOROVOD_GLOO_IFACE"] = ",".join(given["interfaces"])
    if given["summary"]:
        environment["HORA_SUMMARY"] = "1"
    if given["as_horovod"]:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_SHIM), environment.get("PYTHONPATH", "")]))
    local_size = max(worker.place.local_size for worker in plan.workers)
    if threads := threads_per_worker(environment, local_size):
        environment["OMP_NUM_THREADS"] = str(threads)
        if given["verbose"]:
            _say(f"OMP_NUM_THREADS={threads}: the cores shared by {local_size} workers; set it yourself to override")
    env.settings(environment)  # a bad value is one message now, and not one from every worker
    return environment


# ---- what to tell ----


def _say(line: str) -> None:
    click.echo(f"hora: {line}", err=True)


def _tell(verdict: Verdict, *, summary: bool) -> None:
    if verdict.interrupted_by is signal.SIGPIPE:
        return  # nobody listens
    if verdict.interrupted_by is not None:
        _say(f"stopped by {verdict.interrupted_by.name}; all workers have ended")
    elif verdict.first is not None:
        tail = verdict.tails[verdict.first.rank]
        failure.show(*failure.explain(verdict.first, verdict.endings, tail, verdict.oom_kills), sys.stderr)
    if summary:
        click.echo("rank  host              exit                      seconds   cpu s   peak MB", err=True)
        for ending in sorted(verdict.endings):
            how = failure.how_it_ended(ending.returncode)
            click.echo(
                f"{ending.rank:>4}  {ending.host:<16.16}  {how:<24}{ending.seconds:>9.2f}{ending.cpu_s:>8.2f}"
                f"{ending.peak_bytes / 1e6:>10.0f}",
                err=True,
            )


def _dry_run(job: Job) -> str:
    """What would be started, in words and as commands that can be read."""
    hosts = ", ".join(f"{host.name} ({host.slots} slots)" for host in job.plan.hosts)
    lines = [f"hosts: {hosts}", f"workers: {job.plan.size}"]
    before = env.environ()
    for worker in job.plan.workers:
        environment = worker_environment(job, worker, "<inherited>")
        new = {name: value for name, value in environment.items() if before.get(name) != value}
        shown = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(new.items()))
        lines.append(f"rank {worker.rank} on {worker.host}: {shown} {shlex.join(job.command)}")
    return "\n".join(lines) + "\n"


def _check_build() -> str:
    def box(present: bool) -> str:
        return "[X]" if present else "[ ]"

    def has(module: str) -> bool:
        return importlib.util.find_spec(module) is not None

    from hora.transport import shm

    return (
        f"Hora v{__version__}:\n\n"
        "Available Frameworks:\n"
        f"    [ ] TensorFlow\n    {box(has('torch'))} PyTorch\n    [ ] MXNet\n\n"
        "Available Controllers:\n"
        f"    [ ] MPI\n    [X] Hora's own hub\n\n"
        "Available Tensor Operations:\n"
        f"    {box(shm.available())} shared memory\n    {box(has('torch'))} Gloo\n    [ ] NCCL\n    [ ] MPI\n"
    )
