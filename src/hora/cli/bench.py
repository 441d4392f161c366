"""`hora bench`: measures Hora beside its peers. The work is in ``hora.lab.bench``; here are only options and output."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from hora.errors import UsageError, WorkersFailed

if TYPE_CHECKING:
    from hora.lab.bench.plan import Plan, Result

__all__ = ["bench"]

# -np is Horovod's spelling; click takes it as one option, not as -n with the value "p".
WORKERS = click.option("-np", "--num-proc", "np", type=click.IntRange(1), default=2, show_default=True, help="Workers.")
JSON = click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here."
)
WORKERS_OR_SLOTS = click.option(
    "-np", "--num-proc", "np", type=click.IntRange(1), help="Workers.  [default: 2; with --hosts, all their slots]"
)
HOSTS = click.option("-H", "--hosts", metavar="h1:2,h2:2", help="Measure between these hosts.  [default: this one]")
TRAIN_ROUND_S = 0.6  # two steps of the slowest network: a turn begins with the caches full of another contender's
AGAINST = click.option(
    "--against",
    metavar="PEERS",
    help="Peers to measure beside Hora: gloo, mpi, both with a comma between, or none.  [default: what is installed]",
)


def _rounds(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--rounds",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help="How often each contender has a turn.",
    )


@click.group()
def bench() -> None:
    """Measure Hora, with its peers side by side in one run.

    Contenders take turns, so that whatever disturbs the machine disturbs all of them; figures are medians over rounds,
    of the slowest worker. Every contender must first produce the right sum.
    """


@bench.command()
@WORKERS_OR_SLOTS
@AGAINST
@HOSTS
@click.option("--sizes", help="Bytes that each worker brings, such as 4,64K,16MB.  [default: 4 bytes to 64 MB]")
@_rounds(21)
@JSON
def allreduce(
    np: int | None, against: str | None, hosts: str | None, sizes: str | None, rounds: int, json_file: Path | None
) -> None:
    """One tensor, summed in place, from 4 bytes to 64 MB."""
    from hora.lab.bench.plan import DEFAULT_SIZES, Plan, parse_size

    chosen = tuple(parse_size(size) for size in sizes.split(",")) if sizes else DEFAULT_SIZES
    plan = Plan(bench="allreduce", contenders=(), sizes=chosen, rounds=rounds)
    _collective(plan, np, against, hosts, json_file)


@bench.command()
@WORKERS_OR_SLOTS
@AGAINST
@HOSTS
@_rounds(21)
@JSON
def gradients(np: int | None, against: str | None, hosts: str | None, rounds: int, json_file: Path | None) -> None:
    """The 161 gradients of ResNet-50, submitted asynchronously.

    Hora gets them in a different order on every worker; Gloo in the same order; MPI as one flat buffer.
    """
    from hora.lab.bench.plan import Plan

    _collective(Plan(bench="gradients", contenders=(), rounds=rounds), np, against, hosts, json_file)


@bench.command()
@WORKERS
@click.option(
    "--models",
    metavar="NAMES",
    help="What to train: resnet50, mlp, mnist, and gradients for a backward that computes nothing.  [default: all]",
)
@click.option(
    "--against", metavar="PEERS", help="Peers: ddp, horovod, both with a comma between, or none.  [default: installed]"
)
@click.option("--framework", default="torch", show_default=True, help="torch, tensorflow, keras or jax.")
@_rounds(15)
@JSON
def train(
    np: int, models: str | None, against: str | None, framework: str, rounds: int, json_file: Path | None
) -> None:
    """Training, as a share of what the same processes reach without communicating.

    One thread a worker, SGD with momentum. DDP runs on Gloo, once as it is and once tuned (buffers not broadcast,
    gradients as views of its buckets). Every contender must first take the step of the mean gradient.
    """
    from hora.lab.bench import drive
    from hora.lab.bench.plan import FRAMEWORKS, TRAININGS, Plan

    [framework] = _named(framework, "--framework", "framework", FRAMEWORKS)[:1]
    # What computes nothing needs a backward pass that can be told to compute nothing, which only torch has.
    known = tuple(key for key in TRAININGS if framework == "torch" or TRAININGS[key].images)
    chosen = _named(models, "--models", "model", known) if models is not None else known
    peers = _named(against, "--against", "peer", drive.TRAIN_PEERS, or_none=True) if against is not None else None
    contenders, notes = drive.choose_to_train(peers, framework)
    plan = Plan(
        bench="train", contenders=contenders, models=chosen, framework=framework, rounds=rounds, round_s=TRAIN_ROUND_S
    )
    _conclude(json_file, lambda progress: drive.measure(plan, np, _shown_command(), notes, progress))


@bench.command()
@WORKERS_OR_SLOTS
@HOSTS
@_rounds(7)
@JSON
def launch(np: int | None, hosts: str | None, rounds: int, json_file: Path | None) -> None:
    """What importing hora.torch adds to importing torch, and what `hora run` adds to starting processes.

    With --hosts: what starting a program on them takes, by ssh, beside mpirun.
    """
    from hora.lab.bench import launching

    workers, shown = np or _slots(hosts), _shown_command()
    if hosts is None:
        _conclude(json_file, lambda progress: launching.measure(workers, rounds, shown, progress))
    else:
        _conclude(json_file, lambda progress: launching.measure_hosts(hosts, workers, rounds, shown, progress))


def _slots(hosts: str | None) -> int:
    """How many workers these hosts take; two if there are none."""
    from hora.launch.hosts import parse_hosts

    return 2 if hosts is None else sum(host.slots for host in parse_hosts(hosts))


def _collective(plan: Plan, np: int | None, against: str | None, hosts: str | None, json_file: Path | None) -> None:
    import msgspec

    from hora.lab.bench import drive

    workers = np or _slots(hosts)
    contenders, notes = drive.choose(_peers(against), hosts)
    plan = msgspec.structs.replace(plan, contenders=contenders)
    _conclude(json_file, lambda progress: drive.measure(plan, workers, _shown_command(), notes, progress, hosts))


def _peers(against: str | None) -> tuple[str, ...] | None:
    """What ``--against`` names; None if it was not given.

    >>> _peers("mpi, gloo"), _peers("none"), _peers(None)
    (('mpi', 'gloo'), (), None)
    """
    from hora.lab.bench.drive import PEERS

    return None if against is None else _named(against, "--against", "peer", PEERS, or_none=True)


def _named(text: str, option: str, kind: str, known: tuple[str, ...], or_none: bool = False) -> tuple[str, ...]:
    """The names in a list with commas, each of them known."""
    nothing = ("", "none") if or_none else ("",)
    named = tuple(name for part in text.split(",") if (name := part.strip().lower()) not in nothing)
    for name in named:
        if name not in known:
            ending = ", or none" if or_none else ""
            raise UsageError(f"{option} {text}: there is no {kind} {name!r}; it can be {' or '.join(known)}{ending}.")
    if not named and not or_none:
        raise UsageError(f"{option} {text!r} names nothing; it can be {' or '.join(known)}.")
    return named


def _shown_command() -> str:
    return shlex.join(["hora", *sys.argv[1:]])


def _conclude(json_file: Path | None, measure: Callable[[Callable[[str], None]], Result]) -> None:
    """Measure with progress on stderr, then print the table and write the file."""
    from hora.lab.bench.show import print_result

    log = Console(stderr=True, highlight=False)
    waiting = log.status("starting workers") if log.is_terminal else None
    context: AbstractContextManager[object] = waiting or nullcontext()

    def progress(text: str) -> None:
        if waiting:
            waiting.update(text)
        else:
            log.print(text)

    try:
        with context:
            result = measure(progress)
    except WorkersFailed as error:
        click.echo(f"hora: {error}", err=True)
        raise
    print_result(result, Console())
    if json_file:
        from hora.checkpoint.whole import write_json

        write_json(json_file, result, "--json")
        log.print(f"figures written to {json_file}")
