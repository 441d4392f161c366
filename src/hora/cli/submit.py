"""``hora submit``: write a job script and hand it to the scheduler. The work is in ``hora.launch.submit``."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from hora.cli.workers import option, say
from hora.errors import EnvironmentUnfit, UsageError
from hora.launch import submit as work
from hora.launch.submit import order as read
from hora.launch.submit.container import runtime_of

__all__ = ["submit"]

_WARN = "USR1@120"  # two minutes: enough to finish a step and write a large checkpoint
_REQUEUES = 20
_COUNT = click.IntRange(min=1)


def _many(*names: str, metavar: str, help: str) -> click.Option:
    return option(*names, metavar=metavar, multiple=True, help=help)


_OPTIONS = (
    # What to ask for
    option("--scheduler", type=click.Choice(list(work.SCHEDULERS)),
           help="Scheduler.  [default: the one installed here]"),
    option("-N", "--nodes", metavar="N", type=_COUNT, help="Number of nodes.  [default: 1, or enough for --elastic]"),
    option("--tasks-per-node", "--ntasks-per-node", "tasks_per_node", metavar="N", type=_COUNT, default=1,
            show_default=True, help="Workers per node; with GPUs, one per GPU."),
    option("--elastic", metavar="MIN:MAX",
           help="Elastic job: start with MIN workers, use up to MAX."),
    option("-c", "--cpus-per-task", metavar="N", type=_COUNT, help="Cores per worker, including its data loaders."),
    option("--gpus-per-node", default="", metavar="[TYPE:]N", help="GPUs per node, visible to all its workers."),
    option("--mem", metavar="SIZE", help="Memory per node, such as 64G; 0: all of it."),
    option("-t", "--time", "time", metavar="TIME", help="Time limit: 4h, 1d12h, 04:00:00, or minutes."),
    option("-p", "--partition", "--queue", "-q", "queue", default="", metavar="NAME", help="Partition or queue."),
    option("-A", "--account", default="", metavar="NAME", help="Account or project to charge."),
    option("--qos", default="", metavar="NAME", help="Quality of service (Slurm)."),
    option("-C", "--constraint", default="", metavar="TEXT",
           help="Required node feature; with PBS, part of the select line."),
    option("--exclusive", is_flag=True, help="Do not share the nodes with other jobs."),
    option("--array", default="", metavar="0-9",
           help="Job array: run once per index; {task} in the command is the index."),
    _many("--directive", "directives", metavar="TEXT",
          help="Additional directive (repeatable), such as --mail-type=END."),
    # How it runs
    option("-J", "--job-name", "name", metavar="NAME", help="Job name.  [default: from the command]"),
    option("-o", "--output", default="", metavar="DIR/|PATTERN",
            help="Output file; %x: job name, %j: job id.  [default: logs/%x-NODESxTASKS-%j.log]"),
    _many("--module", "-m", "modules", metavar="NAME", help="Environment module to load; repeatable."),
    option("--venv", metavar="DIR|none",
           help="Virtual environment to activate.  [default: the one hora runs in, if any]"),
    _many("--env", metavar="NAME=VALUE", help="Environment variable to set, readable in the script; repeatable."),
    option("--launcher", type=click.Choice(["auto", "none", "run", "srun", "hora"]), default="auto", show_default=True,
            help="What starts the workers: hora run, srun, or the command itself (none). auto: none for Hora's own "
            "commands, hora run for others."),
    option("--container", default="", metavar="IMAGE",
           help="Run in a container: an Apptainer image (.sif, docker://…), a Docker image, or Slurm's OCI bundle."),
    option("--container-runtime", type=click.Choice(["apptainer", "docker", "slurm"]),
           help="Container runtime.  [default: by the image's name]"),
    _many("--mount", "mounts", metavar="DIR[:INSIDE]",
          help="Folder of the host to mount in the container; repeatable."),
    # Data
    _many("--stage", metavar="SOURCE[:NAME]",
          help="Copy a file or folder, or unpack a tar file, to each node's local disk: {stage}/NAME. Repeatable."),
    option("--stage-dir", default="", metavar="DIR", help="Folder to stage to.  [default: $TMPDIR, else /tmp]"),
    option("--keep-staged", is_flag=True, help="Keep staged data for the next job, which then does not copy it again."),
    # Long trainings
    option("--chain", type=_COUNT, default=1, metavar="N",
           help="Submit N jobs, each after the one before; {job} is 1, 2, …"),
    option("--chain-after", type=click.Choice(["ok", "any"]), default="ok", show_default=True,
            help="When the next job of a chain runs: after success, or in any case."),
    option("--epochs-per-job", type=_COUNT, metavar="E", help="In a chain, {epochs} is E, 2E, 3E, …"),
    option("--checkpoint-arg", default="", metavar="TEXT",
            help="Appended to the command of a job that continues another, such as '--resume last.pt'."),
    option("--requeue", is_flag=True, help="Requeue the job when preempted or out of time; see hvd.preempted()."),
    option("--max-requeues", type=_COUNT, metavar="N",
           help=f"Most requeues; implies --requeue.  [default: {_REQUEUES}]"),
    option("--signal", metavar="SIG@SECONDS",
           help=f"Signal to send before the time limit.  [default: {_WARN} with --requeue]"),
    # What to do
    option("--script", metavar="FILE", help="File for the job script.  [default: NAME.sbatch or NAME.pbs]"),
    option("--dry-run", is_flag=True, help="Print the script; write and submit nothing."),
    option("--json", "json_file", metavar="FILE", help="Also write the submitted jobs to this file."),
    click.Argument(["command"], nargs=-1, type=click.UNPROCESSED),
)  # fmt: skip


def _submit(**given: Any) -> int:
    name = given["scheduler"] or _scheduler_here()
    scheduler = work.SCHEDULERS[name]
    order = _order(given)
    script = Path(given["script"] or order.name + scheduler.suffix)
    text = work.render(order, scheduler, str(script), _written_by(given["command"]))
    if given["dry_run"]:
        click.echo(text.encode("utf-8", "surrogateescape"), nl=False)
        for command in work.commands(order, scheduler, script):
            say(f"would run: {shlex.join(command)}")
        return 0
    work.write(script, text)
    sent = work.send(order, scheduler, script)
    for job in sent:
        click.echo(job.id)
        after = f", after {job.after}" if job.after else ""
        say(f"submitted {job.id}: {order.nodes} x {order.tasks_per_node} workers{after}; output in {job.output}")
    if given["json_file"]:
        _record(Path(given["json_file"]), name, script, sent)
    return 0


submit = click.Command(
    "submit",
    callback=_submit,
    params=list(_OPTIONS),
    help="Write a job script that runs COMMAND under a scheduler, and submit it. COMMAND is a training script, which "
    "every worker runs, or a command of Hora (hora train, hora lab …), which runs once and starts its workers itself. "
    "The job script is self-contained: view it with --dry-run, keep it, edit it. Job ids are printed, one per line.",
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
)


def _scheduler_here() -> str:
    for name, scheduler in work.SCHEDULERS.items():
        if shutil.which(scheduler.program):
            return name
    programs = " nor ".join(scheduler.program for scheduler in work.SCHEDULERS.values())
    known = " or ".join(work.SCHEDULERS)
    raise UsageError(f"no scheduler was found: neither {programs} is installed here. Give --scheduler {known}.")


def _order(given: dict[str, Any]) -> work.BatchJob:
    requeues = given["max_requeues"] or (_REQUEUES if given["requeue"] else 0)
    warn = given["signal"] or (_WARN if requeues else None)
    elastic = read.parse_elastic(given["elastic"]) if given["elastic"] else None
    same = {name: given[name] for name in work.BatchJob.__struct_fields__ if name in given}
    order = work.BatchJob(
        **{
            **same,
            "elastic": elastic,
            "nodes": given["nodes"] or (-(-elastic[1] // given["tasks_per_node"]) if elastic else 1),
            "name": given["name"] or read.name_of(given["command"]),
            "mem_mb": read.parse_mem(given["mem"]) if given["mem"] else None,
            "time_s": read.parse_time(given["time"]) if given["time"] else None,
            "venv": _venv(given["venv"] or ("none" if given["container"] else None)),
            "container_runtime": given["container_runtime"] or (given["container"] and runtime_of(given["container"])),
            "env": tuple(map(read.parse_env, given["env"])),
            "launcher": {"hora": "auto"}.get(given["launcher"], given["launcher"]),
            "stage": tuple(map(read.parse_stage, given["stage"])),
            "epochs_per_job": given["epochs_per_job"] or 0,
            "checkpoint_args": read.split_words(given["checkpoint_arg"]),
            "warn": read.parse_warn(warn) if warn else None,
            "max_requeues": requeues,
        }
    )
    return msgspec.structs.replace(order, command=_checked(order))


def _checked(order: work.BatchJob) -> tuple[str, ...]:
    """The command; one of Hora's own is read as the job will, so that what it refuses is refused before the queue, and
    `hora train` gets the workers to start."""
    own = read.hora_words(order.command)
    if own is None or own[:1] == ("run",):
        return order.command
    from hora.cli.main import parse

    values = {"stage": order.stage_dir or "/tmp", "job": "1", "task": "0", "epochs": str(order.epochs_per_job)}
    words = [*own, *order.checkpoint_args]
    for name in order.placeholders:
        words = [word.replace(f"{{{name}}}", values[name]) for word in words]
    kind, given = parse(words)
    if order.array:
        _check_array(order, kind, given)
    if kind == "train":
        from hora.cli.train import STARTERS, read_options

        read_options(own[1], given)
        if "epochs" in order.placeholders and given["schedule_epochs"] is None:  # a job's {epochs} are only a part
            whole = str(order.chain * order.epochs_per_job)
            own = (*own, "--schedule-epochs", whole)
            order = msgspec.structs.replace(order, command=(*order.command, "--schedule-epochs", whole))
        if order.starts_workers and all(given[name] is None for name in STARTERS):
            place = len(order.command) - len(own) + 2  # after the workload
            many = ["-np", str(order.tasks)] if order.elastic is None else ["--elastic", "{}:{}".format(*order.elastic)]
            return (*order.command[:place], *many, *order.command[place:])
    elif kind == "lab" and given.get("workload"):
        from hora.cli.lab.flags import numbers, settings

        settings(given["workload"], given.get("sets") or ())
        if own[1] in ("scaling", "throughput"):  # others emulate the workers that there is no room for
            given["np"] = max(numbers(given["workers"], "--workers"))
    if isinstance(given.get("np"), int) and given["np"] > order.tasks and not given.get("hosts"):
        raise UsageError(
            f"the command starts {given['np']} workers, and the job has {order.nodes} x {order.tasks_per_node} tasks. "
            "Ask for more with --nodes or --tasks-per-node, or start fewer."
        )
    return order.command


def _check_array(order: work.BatchJob, kind: str, given: dict[str, Any]) -> None:
    """Refuse tasks that would all do the same in one folder, and tasks of a sweep for which there is no point."""
    if not any("{task}" in text for text in (*order.command, *order.checkpoint_args)):
        raise UsageError(
            f"--array {order.array}: the command is the same for every task, and all would write to the same folder. "
            "Write {task} where the number goes, as in --out runs/'{task}'."
        )
    if kind != "lab" or given.get("task") is None:
        return
    from hora.lab.sweep.space import grid_points, parse_grid

    if given["grid"] is None or (given["out"] is None and given["resume"] is None):
        raise UsageError(
            "--task runs one point of a --grid, whose tasks share a folder. Give --grid and --out DIR as well."
        )
    points = len(list(grid_points(parse_grid(given["workload"], given["grid"]))))
    if order.highest_task >= points:
        raise UsageError(
            f"--array {order.array} has a task {order.highest_task}, and the grid has {points} points, counted from 0. "
            f"Give --array 0-{points - 1}."
        )


def _venv(asked: str | None) -> str:
    """The environment to activate: jobs do not always inherit one, and a script should say what it needs."""
    if asked == "none":
        return ""
    if asked:
        return asked.rstrip("/") or "/"
    here = Path(sys.prefix)
    return str(here) if (here / "bin" / "activate").is_file() else ""


def _written_by(command: tuple[str, ...]) -> str:
    """This command line, as it was typed to submit the job."""
    typed = sys.argv[1:]
    options = typed[: len(typed) - len(command)]
    return shlex.join(["hora", *(word for word in options if word != "--dry-run"), *command])


def _record(path: Path, scheduler: str, script: Path, sent: list[work.Submitted]) -> None:
    from hora.files import json_text, replacing

    record = {"scheduler": scheduler, "script": str(script), "jobs": sent}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json_text(record))
    except OSError as error:
        raise EnvironmentUnfit(
            f"--json {str(path)!r} cannot be written: {error.strerror}. The jobs were submitted nevertheless: "
            f"{', '.join(job.id for job in sent)}."
        ) from None
