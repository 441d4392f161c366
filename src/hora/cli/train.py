"""`hora train`: trains a workload, in this process or in workers that it starts. The flags are made from the workload's
options; the work is in ``hora.workloads``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
import msgspec
from click.core import ParameterSource

from hora.cli import workers
from hora.errors import UsageError
from hora.workloads import WORKLOADS, Options, options_of
from hora.workloads.missing import check_folder

__all__ = ["STARTERS", "read_options", "train"]

_LAUNCHING = (
    *workers.OPTIONS,
    workers.switch("--independent", help="Each worker trains by itself: the speed if communication cost nothing."),
    workers.switch("--by-turns", help="Measure by turns each worker by itself, in step, and all together."),
)
STARTERS = ("np", "hosts", "hostfile", "on")


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
        callback=lambda **given: _train(name, given),
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


def read_options(workload: str, given: Mapping[str, Any]) -> Options:
    """The workload's options out of all that was given, checked."""
    launching = {option.name for option in _LAUNCHING}
    return options_of(workload).of(
        {name: value for name, value in given.items() if name not in launching and value is not None}
    )


def _train(workload: str, given: Mapping[str, Any]) -> int:
    options = read_options(workload, given)
    if any(given[name] is not None for name in STARTERS):
        return _launch(options, given)
    source = click.get_current_context().get_parameter_source
    for option in _LAUNCHING:
        if option.name and source(option.name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{option.opts[-1]} is for workers, and none are to be started. Give -np or -H as well.")
    from hora.workloads.start import train_here

    check_folder(options.workload, options.data_folder)
    return train_here(options)


def _launch(options: Options, given: Mapping[str, Any]) -> int:
    """Start workers that train, as `hora run` would, and draw their progress."""
    from hora.launch.output import Console
    from hora.launch.supervise import supervise
    from hora.workloads import bf16
    from hora.workloads.progress import Bar, Listener, can_draw
    from hora.workloads.start import stop_at_nonsense

    choice = workers.choose(given)
    if options.emulate_workers % choice.plan.size:
        raise UsageError(
            f"--emulate-workers {options.emulate_workers} cannot be played by {choice.plan.size} processes: each plays "
            f"as many. Give a multiple of {choice.plan.size}, or another -np."
        )
    environment = workers.environment(given)
    here = choice.on == "local"  # else every worker tries it on its own host
    if here:
        check_folder(options.workload, options.data_folder)
        environment |= bf16.settings(options, environment, workers.say)
    bar = Bar() if can_draw() else None
    raw = Console.of_process()
    listener = Listener(raw.stdout, bar)
    job = workers.job(
        given, choice,
        command=(
            sys.executable, "-m", "hora.workloads", options.workload, msgspec.json.encode(options).decode(),
            *(["--launcher-draws"] if bar else []), *(["--independent"] if given["independent"] else []),
            *(["--by-turns"] if given["by_turns"] else []), *(["--bf16-tried"] if here else []),
        ),
        environment={**environment, **stop_at_nonsense(environment)},
        console=Console(listener, Listener(raw.stderr, bar) if bar else raw.stderr),
    )  # fmt: skip
    if choice.why:
        workers.say(choice.why)
    workers.warn_if_crowded(choice)
    try:
        verdict = supervise(job)
    finally:
        if bar:
            bar.close()
    workers.tell(verdict, go_on="go on with --resume auto", explained=(0, 2, 3))
    return verdict.exit_code
