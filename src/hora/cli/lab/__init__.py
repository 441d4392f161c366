"""`hora lab`: experiments and their records. Each subcommand is in a file of its own, imported when it is used."""

from __future__ import annotations

import click

from hora.cli.lazy import LazyGroup

__all__ = ["lab"]

_COMMANDS = {
    "throughput": ("hora.cli.lab.throughput", "command", "Throughput by workers, batch size, threads and transport."),
    "scaling": ("hora.cli.lab.scaling", "command", "Scaling efficiency, the bottleneck, and what to change."),
    "quality": ("hora.cli.lab.quality", "command", "Does the model get worse with more workers, and what helps?"),
    "elastic": ("hora.cli.lab.elastic", "command", "Kill workers while they train: recovery, goodput, same result?"),
    "sweep": ("hora.cli.lab.sweep", "command", "Search batch size, learning rate and more, by grid or TPE."),
    "study": ("hora.cli.lab.study", "command", "Repeat the reference study's experiments in miniature."),
    "calibrate": ("hora.cli.lab.calibrate", "command", "Measure this machine, for the predictions of 'hora plan'."),
    "report": ("hora.cli.lab.report", "command", "Write one page with tables and plots of any runs."),
    "list": ("hora.cli.lab.records", "list_command", "List runs and experiments, newest first."),
    "show": ("hora.cli.lab.records", "show_command", "Show a run or experiment: configuration, environment, results."),
    "compare": ("hora.cli.lab.records", "compare_command", "Show how runs differ, in configuration and results."),
}


@click.group("lab", cls=LazyGroup, table=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
def lab() -> None:
    """Measure how a workload scales to more workers, and keep a record of every run."""
