"""`hora train`: trains a workload, in this process or in workers that it starts. The flags are made from the workload's
options; the work is in ``hora.workloads``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
import msgspec

from hora.errors import UsageError
from hora.workloads import WORKLOADS, Options, options_of

__all__ = ["train"]

_LAUNCHING = (
    click.Option(
        ["-np", "--num-proc", "np"], metavar="N|auto", help="Start so many workers; auto: one per slot or core."
    ),
    click.Option(["-H", "--hosts", "hosts"], metavar="h1:2,h2:4", help="Hosts to start them on, and their slots."),
    click.Option(["-hostfile", "--hostfile", "hostfile"], metavar="FILE", help="File with lines 'host slots=N'."),
    click.Option(
        ["--on"], type=click.Choice(["local", "ssh", "slurm", "mpi", "ray"]), help="What starts them, as in 'hora run'."
    ),
    click.Option(["--threads-per-worker"], type=click.IntRange(1), metavar="N", help="Threads each computes with."),
    click.Option(["--verbose"], is_flag=True, help="Say what the launcher does."),
)
_STARTERS = ("np", "hosts", "hostfile", "on")


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
    """Train a workload: in this process, which may be one of many that srun or mpirun has started; with -np or hosts,
    in workers started as by 'hora run'."""


def _command(name: str) -> click.Command:
    kind = options_of(name)
    return click.Command(
        name,
        callback=lambda **given: _train(kind, given),
        params=[*_LAUNCHING, *_flags(kind)],
        help=f"{WORKLOADS[name]} Data: --data DIR. What is learned and measured goes to --out DIR.",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


def _flags(kind: type[Options]) -> list[click.Option]:
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
            text += f"  [default: {shown}]"
        name = f"--{field.name.replace('_', '-')}"
        if hint is bool:
            flags.append(click.Option([f"{name}/--no-{name[2:]}", field.name], default=None, help=text))
        else:
            flags.append(click.Option([name, field.name], type=_type(hint), default=None, help=text))
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


def _train(kind: type[Options], given: Mapping[str, Any]) -> int:
    launching = {option.name: given[option.name] for option in _LAUNCHING if option.name}
    fields = {name: value for name, value in given.items() if name not in launching and value is not None}
    options = kind.of(fields)
    if any(launching[name] is not None for name in _STARTERS):
        return _launch(options, launching)
    from hora.workloads.start import train_here

    return train_here(options)


def _launch(options: Options, given: Mapping[str, Any]) -> int:
    """Start workers that train, as `hora run` would, and draw their progress."""
    from hora.config import env
    from hora.launch.job import Job
    from hora.launch.output import Console
    from hora.launch.pick import pick
    from hora.launch.supervise import supervise
    from hora.launch.ways import make_way
    from hora.workloads.progress import Bar, Listener
    from hora.workloads.start import stop_at_nonsense

    choice = pick(
        env.environ(), np=_number(given["np"]), hosts=given["hosts"], hostfile=given["hostfile"], on=given["on"],
        ray_hosts=_ray_hosts,
    )  # fmt: skip
    if options.emulate_workers % choice.plan.size:
        raise UsageError(
            f"--emulate-workers {options.emulate_workers} cannot be played by {choice.plan.size} processes: each plays "
            f"as many. Give a multiple of {choice.plan.size}, or another -np."
        )
    bar = Bar() if sys.stdout.isatty() else None
    raw = Console.of_process()
    listener = Listener(raw.stdout, bar)
    job = Job(
        plan=choice.plan,
        way=make_way(choice.on),
        command=(
            sys.executable, "-m", "hora.workloads", options.workload, msgspec.json.encode(options).decode(),
            *(["--launcher-draws"] if bar else []),
        ),
        environment={**env.environ(), **stop_at_nonsense(dict(env.environ()))},
        console=Console(listener, Listener(raw.stderr, bar) if bar else raw.stderr),
        prefix=choice.plan.size > 1,
        threads_per_worker=given["threads_per_worker"],
        say=_say if given["verbose"] else lambda line: None,
        announce=_say,
    )  # fmt: skip
    if choice.why:
        _say(choice.why)
    try:
        verdict = supervise(job)
    finally:
        if bar:
            bar.close()
    _tell(verdict)
    return verdict.exit_code


def _number(text: str | None) -> int | Literal["auto"] | None:
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(f"-np {text} is not a number of workers. Give 1, 2, … or 'auto' for all there is room for.")
    return int(text)


def _ray_hosts() -> Any:
    from hora.launch.ray import cluster_hosts

    return cluster_hosts()


def _say(line: str) -> None:
    click.echo(f"hora: {line}", err=True)


def _tell(verdict: Any) -> None:
    """How it ended, unless a worker has said all there is to say."""
    from hora.config.settings import PREEMPTED_EXIT_CODE
    from hora.launch import failure

    if verdict.interrupted_by is signal.SIGPIPE or verdict.exit_code in (0, 2, 3):
        return
    if verdict.exit_code == PREEMPTED_EXIT_CODE:
        _say(f"saved and left because the job must end (exit code {PREEMPTED_EXIT_CODE}); go on with --resume auto")
    elif verdict.interrupted_by is not None:
        _say(f"stopped by {verdict.interrupted_by.name}; all workers have ended")
    elif verdict.first is not None:
        title, lines = failure.explain(verdict.first, verdict.endings, verdict.tails[verdict.first.rank])
        failure.show(title, lines, sys.stderr)
