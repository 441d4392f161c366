"""`hora train`: trains a workload, in this process or in workers that it starts. The flags are made from the workload's
options; the work is in ``hora.workloads``."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
import msgspec
from click.core import ParameterSource

from hora.cli import elastic, workers
from hora.errors import UsageError
from hora.workloads import WORKLOADS, WorkloadOptions, folder, options_of
from hora.workloads.missing import check_folder
from hora.workloads.settings import refuse_unused

__all__ = ["STARTERS", "read_options", "train"]

_LAUNCHING = (
    *workers.OPTIONS,
    workers.option("--elastic", metavar="MIN:MAX",
                   help="Elastic: continue with MIN workers or more if some are lost, and add new ones up to MAX. "
                   "-np: the initial number."),
    *elastic.OPTIONS,
    workers.switch("--independent", help="Train without communication, to measure the upper limit."),
    workers.switch("--by-turns",
                   help="Measure in turns: without communication, synchronising once a step, and training together."),
    workers.option("--timeline-filename", metavar="FILE", help="Record a timeline, one file per rank."),
)  # fmt: skip
STARTERS = ("np", "hosts", "hostfile", "on")
_METAVARS = {
    "data": "DIR",
    "out": "DIR",
    "resume": "auto|FILE|no",
    "json": "FILE",
    "warmup": "KIND:EPOCHS",
    "decay": "DECAY",
}


class _Workloads(click.Group):
    """The workloads as subcommands; the options of one are imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(WORKLOADS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _command(cmd_name) if cmd_name in WORKLOADS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Workloads"):
            formatter.write_dl(list(WORKLOADS.items()))


@click.command("train", cls=_Workloads, context_settings={"help_option_names": ["-h", "--help"]})
def train() -> None:
    """Train a workload in this process, or, with -np or hosts, in workers that are started as by 'hora run'. srun and
    mpirun can start it too."""


def _command(name: str) -> click.Command:
    kind = options_of(name)
    source = "" if "data" in kind.unused else "Data is read from --data DIR. "
    kept = "Metrics" if "save" in kind.unused else "Checkpoints and metrics"
    return click.Command(
        name,
        callback=lambda **given: _train(name, given),
        params=[*_LAUNCHING, *_flags(kind)],
        help=f"{WORKLOADS[name]} {source}{kept} are written to --out DIR.",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


def _flags(kind: type[WorkloadOptions]) -> list[click.Option]:
    """A flag for every field; one that was not given is None."""
    hints = get_type_hints(kind, include_extras=True)
    flags = []
    for field in msgspec.structs.fields(kind):
        hint, *notes = (
            get_args(hints[field.name]) if get_origin(hints[field.name]) is Annotated else [hints[field.name]]
        )
        text = next((note.description for note in notes if isinstance(note, msgspec.Meta) and note.description), "")
        if field.default not in ("", None, False) and "[default" not in text:
            shown = f"{field.default:g}" if isinstance(field.default, float) else field.default
            shown = "yes" if shown is True else shown
            text += f"  [default: {shown}]"
        name, hidden = f"--{field.name.replace('_', '-')}", field.name in kind.unused
        if hint is bool:
            flags.append(click.Option([f"{name}/--no-{name[2:]}", field.name], default=None, help=text, hidden=hidden))
        else:
            metavar = _METAVARS.get(field.name)
            flags.append(
                click.Option(
                    [name, field.name], type=_type(hint), default=None, metavar=metavar, help=text, hidden=hidden
                )
            )
    return flags


def _type(hint: Any) -> Any:
    """What click takes for a field's type.

    >>> _type(float | None), _type(Literal["a", "b"]).choices
    (<class 'float'>, ('a', 'b'))
    """
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] or [hint]
    return kinds[0]


def read_options(workload: str, given: Mapping[str, Any]) -> WorkloadOptions:
    """The workload's options out of all that was given, checked."""
    launching = {option.name for option in _LAUNCHING}
    mine = {name: value for name, value in given.items() if name not in launching and value is not None}
    for name in mine:
        refuse_unused(workload, name, f"--{name.replace('_', '-')}")
    return options_of(workload).of(mine)


def _train(workload: str, given: Mapping[str, Any]) -> int:
    options = read_options(workload, given)
    given = {**given, **_elastic_range(given["elastic"])}
    if elastic.is_asked(given):
        _refuse_what_cannot_be_elastic(options, given)
    if any(given[name] is not None for name in STARTERS) or elastic.is_asked(given):
        return _launch(options, given)
    source = click.get_current_context().get_parameter_source
    for option in _LAUNCHING:
        if option.name and source(option.name) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"{option.opts[-1]} is for starting workers, and none are started. Give -np or -H as well."
            )
    from hora.workloads.start import train_here

    check_folder(options.workload, options.data_folder)
    began = folder.now()
    try:
        return train_here(options, threads=_threads(options) if options.logical_workers else 0)
    except KeyboardInterrupt:
        workers.say(_stopped(options, began))
        raise


def _threads(options: WorkloadOptions) -> int:
    """Threads of each process with logical workers: the same whatever number of processes there is, because sums
    inside a process depend on it."""
    return max(1, len(os.sched_getaffinity(0)) // options.logical_workers)


def _elastic_range(text: str | None) -> dict[str, int]:
    """
    >>> _elastic_range("1:4"), _elastic_range("2"), _elastic_range(None)
    ({'min_np': 1, 'max_np': 4}, {'min_np': 2, 'max_np': 2}, {})
    """
    if text is None:
        return {}
    low, _, high = text.partition(":")
    words = (low, high or low)
    if not all(word.isascii() and word.isdigit() for word in words) or not 1 <= int(words[0]) <= int(words[1]):
        raise UsageError(f"--elastic {text}: give the fewest and the most workers, such as 1:4.")
    return {"min_np": int(words[0]), "max_np": int(words[1])}


def _refuse_what_cannot_be_elastic(options: WorkloadOptions, given: Mapping[str, Any]) -> None:
    if options.not_elastic:
        raise UsageError(options.not_elastic)
    if options.framework != "torch":
        raise UsageError(
            f"--framework {options.framework} cannot be elastic here: model.fit cannot be resumed in the middle of an "
            "epoch. Train with --framework torch, or use hora.keras.elastic in a script of your own."
        )
    for name in ("independent", "by_turns"):
        if given[name]:
            raise UsageError(f"--{name.replace('_', '-')} measures a fixed number of workers. Leave --elastic out.")
    most = given["max_np"]
    if options.logical_workers and (most is None or most > options.logical_workers):
        said = "without --max-np" if most is None else f"for up to {most} processes"
        raise UsageError(
            f"--logical-workers {options.logical_workers} {said}: each process needs at least one. Give at least as "
            "many logical workers as there may be processes."
        )


def _check_logical(options: WorkloadOptions, given: Mapping[str, Any], size: int) -> None:
    if not options.logical_workers:
        return
    if size > options.logical_workers:
        raise UsageError(
            f"--logical-workers {options.logical_workers} for {size} processes: each needs at least one. Give {size} "
            "or more logical workers, or fewer processes."
        )
    for name in ("independent", "by_turns"):
        if given[name]:
            raise UsageError(f"--{name.replace('_', '-')} measures real workers. Leave --logical-workers out.")


def _launch(options: WorkloadOptions, given: Mapping[str, Any]) -> int:
    """Start workers that train, as `hora run` would, and draw their progress."""
    from hora.launch.elastic.choose import choose as choose_elastic
    from hora.launch.elastic.choose import quicker
    from hora.launch.elastic.supervise import supervise as supervise_elastic
    from hora.launch.output import Console
    from hora.launch.supervise import supervise
    from hora.workloads import bf16
    from hora.workloads.progress import ProgressBar, ProgressListener, can_draw
    from hora.workloads.start import stop_at_nonfinite

    chosen = choose_elastic(given, restartable=options.save) if elastic.is_asked(given) else None
    choice = workers.choose(given) if chosen is None else chosen.choice
    _check_logical(options, given, choice.plan.size)
    if options.logical_workers and given["threads_per_worker"] is None:
        given = {**given, "threads_per_worker": _threads(options)}
    if chosen is None and options.emulate_workers % choice.plan.size:
        raise UsageError(
            f"--emulate-workers {options.emulate_workers} cannot be divided among {choice.plan.size} processes evenly. "
            f"Give a multiple of {choice.plan.size}, or another -np."
        )
    environment = workers.environment(given)
    if given["timeline_filename"]:
        environment["HORA_TIMELINE"] = given["timeline_filename"]
    if chosen is not None:
        environment = quicker(environment)
    here = choice.on == "local"  # else every worker tries it on its own host
    if here:
        check_folder(options.workload, options.data_folder)
        if options.resume == "no" and not options.overwrite and options.workload != "synthetic":
            from hora.workloads.run_checkpoints import RunCheckpoints

            RunCheckpoints(options.out_folder).choose("no", overwrite=False)  # refuses what workers would
        if options.framework == "torch" and options.device not in ("auto", "cpu"):
            from hora.workloads import devices

            devices.check(options.device)
        environment |= bf16.settings(options, environment, workers.say)
    bar = ProgressBar() if can_draw() else None
    raw = Console.of_process()
    listener = ProgressListener(raw.stdout, bar)
    job = workers.job(
        given, choice,
        command=(
            sys.executable, "-m", "hora.workloads", options.workload, msgspec.json.encode(options).decode(),
            *(["--launcher-draws"] if bar else []), *(["--independent"] if given["independent"] else []),
            *(["--by-turns"] if given["by_turns"] else []), *(["--bf16-tried"] if here else []),
        ),
        environment={**environment, **stop_at_nonfinite(environment)},
        console=Console(listener, ProgressListener(raw.stderr, bar) if bar else raw.stderr),
    )  # fmt: skip
    if choice.why:
        workers.say(choice.why)
    workers.warn_if_crowded(choice)
    began = folder.now()
    try:
        verdict = supervise(job) if chosen is None else supervise_elastic(job, chosen.elastic).verdict
    finally:
        if bar:
            bar.close()
    workers.tell(verdict, go_on="continue with --resume auto", explained=(0, 2, 3))
    if verdict.interrupted_by is signal.SIGINT:
        workers.say(_stopped(options, began))
    return verdict.exit_code


def _stopped(options: WorkloadOptions, began: str) -> str:
    """Where a run that was interrupted is, by its record, and how to continue it. ``began``: when it was started; an
    older record is of another run."""
    from hora.checkpoint import CheckpointStore
    from hora.workloads.run_record import read_lines

    run, (steps, epochs) = folder.earlier(options.out_folder), read_lines(options.out_folder)
    if run is None or run.started < began or not (steps or epochs):
        return "stopped before the first step"
    last = max((lines[-1] for lines in (steps, epochs) if lines), key=lambda line: line["step"])
    place = f"stopped at epoch {int(last['epoch']) + 1}/{math.ceil(options.epochs)}, step {last['step']}"
    saved = CheckpointStore(options.out_folder).latest()
    if saved is None:
        return f"{place}; no checkpoint was written yet"
    return f"{place}; the last checkpoint is {saved.path}; continue with: {_again(sys.argv[1:])}"


def _again(words: Sequence[str]) -> str:
    """The command that continues the run that another has begun.

    >>> _again(["train", "mnist", "-np", "2", "--overwrite", "--resume", "old.pt"])
    'hora train mnist -np 2 --resume auto'
    """
    kept = [
        word for before, word in zip(["", *words], words, strict=False)
        if before != "--resume" and word not in ("--overwrite", "--resume") and not word.startswith("--resume=")
    ]  # fmt: skip
    return shlex.join(["hora", *kept, "--resume", "auto"])
