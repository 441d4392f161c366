"""A group of commands, each imported when it is used, so that the list of them takes no time."""

from __future__ import annotations

import importlib
from typing import Any

import click

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """``table`` has, for each name, the module, the name of the click command in it, and what the list says."""

    def __init__(self, *args: Any, table: dict[str, tuple[str, str, str]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, attribute, _ = self._table[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Format the list from the table; no command is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, said) for name, (_, _, said) in self._table.items()])
