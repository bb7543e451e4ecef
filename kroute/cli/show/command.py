"""The command line of `kroute show`."""

from pathlib import Path

import click

from kroute.cli.parameters.arguments import SHOWN, complete_shown, parse_service
from kroute.cli.parameters.options import DURATION, FILTER, SORT_BY
from kroute.cli.parameters.run_options import with_settings
from kroute.cli.show import table
from kroute.cli.terminal.formats import output_option


@click.command()
@click.argument("what", nargs=-1, metavar=SHOWN, shell_complete=complete_shown)
@click.option(
    "-w", "--watch", is_flag=True, help="Show rates and connections of each virtual server until interrupted."
)
@click.option(
    "--interval", type=DURATION, default="2s", show_default=True, help="The time between two updates, with -w."
)
@click.option("--count", type=click.IntRange(1), default=None, help="With -w: end after so many updates.")
@SORT_BY
@FILTER
@output_option
@with_settings("--state-dir")
def show(
    what: tuple[str, ...],
    *,
    watch: bool,
    interval: float,
    count: int | None,
    sort_by: str | None,
    only: str,
    output: str,
    state_dir: Path,
) -> int:
    """Show what is served: virtual servers with schedulers, real servers and connections; or Services, or one in full.

    `kroute show policies` shows the pods that network policies isolate, and what these have refused, `kroute show
    peers` the BGP sessions, `kroute show routes` the addresses that are announced, and `kroute show pod-routes` the
    ways to other nodes' pods.

    Exits with 4 if the Service does not exist, and with 6 if Services or policies are requested and no agent answers.
    """
    if watch:
        from kroute.cli.show import live  # noqa: PLC0415  it imports rich

        if what or output in {"yaml", "name"} or interval <= 0:
            raise click.UsageError("-w shows all virtual servers, with -o table, wide or json and an interval above 0s")
        return live.main(live.Watch(state_dir, output, interval, sort_by or live.ORDER, only, count))
    if count is not None or sort_by is not None:
        raise click.UsageError("--count and --sort-by go with -w")
    if not what or what == ("services",):
        return (table.main_services if what else table.main)(state_dir, output, only)
    if what == ("policies",):
        from kroute.cli.show import policies  # noqa: PLC0415  few nodes have some

        return policies.main(state_dir, output, only)
    if what in {("peers",), ("routes",), ("pod-routes",)}:
        from kroute.cli.show import routing  # noqa: PLC0415  few nodes have some

        return routing.main(state_dir, what[0], output, only)
    if len(what) != 2 or what[0] != "service":
        raise click.UsageError(f"cannot show {' '.join(what)!r}: write kroute show {SHOWN}")
    try:
        key = parse_service(what[1])
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    from kroute.cli.show import service  # noqa: PLC0415  0.1 s that a table does not need

    return service.main(state_dir, key, output)
