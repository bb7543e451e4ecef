"""`kroute help`: the help of kroute or of one command."""

import click

from kroute.cli.terminal.output import DONE


def complete_command(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The commands that begin so."""
    above = context.parent
    names = above.command.list_commands(above) if above and isinstance(above.command, click.Group) else []
    return [name for name in names if name.startswith(incomplete)]


@click.command("help")
@click.argument("name", required=False, metavar="[COMMAND]", shell_complete=complete_command)
@click.pass_context
def show_help(context: click.Context, *, name: str | None) -> int:
    """Show the help of kroute, or of COMMAND, as `kroute COMMAND --help` does."""
    above = context.parent
    if above is None or not isinstance(above.command, click.Group):
        raise click.UsageError("help is a command of kroute")
    if name is None:
        click.echo(above.get_help())
        return DONE
    _, command, _ = above.command.resolve_command(above, [name])
    if command is not None:
        with command.make_context(name, [], parent=above, resilient_parsing=True) as its:
            click.echo(command.get_help(its))
    return DONE
