"""`kroute plan`: what an agent would change on this node now, without changing it."""

import asyncio

import click

from kroute.cli import output
from kroute.inspect.dry_run.rehearsal import NodeReader, Rehearsed, rehearse
from kroute.kernel.errors import KernelError
from kroute.model.node_facts import node_facts
from kroute.model.plan import Plan
from kroute.planning.catalog import Catalog
from kroute.settings import Settings
from kroute.watchers.first_list import FirstListError, first_list
from kroute.watchers.node import read_node_interfaces

NOTHING, FAILURE, CHANGES = 0, 1, 2
"""Exit codes."""

SIGNS = {"add": ("+", "green"), "edit": ("~", "yellow"), "delete": ("-", "red")}


def main(settings: Settings, *, as_json: bool) -> int:
    """Print the changes; returns 0 if there are none, 2 if there are, 1 when that could not be found out."""
    try:
        found = asyncio.run(_rehearse(settings))
    except (FirstListError, KernelError) as error:
        click.echo(f"kroute: {error}", err=True)
        return FAILURE
    if as_json:
        output.write(found, "json")
    else:
        print_changes(found)
    return CHANGES if found.changes else NOTHING


async def plans_of(settings: Settings) -> list[Plan]:
    """The plans of everything that the source of these settings knows now. Raises as `first_list` does."""
    interfaces = await read_node_interfaces(settings.dummy_interface)
    catalog = Catalog(settings, node_facts(settings, None, interfaces))
    catalog.set_interfaces(interfaces)
    catalog.take(await first_list(settings))
    return catalog.commit()


async def _rehearse(settings: Settings) -> Rehearsed:
    plans = await plans_of(settings)
    async with NodeReader() as node:
        return await rehearse(settings, plans, node)


def print_changes(found: Rehearsed) -> None:
    """The changes under the names of their Services, in the order in which they would be made."""
    services = dict.fromkeys(change.service for change in found.changes)
    for service in services:
        click.secho(service or "(no Service)", bold=True)
        for change in found.changes:
            if change.service == service:
                sign, colour = SIGNS[change.action]
                click.echo(f"  {click.style(sign, fg=colour)} {change.what}")
    for problem in found.problems:
        click.secho(problem, fg="yellow", err=True)
    click.echo(f"{len(found.changes)} changes" if found.changes else "nothing to change")
