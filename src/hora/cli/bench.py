"""`hora bench`: measures Hora and other libraries. The work is in ``hora.bench``; here are only options and output."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

from hora.cli.progress import say, waiting
from hora.errors import UsageError, WorkersFailed

if TYPE_CHECKING:
    from hora.bench.plan import BenchPlan

R = TypeVar("R")

__all__ = ["bench"]

JSON = click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the results to this file."
)
# -np is Horovod's spelling; click takes it as one option, not as -n with the value "p".
WORKERS_OR_SLOTS = click.option(
    "-np", "--num-proc", "np", type=click.IntRange(1), metavar="N",
    help="Number of workers.  [default: 2; with --hosts, all their slots]",
)  # fmt: skip
HOSTS = click.option("-H", "--hosts", metavar="h1:2,h2:2", help="Hosts to measure between.  [default: this host only]")
TRAIN_ROUND_S = 0.6  # two steps of the slowest network: a turn begins with the caches full of another contender's
DEVICE = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where the tensors are. cuda: one GPU per worker, compared with NCCL.",
)
AGAINST = click.option(
    "--against",
    metavar="NAME,…",
    help="Peers to compare with: gloo, mpi, or none.  [default: those installed]",
)


def _rounds(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--rounds",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        metavar="N",
        help="Number of rounds; each measures every contender once.",
    )


@click.group()
def bench() -> None:
    """Benchmark Hora against its peers, side by side in one run.

    They take turns, so that whatever disturbs the machine disturbs all of them. Results are medians over rounds, of the
    slowest worker. Each must first compute the correct sum.
    """


@bench.command()
@WORKERS_OR_SLOTS
@AGAINST
@HOSTS
@click.option("--sizes", metavar="SIZE,…", help="Tensor sizes, such as 4,64K,16MB.  [default: 4 bytes to 64 MB]")
@DEVICE
@_rounds(21)
@JSON
def allreduce(
    np: int | None,
    against: str | None,
    hosts: str | None,
    sizes: str | None,
    device: str,
    rounds: int,
    json_file: Path | None,
) -> None:
    """Allreduce of one tensor, in place, from 4 bytes to 64 MB."""
    from hora.bench.plan import DEFAULT_SIZES, BenchPlan, parse_size

    chosen = tuple(parse_size(size) for size in sizes.split(",")) if sizes else DEFAULT_SIZES
    plan = BenchPlan(bench="allreduce", contenders=(), sizes=chosen, rounds=rounds, device=_there(device, hosts))
    _collective(plan, np, against, hosts, json_file)


@bench.command()
@WORKERS_OR_SLOTS
@AGAINST
@HOSTS
@_rounds(21)
@JSON
def gradients(np: int | None, against: str | None, hosts: str | None, rounds: int, json_file: Path | None) -> None:
    """Asynchronous allreduce of the 161 gradients of ResNet-50.

    Hora gets them in a different order on every worker, Gloo in the same order, and MPI as one flat buffer.
    """
    from hora.bench.plan import BenchPlan

    _collective(BenchPlan(bench="gradients", contenders=(), rounds=rounds), np, against, hosts, json_file)


@bench.command(short_help="Training throughput, as a share of that without communication.")
@WORKERS_OR_SLOTS
@HOSTS
@click.option(
    "--rate",
    metavar="RATE",
    help="Bandwidth of the link between the hosts, such as 1gbit.  [default: measured with plain sockets]",
)
@click.option(
    "--models",
    metavar="NAME,…",
    help="Models: resnet50, mlp, mnist, or gradients, a backward pass that computes nothing.  [default: all]",
)
@click.option(
    "--against", metavar="NAME,…", help="Peers to compare with: ddp, horovod, or none.  [default: those installed]"
)
@click.option(
    "--framework",
    default="torch",
    show_default=True,
    metavar="NAME",
    help="Framework: torch, tensorflow, keras or jax.",
)
@DEVICE
@_rounds(15)
@JSON
def train(
    np: int | None,
    hosts: str | None,
    rate: str | None,
    models: str | None,
    against: str | None,
    framework: str,
    device: str,
    rounds: int,
    json_file: Path | None,
) -> None:
    """Training throughput, as a share of what the same processes reach without communication.

    One thread per worker, SGD with momentum. DDP runs on Gloo, once with its defaults and once tuned (buffers not
    broadcast, gradients as views of its buckets). Each must first make the optimizer step of the mean gradient. With
    --hosts, Hora and DDP also run with bfloat16 compression, and the least time that the link allows is shown.
    """
    from hora.bench import drive
    from hora.bench.plan import FRAMEWORKS, TRAININGS, BenchPlan

    [framework] = _named(framework, "--framework", "framework", FRAMEWORKS)[:1]
    # What computes nothing needs a backward pass that can be told to compute nothing, which only torch has.
    known = tuple(key for key in TRAININGS if (framework == "torch" and hosts is None) or TRAININGS[key].images)
    chosen = _named(models, "--models", "model", known) if models is not None else known
    if device != "cpu" and framework != "torch":
        raise UsageError(f"--device {device} with --framework {framework}: only PyTorch is measured on GPUs.")
    peers = _named(against, "--against", "peer", drive.TRAIN_PEERS, or_none=True) if against is not None else None
    contenders, notes = drive.choose_to_train(peers, framework, hosts)
    plan = BenchPlan(
        bench="train", contenders=contenders, models=chosen, framework=framework, rounds=rounds, round_s=TRAIN_ROUND_S,
        link_bytes_per_s=_payload(rate, hosts), device=_there(device, hosts),
    )  # fmt: skip
    workers = np or _slots(hosts)
    _conclude(json_file, lambda progress: drive.measure(plan, workers, _shown_command(), notes, progress, hosts))


@bench.command(short_help="Overhead of importing hora.torch and of 'hora run'.")
@WORKERS_OR_SLOTS
@HOSTS
@_rounds(7)
@JSON
def launch(np: int | None, hosts: str | None, rounds: int, json_file: Path | None) -> None:
    """What importing hora.torch adds to importing torch, and what 'hora run' adds to starting processes.

    With --hosts: the time to start a program on them over ssh, compared with mpirun.
    """
    from hora.bench import launching

    workers, shown = np or _slots(hosts), _shown_command()
    if hosts is None:
        _conclude(json_file, lambda progress: launching.measure(workers, rounds, shown, progress))
    else:
        _conclude(json_file, lambda progress: launching.measure_hosts(hosts, workers, rounds, shown, progress))


@bench.command(short_help="Recovery time when workers are killed while they train.")
@click.option(
    "-np", "--num-proc", "np", type=click.IntRange(2), metavar="N",
    help="Number of workers.  [default: 3; with --hosts, all their slots]",
)  # fmt: skip
@HOSTS
@click.option(
    "--kills", type=click.IntRange(1), default=12, show_default=True, metavar="N", help="How many of Hora's to kill."
)
@click.option(
    "--against", metavar="NAME,…", help="Peers to compare with: torchrun, torchft, or none.  [default: those installed]"
)
@JSON
def elastic(np: int | None, hosts: str | None, kills: int, against: str | None, json_file: Path | None) -> None:
    """Kill workers (SIGKILL) while they train: how soon the others continue, and what it costs.

    Steps are simulated (20 ms), so that only the recovery is measured. Peers' workers are killed a quarter as often,
    because each of their recoveries takes seconds.
    """
    from hora.bench.elastic.result import LABELS, measure, print_result

    peers = tuple(key for key in LABELS if key != "hora")
    chosen = peers if against is None else _named(against, "--against", "peer", peers, or_none=True)
    workers = np or (_slots(hosts) if hosts else 3)
    shown = _shown_command()
    _conclude(
        json_file, lambda progress: measure(workers, ("hora", *chosen), kills, hosts, shown, progress), print_result
    )


def _payload(rate: str | None, hosts: str | None) -> float:
    """Bytes a second that are left of a link's rate for what is sent; 0 if the rate is not known."""
    from hora.bench.plan import PAYLOAD
    from hora.predict.network import parse_link

    if rate is None:
        return 0.0
    if hosts is None:
        raise UsageError("--rate is the bandwidth between hosts, so it needs --hosts.")
    return PAYLOAD * float(parse_link(rate).bytes_per_s)


def _there(device: str, hosts: str | None) -> str:
    """The device, if this host has it; other hosts' workers look for themselves."""
    if device != "cpu" and hosts is None:
        from hora.workloads import devices

        devices.check(device)
    return device


def _slots(hosts: str | None) -> int:
    """How many workers these hosts take; two if there are none."""
    from hora.launch.planning.hosts import parse_hosts

    return 2 if hosts is None else sum(host.slots for host in parse_hosts(hosts))


def _collective(
    plan: BenchPlan, np: int | None, against: str | None, hosts: str | None, json_file: Path | None
) -> None:
    import msgspec

    from hora.bench import drive

    workers = np or _slots(hosts)
    contenders, notes = drive.choose(_peers(against), hosts, plan.device)
    plan = msgspec.structs.replace(plan, contenders=contenders)
    _conclude(json_file, lambda progress: drive.measure(plan, workers, _shown_command(), notes, progress, hosts))


def _peers(against: str | None) -> tuple[str, ...] | None:
    """What ``--against`` names; None if it was not given.

    >>> _peers("mpi, gloo"), _peers("none"), _peers(None)
    (('mpi', 'gloo'), (), None)
    """
    from hora.bench.drive import PEERS

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


def _print_result(result: Any, console: Console) -> None:
    from hora.bench.show import print_result

    print_result(result, console)


def _conclude(
    json_file: Path | None,
    measure: Callable[[Callable[[str], None]], R],
    show: Callable[[R, Console], None] = _print_result,
) -> None:
    """Measure with progress on stderr, then print the table and write the file."""

    try:
        with waiting() as progress:
            result = measure(progress)
    except WorkersFailed as error:
        click.echo(f"hora: {error}", err=True)
        raise
    show(result, Console())
    if json_file:
        from hora.files import write_json

        write_json(json_file, result, "--json")
        say(f"results written to {json_file}")
