"""`hora plan`: the learning-rate plan of a run, and what it is expected to take, before anything runs.

The arithmetic is in ``hora.schedule`` and ``hora.predict``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hora.cli.fit import wrapped
from hora.errors import UsageError
from hora.schedule.plan import IMAGENET_SAMPLES

if TYPE_CHECKING:
    from rich.console import Console

    from hora.predict.forecast import Outlook
    from hora.predict.network import Algorithm
    from hora.schedule.plan import LearningRatePlan

__all__ = ["plan"]


@click.command()
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Number of workers.")
@click.option(
    "--batch", type=click.IntRange(1), default=32, show_default=True, metavar="N", help="Batch size per worker."
)
@click.option(
    "--accumulation", type=click.IntRange(1), default=1, show_default=True, metavar="N",
    help="Batches that each worker accumulates per step.",
)  # fmt: skip
@click.option(
    "--base-lr",
    type=float,
    default=None,
    metavar="LR",
    help="Learning rate at --base-batch.  [default: 0.1]",
)
@click.option(
    "--base-batch", type=click.IntRange(1), default=256, show_default=True, metavar="N",
    help="Global batch size that --base-lr is for.",
)  # fmt: skip
@click.option(
    "--rule",
    type=click.Choice(["none", "linear", "sqrt", "lars"]),
    default="linear",
    show_default=True,
    help="How the learning rate scales with the global batch size; lars without --base-lr uses the published rate.",
)
@click.option(
    "--warmup",
    default="none",
    show_default=True,
    metavar="KIND:EPOCHS",
    help="Warm-up: none, constant, stepping, gradual, iteration, horovod or zero, such as gradual:5.",
)
@click.option(
    "--decay",
    default="none",
    show_default=True,
    metavar="DECAY",
    help="Epochs of a tenfold decay (30,60,80), factors of the peak (41:0.125,61:0.025), every:30, cosine, "
    "polynomial:2, exponential:0.94 or none.",
)
@click.option(
    "--epochs", type=click.FloatRange(min=0, min_open=True), default=90, show_default=True, metavar="N",
    help="Number of epochs.",
)  # fmt: skip
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=IMAGENET_SAMPLES,
    show_default=True,
    metavar="N",
    help="Samples per epoch.",
)
@click.option(
    "--last",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Keep or drop the samples left over at the end of an epoch, which make a smaller step.",
)
@click.option("--step-ms", type=float, metavar="MS", help="Predict from the time of one worker's step at --batch.")
@click.option(
    "--calibration",
    metavar="FILE|study",
    help="Predict from a calibration, a table of throughputs, or the reference study's figures.  "
    "[default: study, if the samples are ImageNet's]",
)
@click.option("--link", metavar="RATE:LATENCY", help="Bandwidth and latency between hosts, such as 10gbit:50us.")
@click.option(
    "--per-host", type=click.IntRange(1), metavar="N", help="Workers per host.  [default: 4, or the calibration's]"
)
@click.option(
    "--gradient-mb",
    type=click.FloatRange(min=0),
    metavar="MB",
    help="Size of all gradients.  [default: ResNet-50's 97.5]",
)
@click.option(
    "--algorithm",
    type=click.Choice(["ring", "tree", "hierarchical"]),
    help="Allreduce algorithm.  [default: hierarchical, as in Hora, or the calibration's]",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the plan, with the rate of every epoch, to this file.",
)  # fmt: skip
def plan(
    base_lr: float | None,
    rule: str,
    warmup: str,
    decay: str,
    step_ms: float | None,
    calibration: str | None,
    link: str | None,
    per_host: int | None,
    gradient_mb: float | None,
    algorithm: Algorithm | None,
    json_file: Path | None,
    **given: Any,
) -> None:
    """Print the learning-rate plan of a run: its learning rates, its steps, known problems with such a plan, and the
    predicted run time."""
    from hora.files import write_json
    from hora.predict.calibration import basis_for
    from hora.predict.forecast import document, outlook_of
    from hora.schedule import LearningRatePlan, parse_decay, parse_warmup

    if base_lr is None and rule != "lars":
        base_lr = 0.1
    made = LearningRatePlan(
        base_lr=base_lr,
        rule=rule,  # type: ignore[arg-type]  # click has checked it
        warmup=parse_warmup(warmup),
        decay=parse_decay(decay),
        **given,
    )
    if step_ms is not None and calibration is not None:
        raise UsageError("--step-ms and --calibration were both given. Both say how long a step takes. Leave one out.")
    basis = basis_for(made, step_s=None if step_ms is None else step_ms / 1e3, calibration=calibration)
    if basis is not None:
        size = None if gradient_mb is None else 2**20 * gradient_mb
        basis = basis.of(gradient_bytes=size, per_host=per_host, algorithm=algorithm, link=link)
    seen = None if basis is None else outlook_of(made, basis)
    _print(made, seen)
    if json_file:
        write_json(json_file, document(made, seen), "--json")


def _print(made: LearningRatePlan, seen: Outlook | None) -> None:
    from rich.console import Console

    from hora.schedule.show import plot, stretches
    from hora.terminal import table

    console = Console(highlight=False)
    grown = f"{made.rule} rule, reference {made.base_lr:g} at {made.base_batch}" if made.base_lr else "LARS, as MLPerf"
    accumulated = f" x {made.accumulation} accumulated" if made.accumulation > 1 else ""
    console.print(f"global batch  {made.global_batch:,} = {made.workers} workers x {made.batch}{accumulated}")
    console.print(f"peak rate     {made.peak_lr:.6g} ({grown})")
    console.print(f"steps         {made.steps_per_epoch:,} an epoch of {made.samples:,}, {made.total_steps:,} in all")
    headings = ("epochs", "first step", "last step", "learning rate from", "to", "")
    shown = table("", headings, left=("epochs", ""), padding=(0, 1))
    for stretch in stretches(made):
        span = f"{stretch.first}" if stretch.first == stretch.last else f"{stretch.first}-{stretch.last}"
        kind = "warm-up" if made.warms_up and made.warmup.covers(stretch.first) else ""
        low, high = stretch.first * made.steps_per_epoch, (stretch.last + 1) * made.steps_per_epoch - 1
        shown.add_row(span, f"{low:,}", f"{high:,}", f"{stretch.begins:.6g}", f"{stretch.ends:.6g}", kind)
    console.print()
    console.print(shown)
    console.print()
    console.print(plot(made, width=max(20, min(72, console.width - 16))), markup=False)
    if made.warmup.kind != "none" and not made.warms_up:
        console.print(f"Note: {made.warmup.kind} warm-up does not apply to a global batch of {made.global_batch}.")
    for caution in made.cautions():
        console.print(f"Caution: {caution}.", markup=False)
    _print_outlook(seen, console)


def _print_outlook(seen: Outlook | None, console: Console) -> None:
    from hora.terminal import table
    from hora.text import duration_text, share_text, time_text

    console.print()
    if seen is None:
        console.print(
            "Time is not predicted: give --step-ms, the time of one worker's step, or --calibration.", markup=False
        )
        return
    here, level = seen.here, share_text(seen.here.step_s.level)
    parts = f"{time_text(here.compute_s)} computing, {time_text(here.waiting_s)} waiting for the slowest"
    step, speed, share, run = here.step_s, here.images_per_s, here.efficiency, seen.run_s
    lines = {
        "predicted": f"from {seen.about}; in brackets, {level} intervals",
        "step": f"{time_text(step.middle)} ({time_text(step.low)} to {time_text(step.high)}): {parts}, "
        f"{time_text(here.exposed_s)} of {time_text(here.comm_s)} communicating not hidden",
        "samples/s": f"{speed.middle:,.0f} ({speed.low:,.0f} to {speed.high:,.0f}) on {here.hosts} hosts",
        "efficiency": f"{share_text(share.middle)} ({share_text(share.low)} to {share_text(share.high)})",
        "whole run": f"{duration_text(run.middle)} ({duration_text(run.low)} to {duration_text(run.high)})",
    }
    for heading, text in lines.items():
        line = f"{heading:<13} {text}"
        if console.is_terminal:  # broken below where it begins
            line = wrapped(line, console.width, 14)
        console.print(line, markup=False, soft_wrap=True)
    if seen.farther[seen.algorithm]:
        headings = ("workers", "sum", "step", "samples/s", "efficiency", "interval")
        shown = table("With many more workers", headings, left=("sum",), padding=(0, 1))
        for algorithm, rows in seen.farther.items():
            for row in rows:
                share = row.efficiency
                shown.add_row(
                    f"{row.workers:,}", algorithm, time_text(row.step_s.middle), f"{row.images_per_s.middle:,.0f}",
                    share_text(share.middle), f"{share_text(share.low)} to {share_text(share.high)}",
                )  # fmt: skip
        console.print()
        console.print(shown)
    for text in seen.assumptions:
        console.print(f"Assumed: {text}.", markup=False, soft_wrap=not console.is_terminal)
    for text in seen.far_assumptions if seen.farther[seen.algorithm] else ():
        console.print(f"Assumed with many more workers: {text}.", markup=False, soft_wrap=not console.is_terminal)
