"""`hora plan`: the learning-rate plan of a run, before anything runs. The arithmetic is in ``hora.schedule``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hora.schedule.plan import Plan

__all__ = ["plan"]


@click.command()
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Workers.")
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True, help="Samples a worker and step.")
@click.option("--accumulation", type=click.IntRange(1), default=1, show_default=True, help="Batches a step.")
@click.option("--base-lr", type=float, default=None, help="The rate that works at --base-batch.  [default: 0.1]")
@click.option("--base-batch", type=click.IntRange(1), default=256, show_default=True, help="The batch it works at.")
@click.option(
    "--rule",
    type=click.Choice(["none", "linear", "sqrt", "lars"]),
    default="linear",
    show_default=True,
    help="How the rate grows with the batch; lars without --base-lr takes the published rate.",
)
@click.option(
    "--warmup",
    default="none",
    show_default=True,
    metavar="KIND:EPOCHS",
    help="none, constant, stepping, gradual, iteration, horovod or zero, such as gradual:5.",
)
@click.option(
    "--decay",
    default="none",
    show_default=True,
    metavar="DECAY",
    help="30,60,80 (tenths), 41:0.125,61:0.025 (factors), every:30, cosine, polynomial:2, exponential:0.94 or none.",
)
@click.option("--epochs", type=click.FloatRange(min=0, min_open=True), default=90, show_default=True, help="Epochs.")
@click.option("--samples", type=click.IntRange(1), default=1_281_167, show_default=True, help="Samples of an epoch.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write every epoch's rate.")
def plan(
    workers: int,
    batch: int,
    accumulation: int,
    base_lr: float | None,
    base_batch: int,
    rule: str,
    warmup: str,
    decay: str,
    epochs: float,
    samples: int,
    json_file: Path | None,
) -> None:
    """Print the learning-rate plan of a run: its rates, its steps, and what is known to go wrong with one like it."""
    from hora.schedule import Plan, parse_decay, parse_warmup

    if base_lr is None and rule != "lars":
        base_lr = 0.1
    made = Plan(
        base_lr=base_lr,
        base_batch=base_batch,
        batch=batch,
        workers=workers,
        accumulation=accumulation,
        rule=rule,  # type: ignore[arg-type]  # click has checked it
        warmup=parse_warmup(warmup),
        decay=parse_decay(decay),
        epochs=epochs,
        samples=samples,
    )
    _print(made)
    if json_file:
        _write(made, json_file)


def _print(made: Plan) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from hora.schedule.show import plot, stretches

    console = Console(highlight=False)
    grown = f"{made.rule} rule, reference {made.base_lr:g} at {made.base_batch}" if made.base_lr else "LARS, as MLPerf"
    accumulated = f" x {made.accumulation} accumulated" if made.accumulation > 1 else ""
    console.print(f"global batch  {made.global_batch:,} = {made.workers} workers x {made.batch}{accumulated}")
    console.print(f"peak rate     {made.peak_lr:.6g} ({grown})")
    console.print(f"steps         {made.steps_per_epoch:,} an epoch of {made.samples:,}, {made.total_steps:,} in all")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("epochs", "first step", "last step", "learning rate from", "to", ""):
        table.add_column(heading, justify="left" if heading in ("epochs", "") else "right", no_wrap=True)
    for stretch in stretches(made):
        span = f"{stretch.first}" if stretch.first == stretch.last else f"{stretch.first}-{stretch.last}"
        kind = "warm-up" if made.warms_up and made.warmup.covers(stretch.first) else ""
        low, high = stretch.first * made.steps_per_epoch, (stretch.last + 1) * made.steps_per_epoch - 1
        table.add_row(span, f"{low:,}", f"{high:,}", f"{stretch.begins:.6g}", f"{stretch.ends:.6g}", kind)
    console.print(table)
    console.print(plot(made, width=max(20, min(72, console.width - 16))), markup=False)
    if made.warmup.kind != "none" and not made.warms_up:
        console.print(f"Note: {made.warmup.kind} warm-up does not apply to a global batch of {made.global_batch}.")
    for caution in made.cautions():
        console.print(f"Caution: {caution}.", markup=False)


def _write(made: Plan, file: Path) -> None:
    import msgspec

    every = [{"epoch": epoch, "lr": made.lr_at_epoch(epoch)} for epoch in range(max(1, round(made.epochs)))]
    facts = {
        "global_batch": made.global_batch,
        "peak_lr": made.peak_lr,
        "steps_per_epoch": made.steps_per_epoch,
        "total_steps": made.total_steps,
        "cautions": made.cautions(),
    }
    document = {"plan": made, **facts, "epochs": every}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
