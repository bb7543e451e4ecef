"""`kroute completion`: scripts that complete commands, flags, words and names of Services in a shell.

The scripts are click's. They call kroute itself for each completion, which asks the agent for names of Services.
"""

from importlib import import_module

import click
from click.shell_completion import ShellComplete, get_completion_class

from kroute.cli.terminal.output import DONE

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> int:
    """Write the script by which a shell completes commands, flags and names of Services.

    \b
    bash:  kroute completion bash > /etc/bash_completion.d/kroute
    zsh:   kroute completion zsh > /usr/local/share/zsh/site-functions/_kroute
    fish:  kroute completion fish > ~/.config/fish/completions/kroute.fish

    For this shell alone, in bash or zsh: source <(kroute completion bash).
    """
    main = import_module("kroute.cli.main")
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click cannot complete in {shell}")
    # Not BashComplete's own method: it starts bash to ask for its version.
    click.echo(ShellComplete.source(kind(main.cli, {}, main.PROGRAM, main.COMPLETION_VARIABLE)))
    return DONE
