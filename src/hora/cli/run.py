"""``hora run``: start a command in several workers. Takes horovodrun's flags; ``flags`` has those that tune workers."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hora import __version__
from hora.cli import flags
from hora.config import env
from hora.config.settings import PREEMPTED_EXIT_CODE
from hora.errors import EnvironmentUnfit, UsageError
from hora.launch import failure
from hora.launch.hosts import Host
from hora.launch.job import Job, Verdict
from hora.launch.output import Console
from hora.launch.pick import Choice, pick
from hora.launch.supervise import supervise
from hora.launch.ways import make_way

__all__ = ["run"]

_SHIM = Path(__file__).resolve().parent.parent / "as_horovod"
_ELASTIC = (
    "--min-np", "--max-np", "--slots-per-host", "--elastic-timeout", "--reset-limit", "--blacklist-cooldown-range",
    "--host-discovery-script",
)  # fmt: skip


def _workers(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == "auto":
        return value
    number = int(value) if value.isascii() and value.isdigit() else 0
    if number < 1:
        raise click.BadParameter(
            f"{value!r} is not a number of workers. Give 1, 2, … or 'auto' for all there is room for."
        )
    return number


def _option(*names: str, help: str, **more: Any) -> click.Option:
    return click.Option(list(names), help=help, **more)


def _switch(*names: str, help: str) -> click.Option:
    return _option(*names, help=help, is_flag=True)


_UNUSED = "Accepted; not needed."
_NOT_YET = "Elastic jobs are not available yet."

_OPTIONS = (
    _option("-np", "--num-proc", "np", metavar="N|auto", callback=_workers,
            help="Workers; auto: one per slot of the hosts, or per core of this one."),
    _option("-H", "--hosts", "hosts", metavar="h1:2,h2:4", help="Hosts and their slots, also like h[1-4]:2."),
    _option("-hostfile", "--hostfile", "hostfile", metavar="FILE", help="File with lines 'host slots=N'."),
    _option("--on", type=click.Choice(["local", "ssh", "slurm", "mpi", "ray"]),
            help="What starts the workers. By itself: srun in a Slurm allocation, ssh for other hosts, nothing here."),
    _option("-x", "--env", "export", metavar="NAME[=VALUE]", multiple=True,
            help="Variable that the workers get on other hosts too; may be repeated."),
    _option("--threads-per-worker", type=click.IntRange(min=1), metavar="N",
            help="Threads each worker computes with; by itself as many as it has cores."),
    _option("--bind/--no-bind", default=True, help="Whether each worker gets cores of its own; by itself yes."),
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
    _switch("--mpi", help="Start workers on other hosts with mpirun, as --on mpi does."),
    _switch("--jsrun", help="Not available."),
    *flags.options(),
    _switch("--disable-cache", help=_UNUSED),
    _option("--network-interfaces", "--network-interface", "interfaces", multiple=True,
            help="Interfaces by which hosts reach each other; by itself those that work."),
    _option("-p", "--ssh-port", "ssh_port", type=int, help="Port of the hosts' ssh."),
    _option("-i", "--ssh-identity-file", "ssh_identity_file", help="Key for ssh."),
    _option("--mpi-args", default="", help="More arguments for mpirun."),
    _option("--binding-args", default="", help="What mpirun binds to; without it Hora does."),
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
    choice = _choose(given)
    verbose = given["verbose"]
    job = Job(
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
        command=_resolve(given["command"]),
        environment=_environment(given, file),
        console=Console.of_process(),
        prefix=choice.plan.size > 1,
        timestamp=given["timestamp"],
        output_directory=Path(given["output_filename"]) if given["output_filename"] else None,
        forward_stdin=choice.plan.size == 1 and choice.on == "local",
        threads_per_worker=given["threads_per_worker"],
        bind=given["bind"],
        say=_say if verbose else lambda line: None,
        announce=(lambda line: None) if verbose else _say,
    )
    if given["dry_run"]:
        click.echo(_dry_run(job, choice), nl=False)
        return 0
    if choice.why:
        _say(choice.why)
    verdict = supervise(job)
    _tell(verdict, summary=given["summary"])
    return verdict.exit_code


run = click.Command(
    "run",
    callback=_run,
    params=list(_OPTIONS),
    help="Start COMMAND in several workers: on this host, on others by ssh, mpirun or Ray, or in the Slurm, PBS or "
    "LSF allocation it is called in. COMMAND and what follows it are passed on untouched; a .py file runs with this "
    "Python. The exit code is that of the first worker that fails.",
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
    if given["jsrun"]:
        raise EnvironmentUnfit("--jsrun is not available. Leave it out: in an LSF allocation, hosts are found without.")
    if given["gloo"] and given["mpi"]:
        raise UsageError("--gloo and --mpi exclude each other. Give one of them.")


def _choose(given: Mapping[str, Any]) -> Choice:
    def ray_hosts() -> tuple[Host, ...]:
        from hora.launch.ray import cluster_hosts

        return cluster_hosts()

    choice = pick(
        env.environ(),
        np=given["np"],
        hosts=given["hosts"],
        hostfile=given["hostfile"],
        on=given["on"],
        ray_hosts=ray_hosts,
    )
    if given["mpi"] and given["on"] is None and choice.on == "ssh":  # as horovodrun --mpi
        return choice._replace(on="mpi")
    return choice


def _names(given: Sequence[str]) -> list[str]:
    """Names that were given one by one, or several with commas between."""
    return [name.strip() for words in given for name in words.split(",") if name.strip()]


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


def _environment(given: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, str]:
    """The workers' environment, without their places."""
    pairs = [word.partition("=") for word in given["export"]]
    environment = {
        **env.environ(),
        **{name: value for name, equals, value in pairs if equals},
        **flags.environment_of(given, file),
    }
    if given["gloo"] or (file.get("controller") == "gloo" and not given["mpi"]):
        environment["HORA_TRANSPORT"] = "gloo"
    if given["interfaces"]:
        environment["HORA_GLOO_IFACE"] = environment["HOROVOD_GLOO_IFACE"] = ",".join(_names(given["interfaces"]))
    if given["summary"]:
        environment["HORA_SUMMARY"] = "1"
    if given["as_horovod"]:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_SHIM), environment.get("PYTHONPATH", "")]))
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
    elif verdict.exit_code == PREEMPTED_EXIT_CODE:
        from hora.engine.explain import compact_ranks

        left = compact_ranks(e.rank for e in verdict.endings if e.returncode == PREEMPTED_EXIT_CODE)
        _say(
            f"{left} saved and left because the job must end (exit code {PREEMPTED_EXIT_CODE}); start it again to go on"
        )
    elif verdict.first is not None:
        tail = verdict.tails[verdict.first.rank]
        failure.show(*failure.explain(verdict.first, verdict.endings, tail), sys.stderr)
    if summary:
        click.echo("rank  host              exit                      seconds   cpu s   peak MB", err=True)
        for ending in sorted(verdict.endings):
            how = "lost" if ending.lost else ending.how
            click.echo(
                f"{ending.rank:>4}  {ending.host:<16.16}  {how:<24}{ending.seconds:>9.2f}{ending.cpu_s:>8.2f}"
                f"{ending.peak_bytes / 1e6:>10.0f}",
                err=True,
            )


def _dry_run(job: Job, choice: Choice) -> str:
    """What would be started, in words and as commands that can be read."""
    hosts = ", ".join(f"{host.name} ({host.slots} slots)" for host in job.plan.hosts)
    lines = [*([choice.why] if choice.why else []), f"hosts: {hosts}", f"workers: {job.plan.size}", f"on: {choice.on}"]
    return "\n".join([*lines, *job.way.preview(job)]) + "\n"


def _check_build() -> str:
    def box(present: bool) -> str:
        return "[X]" if present else "[ ]"

    def has(module: str) -> bool:
        return importlib.util.find_spec(module) is not None

    def nccl() -> bool:
        if not has("torch"):
            return False
        import torch

        return bool(torch.cuda.is_available() and torch.distributed.is_nccl_available())

    from hora.transport import shm

    return (
        f"Hora v{__version__}:\n\n"
        "Available Frameworks:\n"
        f"    [ ] TensorFlow\n    {box(has('torch'))} PyTorch\n    [ ] MXNet\n\n"
        "Available Controllers:\n"
        "    [ ] MPI\n    [X] Hora's own hub\n\n"
        "Available Tensor Operations:\n"
        f"    {box(shm.available())} shared memory\n    {box(has('torch'))} Gloo\n"
        f"    {box(nccl())} NCCL\n    {box(has('mpi4py'))} MPI\n"
    )
