"""`kroute plan`: show what an agent would change on this node now, without changing it."""

import asyncio
from collections.abc import Sequence

import click

from kroute.checks import preflight
from kroute.cli.parameters.run_options import settings_in_force
from kroute.cli.parameters.settings_command import FlagsCommand
from kroute.cli.terminal.formats import output_option, show
from kroute.cli.terminal.output import DIFFERENT, DONE, refusing
from kroute.cli.terminal.screen import Screen
from kroute.firewall.backend import choose, node_clients, settled_on
from kroute.inspect.dry_run import PlannedChanges, dry_run
from kroute.kernel.errors import KernelError
from kroute.kernel.node_kernel import open_kernel
from kroute.model.kinds import watched
from kroute.model.node_facts import node_facts
from kroute.model.objects import Change
from kroute.model.plan import Plan
from kroute.planning.catalog import Catalog
from kroute.planning.pod_routes import PodRouteCatalog
from kroute.planning.policies.catalog import PolicyCatalog
from kroute.settings import Settings
from kroute.watchers.initial_sync import InitialSyncError, api_facts, read_all
from kroute.watchers.node import read_node_interfaces

SIGNS = {"add": ("+", "green"), "edit": ("~", "yellow"), "delete": ("-", "red")}


@click.command(cls=FlagsCommand)
@output_option
@settings_in_force
def plan(settings: Settings, *, output: str) -> int:
    """Show what `kroute run` would change on this node now, and change nothing.

    Takes the options of `kroute run`. If an agent runs, its settings apply to every option that is not given. Exits
    with 0 if there is nothing to change, with 5 if there is, and with 1 if that cannot be found out.
    """
    with refusing(InitialSyncError, KernelError):
        found = asyncio.run(changes_of(settings))
    show(found, output, print_changes)
    return DIFFERENT if found.changes else DONE


async def plans_of(
    settings: Settings, policies: PolicyCatalog | None = None, pod_routes: PodRouteCatalog | None = None
) -> list[Plan]:
    """The plans for all current objects of the source that the settings name. The other catalogs get the objects, too.

    Raises as `read_all` does.
    """
    interfaces = await read_node_interfaces(settings.dummy_interface)
    catalog = Catalog(settings, node_facts(settings, None, interfaces))
    catalog.set_interfaces(interfaces)

    def take(changes: Sequence[Change]) -> None:
        catalog.take(changes)
        for other in (policies, pod_routes):
            if other is not None:
                other.take(changes)

    await read_all(settings, watched(settings), take)
    catalog.set_api(await api_facts(settings))
    return catalog.plan_marked()


async def changes_of(settings: Settings) -> PlannedChanges:
    """What an agent with these settings would change now. Raises as `read_all` does, and KernelError."""
    for finding in await preflight.interface_findings(settings):
        raise KernelError(str(finding))
    all_pods = settings.policy_default_deny
    policies = PolicyCatalog(settings.node_name, all_pods=all_pods) if settings.network_policies else None
    pod_routes = PodRouteCatalog(settings) if settings.pod_network else None
    plans = await plans_of(settings, policies, pod_routes)
    settings = settled_on(settings, (await choose(settings)).name)
    async with open_kernel(settings.proc_sys, only=node_clients(settings)) as kernel:
        return await dry_run(settings, plans, kernel, policies, pod_routes)


def print_changes(found: PlannedChanges, screen: Screen) -> None:
    """Print the changes of each Service, in the order in which they would be made."""
    services = dict.fromkeys(change.service for change in found.changes)
    for service in services:
        screen.line(service or "(no Service)", bold=True)
        for change in found.changes:
            if change.service == service:
                sign, colour = SIGNS[change.action]
                screen.marked(f"  {sign} {change.what}", sign, colour, hang=6)
    screen.line(f"{len(found.changes)} changes" if found.changes else "nothing to change")
    for problem in found.problems:
        screen.line(problem, hang=4, fg="yellow")
