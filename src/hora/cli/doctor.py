"""`hora doctor`: tries what jobs need, for real. The checks are in ``hora.doctor``; here are options and output."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import click

__all__ = ["doctor"]


@click.command()
@click.option("--hosts", metavar="h1,h2", help="Also check these hosts over ssh: Python, versions, connections.")
@click.option(
    "-np",
    "--np",
    "np",
    type=click.IntRange(1),
    metavar="N",
    help="Number of workers to check for.  [default: one per core, at least 2]",
)
@click.option("--quick", is_flag=True, help="Skip what takes seconds: importing frameworks, Gloo, MPI, GPUs.")
@click.option("--gpus", is_flag=True, help="Only test the GPUs of this host, on every path that data takes.")
@click.option("--only", metavar="NAME,…", help="Run only these checks or groups of checks.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the findings to this file."
)
def doctor(hosts: str | None, np: int | None, quick: bool, gpus: bool, only: str | None, json_file: Path | None) -> int:
    """Check what works on this machine, and how to fix the rest.

    Starts real workers, moves real data, and prints the result of each check, with the fix where one is needed. The
    exit code is 0 if Hora can run a job here, and 3 if it cannot.
    """
    from rich.console import Console

    from hora import __version__
    from hora.config.env import environ
    from hora.doctor.check import Check, can_run, summary
    from hora.doctor.examine import DoctorReport, choose, conduct
    from hora.doctor.machine import Machine
    from hora.files import write_json
    from hora.launch.planning.hosts import parse_hosts

    if gpus:
        from hora.doctor.gpus import confirm

        return confirm(Machine(environ(), np=np or 2, hosts=(), quick=False), np, click.echo)
    checks = choose([name for part in (only or "").split(",") if (name := part.strip())], quick)
    names = tuple(host.name for host in parse_hosts(hosts)) if hosts else ()
    workers = np or max(2, len(os.sched_getaffinity(0)))
    machine = Machine(environ(), np=workers, hosts=names, quick=quick)
    console = Console(highlight=False)
    report = DoctorReport(console, checks, names)
    console.print(
        f"[bold]Hora {__version__}[/] on [bold]{socket.gethostname()}[/], for jobs of {workers} workers"
        + ("\n" if console.is_terminal else ""),
        soft_wrap=True,
    )
    started = time.monotonic()
    with console.status("starting") as status:

        def begun(check: Check) -> None:
            status.update(f"{check.group}: {check.name}")

        findings = conduct(checks, machine, begun, report.add)
    able, seconds = can_run(findings), time.monotonic() - started
    console.print(summary(findings), style="bold green" if able else "bold red", soft_wrap=not console.is_terminal)
    if json_file:
        result = {
            "hora": __version__, "host": socket.gethostname(), "np": workers, "hosts": names, "can_run": able,
            "summary": summary(findings), "seconds": seconds, "findings": findings,
        }  # fmt: skip
        write_json(json_file, result, "--json")
    return 0 if able else 3
