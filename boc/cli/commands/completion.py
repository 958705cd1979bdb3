"""boc completion."""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what makes SHELL complete commands, options, names of indexes, addresses and files on Tab.

    Put the line of your shell into the file named with it, and open a new shell:

    \b
      bash   ~/.bashrc                     eval "$(boc completion bash)"
      zsh    ~/.zshrc, behind compinit     eval "$(boc completion zsh)"
      fish   ~/.config/fish/config.fish    boc completion fish | source

    Names are those of the embedded place that --at, BOC_AT or boc.toml names; servers are not asked.

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
