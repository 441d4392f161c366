"""`hora lab calibrate`: measures this machine for `hora plan --calibration`; the work is in ``hora.predict``."""

from __future__ import annotations

from pathlib import Path

import click

from hora.cli.progress import say, waiting

__all__ = ["command"]


@click.command("calibrate")
@click.option(
    "--model", type=click.Choice(["resnet50", "mlp", "mnist"]), default="resnet50", show_default=True,
    help="Model to train.",
)  # fmt: skip
@click.option(
    "-np",
    "--num-proc",
    "np",
    type=click.IntRange(2),
    default=2,
    show_default=True,
    metavar="N",
    help="Number of workers, on this host.",
)
@click.option(
    "--rounds", type=click.IntRange(3), default=11, show_default=True, metavar="N",
    help="Rounds to measure; fewer are faster but less precise.",
)  # fmt: skip
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("calibration.json"),
    show_default=True, help="File to write.",
)  # fmt: skip
def command(model: str, np: int, rounds: int, out: Path) -> None:
    """Measure the step time and the communication of this machine, for 'hora plan --calibration FILE'.

    Takes about a minute. The network between hosts cannot be measured on one host: give it to 'hora plan' as --link.
    """
    from hora.files import write_json
    from hora.predict.calibrate import calibrate, estimate_s
    from hora.text import duration_text, rate_text, share_text, size_text, time_text

    say(f"about {duration_text(estimate_s(rounds))} (a guess, for {np} free cores)")
    with waiting() as progress:
        found = calibrate(model, np, rounds=rounds, progress=progress)
    write_json(out, found, "-o")
    assert found.inside is not None and found.exposed is not None and found.jitter is not None  # all are measured
    for name, text in {
        "measured": found.about,
        "step": f"{time_text(found.compute_s)} of one worker with {found.batch} samples",
        "gradients": f"{size_text(found.gradient_bytes)}, {share_text(found.exposed)} of the communication not hidden",
        "inside a host": f"{rate_text(found.inside.bytes_per_s)}, {time_text(found.inside.latency_s)} latency",
        "jitter": f"{share_text(found.jitter)} of a step",
    }.items():
        click.echo(f"{name:<14} {text}")
    click.echo(f"Wrote {out}. Now: hora plan --workers 32 --batch {found.batch} --calibration {out} --link 10gbit:50us")
