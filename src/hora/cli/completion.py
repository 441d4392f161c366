"""`hora completion`: the script that lets a shell complete commands, options and their values. Click makes it."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]

_SHELLS = ("bash", "zsh", "fish")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell. To install it:

    \b
    bash:  hora completion bash >> ~/.bashrc
    zsh:   hora completion zsh >> ~/.zshrc
    fish:  hora completion fish > ~/.config/fish/completions/hora.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "hora", "_HORA_COMPLETE").source())
