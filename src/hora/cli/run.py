"""``hora run``: start a command in several workers. Takes horovodrun's flags: ``workers`` has those that say where they
run, ``flags`` those that tune them."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from hora import __version__
from hora.cli import elastic, flags, workers
from hora.cli.workers import option, switch
from hora.config import env
from hora.errors import EnvironmentUnfit, UsageError
from hora.launch.elastic.choose import choose as choose_elastic
from hora.launch.elastic.choose import quicker
from hora.launch.elastic.supervise import supervise as supervise_elastic
from hora.launch.job import Job, JobResult
from hora.launch.output import Console
from hora.launch.planning.pick import LaunchChoice
from hora.launch.supervise import supervise

__all__ = ["run"]

_SHIM = Path(__file__).resolve().parent.parent / "as_horovod"

_HOW_MANY = ("-np", "--num-proc", "-H", "--hosts", "-hostfile", "--hostfile", "-ppn")

_UNUSED = "Accepted for compatibility; has no effect."


def _files(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(begun, type="file")]


_OPTIONS = (
    *workers.OPTIONS,
    switch("--as-horovod", help="Make 'import horovod.torch' in the command import Hora."),
    option("--output-filename", metavar="DIR", help="Also write each rank's output to DIR/rank.N/stdout and stderr."),
    switch("-prefix-timestamp", "--prefix-output-with-timestamp", "timestamp",
           help="Prefix each line of output with the time."),
    switch("--dry-run", help="Show hosts, ranks, environment and commands; start nothing."),
    switch("--summary",
           help="Print speed and communication now and then, and at the end each rank's exit code and time."),
    option("--config-file", metavar="FILE",
           help="Read flags from a YAML or TOML file; the command line takes precedence."),
    switch("-cb", "--check-build", "check_build", help="Show what this installation supports and exit."),
    switch("-v", "--version", "version", help="Show the version and exit."),
    switch("--gloo", help="Use Gloo between all workers instead of shared memory."),
    switch("--mpi", help="Start workers on other hosts with mpirun, like --on mpi."),
    switch("--jsrun", help="Not supported."),
    *flags.options(),
    switch("--disable-cache", help=_UNUSED),
    switch("--tcp", help=_UNUSED),
    *elastic.OPTIONS,
    click.Argument(["command"], nargs=-1, type=click.UNPROCESSED, shell_complete=_files),
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
    chosen = choose_elastic(given) if elastic.is_asked(given) else None
    choice = _choose(given) if chosen is None else chosen.choice
    environment = _environment(given, file)
    job = workers.job(
        given,
        choice,
        command=_resolve(given["command"]),
        environment=environment if chosen is None else quicker(environment),
        console=Console.of_process(),
        timestamp=given["timestamp"],
        output_directory=Path(given["output_filename"]) if given["output_filename"] else None,
        forward_stdin=choice.plan.size == 1 and choice.on == "local",
    )
    if given["dry_run"]:
        click.echo(_dry_run(job, choice), nl=False)
        return 0
    if choice.why:
        workers.say(choice.why)
    workers.warn_if_crowded(choice)
    verdict = supervise(job) if chosen is None else supervise_elastic(job, chosen.elastic).verdict
    workers.tell(verdict, go_on="start it again to continue")
    if given["summary"] and verdict.interrupted_by is not signal.SIGPIPE:
        _summarise(verdict)
    return verdict.exit_code


run = click.Command(
    "run",
    callback=_run,
    params=list(_OPTIONS),
    help="Run COMMAND on several workers: on this host, on others over ssh, with mpirun or Ray, or in the current "
    "Slurm, PBS or LSF allocation. COMMAND and its arguments are passed on unchanged; a .py file runs with this "
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
    if given["jsrun"]:
        raise EnvironmentUnfit("--jsrun is not supported. Leave it out: Hora finds the hosts of an LSF allocation.")
    if given["gloo"] and given["mpi"]:
        raise UsageError("--gloo and --mpi exclude each other. Give only one.")


def _choose(given: Mapping[str, Any]) -> LaunchChoice:
    try:
        choice = workers.choose(given)
    except UsageError:
        _refuse_options_after_the_command(given["command"])
        raise
    if given["mpi"] and given["on"] is None and choice.on == "ssh":  # as horovodrun --mpi
        return choice._replace(on="mpi")
    return choice


def _refuse_options_after_the_command(command: tuple[str, ...]) -> None:
    """``hora run python train.py -np 2``: -np would go to the script and not to Hora."""
    for at, word in enumerate(command[1:], 1):
        if word in _HOW_MANY or word.startswith(tuple(f"{name}=" for name in _HOW_MANY)):
            upto = at + (1 if "=" in word else 2)
            moved = shlex.join([*command[at:upto], *command[:at], *command[upto:]])
            raise UsageError(
                f"{word} comes after the command, so it went to {command[0]!r} and not to Hora. Options come before "
                f"the command: 'hora run {moved}'."
            )


def _resolve(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with its program found, so that a wrong name is one message and not one from every worker."""
    if not command:
        raise UsageError("there is no command to run. Write for example 'hora run -np 2 python train.py'.")
    program, path = command[0], Path(command[0])
    if program.endswith(".py") and not (path.is_file() and os.access(path, os.X_OK)):
        if not path.is_file():
            raise EnvironmentUnfit(f"the script {program!r} does not exist here ({Path.cwd()}). Check the path.")
        return (sys.executable, *command)
    if re.fullmatch(r"python[\d.]*", path.name) and (script := _script(command[1:])) and not Path(script).is_file():
        raise EnvironmentUnfit(f"the script {script!r} does not exist here ({Path.cwd()}). Check the path.")
    if shutil.which(program) is None:
        if path.is_file():
            raise EnvironmentUnfit(
                f"{program!r} is not executable. Run 'chmod +x {shlex.quote(program)}', or name its interpreter."
            )
        raise EnvironmentUnfit(f"the command {program!r} was not found. Check its name, or PATH.")
    return command


def _script(words: Sequence[str]) -> str:
    """The script that a Python with these arguments runs; empty if that is no file, or cannot be told.

    >>> _script(["-u", "train.py", "--lr", "1"]), _script(["-m", "train.py"]), _script(["-c", "print()"])
    ('train.py', '', '')
    """
    first = next((word for word in words if not re.fullmatch("-[bBdEIiOPqRsSuvx]+", word)), "")
    return first if first.endswith(".py") else ""


def _environment(given: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, str]:
    """The workers' environment, without their places."""
    environment = {**workers.environment(given), **flags.environment_of(given, file)}
    if given["gloo"] or (file.get("controller") == "gloo" and not given["mpi"]):
        environment["HORA_TRANSPORT"] = "gloo"
    if given["summary"]:
        environment["HORA_SUMMARY"] = "1"
    if given["as_horovod"]:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_SHIM), environment.get("PYTHONPATH", "")]))
    env.settings(environment)  # a bad value is one message now, and not one from every worker
    return environment


# ---- what to tell ----


def _summarise(verdict: JobResult) -> None:
    """Print how each rank ended."""
    click.echo("rank  host              exit                      seconds   cpu s   peak MB", err=True)
    for ending in sorted(verdict.endings):
        how = "lost" if ending.lost else ending.how
        click.echo(
            f"{ending.rank:>4}  {ending.host:<16.16}  {how:<24}{ending.seconds:>9.2f}{ending.cpu_s:>8.2f}"
            f"{ending.peak_bytes / 2**20:>10.0f}",
            err=True,
        )


def _dry_run(job: Job, choice: LaunchChoice) -> str:
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
        f"    {box(has('tensorflow'))} TensorFlow\n    {box(has('torch'))} PyTorch\n    {box(has('mxnet'))} MXNet\n"
        f"    {box(has('keras'))} Keras\n    {box(has('jax'))} JAX\n\n"
        "Available Controllers:\n"
        "    [ ] MPI\n    [X] Hora's own hub\n\n"
        "Available Tensor Operations:\n"
        f"    {box(shm.available())} shared memory\n    {box(has('torch'))} Gloo\n"
        f"    {box(nccl())} NCCL\n    {box(has('mpi4py'))} MPI\n"
    )
