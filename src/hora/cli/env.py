"""`hora env`: what a bug report should have. The facts are gathered in ``hora.doctor.describe``."""

from __future__ import annotations

import json

import click

__all__ = ["env"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, to attach to a bug report.")
def env(as_json: bool) -> None:
    """Show versions, machine, limits and environment variables, for a bug report.

    Secrets are masked; no framework is imported.
    """
    from hora.config.env import environ
    from hora.doctor.describe import describe, lines
    from hora.doctor.machine import Machine

    facts = describe(Machine(environ()))
    click.echo(json.dumps(facts, indent=1, ensure_ascii=False) if as_json else "\n".join(lines(facts)))
