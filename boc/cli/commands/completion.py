"""boc completion."""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, index names, addresses and files on Tab.

    Add the line of your shell to the file beside it, and open a new shell:

    \b
      bash   ~/.bashrc                     eval "$(boc completion bash)"
      zsh    ~/.zshrc, after compinit      eval "$(boc completion zsh)"
      fish   ~/.config/fish/config.fish    boc completion fish | source

    Index names are those in the folder that --at, BOC_AT or boc.toml names; servers are not queried.

    \b
    Examples: boc completion bash
              boc completion zsh
              boc completion fish
    """
    from click.shell_completion import get_completion_class

    main = click.get_current_context().find_root().command
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"this version of click knows no {shell}; update it")
    click.echo(found(main, {}, "boc", "_BOC_COMPLETE").source(), nl=False)
