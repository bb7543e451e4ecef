"""Take a node over from another proxy in two steps. kroute's agent is started between them.

1. While no agent runs, the other proxy's virtual servers are recorded in the ledger; that alone makes them kroute's.
   Nothing changes in the kernel, except the protocol of source routes on a link that kroute continues to use.
2. When the agent is ready, so that kroute serves every Service, the other proxy's remaining objects are removed.

Each step scans the node again and does what is left of it. So both may be repeated, and repeating an interrupted step
finishes it.
"""

import asyncio
from typing import ClassVar

import msgspec

from kroute.checks.known_proxies import OtherProxy
from kroute.kernel.errors import KernelError
from kroute.kernel.inotify import DirectoryChanges
from kroute.kernel.net.routes import Routes, SetLocalRoute
from kroute.migration.leftovers import Leftovers, recognise
from kroute.migration.node_ports import allocated_node_ports
from kroute.migration.node_scan import scan_node
from kroute.migration.removal import remove
from kroute.migration.running import signs_of_life
from kroute.migration.take_over_options import TakeOverOptions
from kroute.model.document import Document
from kroute.reconcile.exclusion import Exclusion
from kroute.reconcile.ledger import Ledger
from kroute.runtime.state_dir import StateDirectory, StateDirectoryInUseError, is_agent_ready
from kroute.settings import PortRange, Settings
from kroute.watchers.initial_sync import InitialSyncError, initial_sync


class RefusalError(Exception):
    """A migration that would do harm. The message says why, and what to do first."""


class Outcome(Document):
    """What a step has done and could not do, and what it could not read, one line each; and what comes next."""

    kind: ClassVar[str] = "MigrationOutcome"

    done: list[str]
    failed: list[str]
    next_step: str
    warnings: list[str] = msgspec.field(default_factory=list)

    def names(self) -> list[str]:
        """What was done."""
        return self.done


async def look(proxy: OtherProxy, settings: Settings, node_ports: PortRange) -> Leftovers:
    """The other proxy's leftovers. Services are read only if there are virtual servers in doubt."""
    node = await scan_node(proxy, settings.state_dir)
    exclusion = Exclusion(settings.exclude_cidrs)
    found = recognise(proxy, node, node_ports, exclusion=exclusion)
    if not found.in_doubt:
        return found
    try:
        allocated = allocated_node_ports(await initial_sync(settings))
    except InitialSyncError as error:
        return msgspec.structs.replace(found, no_services=str(error))
    return recognise(proxy, node, node_ports, allocated, exclusion)


async def take_over(proxy: OtherProxy, settings: Settings, options: TakeOverOptions) -> Outcome:
    """Perform the step that is due. Raises RefusalError, KernelError, LedgerError or StateDirectoryError."""
    try:
        with StateDirectory.claim(settings.state_dir):
            return await _adopt(proxy, settings, options)
    except StateDirectoryInUseError:
        return await _remove_the_rest(proxy, settings, options)


async def _adopt(proxy: OtherProxy, settings: Settings, options: TakeOverOptions) -> Outcome:
    """Perform the first step."""
    if not options.force:
        await _refuse_if_it_runs(proxy, look_at_ports=True)
    leftovers = await look(proxy, settings, options.node_ports)
    if leftovers.are_removed:
        return Outcome([], [], f"nothing of {proxy.name}'s is here: start kroute", leftovers.warnings)
    ledger = Ledger.open(settings.state_dir)
    links = [settings.dummy_interface] if leftovers.link == settings.dummy_interface else []
    ledger.adopt([*ledger.virtual_servers, *leftovers.to_adopt], {*ledger.links, *links})
    ledger.close()
    done = [f"adopt virtual server {key}" for key in leftovers.to_adopt]
    for link in links:
        done += [f"adopt link {link} with {len(leftovers.addresses)} addresses", *await _adopt_routes(link)]
    next_step = f"start kroute, and run this again to remove the rest of {proxy.name}'s"
    return Outcome(done, [], next_step, leftovers.warnings)


async def _adopt_routes(link: str) -> list[str]:
    """Set kroute's protocol on the IPv6 source routes of the link: by it kroute tells its routes from the kernel's."""
    async with Routes() as routes:
        found = await routes.read(link)
        changes = [
            SetLocalRoute(address, route.source)
            for address, on_link in sorted(found.items())
            for route in on_link
            if ":" in address and route.source is not None
        ]
        failures = await routes.write(link, changes)
    if failures:
        raise KernelError(f"{failures[0]}; run this again")
    return [f"adopt the source route of {change.address}" for change in changes]


async def _remove_the_rest(proxy: OtherProxy, settings: Settings, options: TakeOverOptions) -> Outcome:
    """Perform the second step."""
    await _wait_for_agent(settings, options)
    if not options.force:
        await _refuse_if_it_runs(proxy, look_at_ports=False)
    leftovers = await look(proxy, settings, options.node_ports)
    if leftovers.are_removed:
        return Outcome([], [], f"nothing of {proxy.name}'s is left", leftovers.warnings)
    if leftovers.to_adopt:
        raise RefusalError(
            f"{len(leftovers.to_adopt)} virtual servers are {proxy.name}'s still ({leftovers.to_adopt[0]}): "
            "stop kroute's agent (what it serves stays served), run this again, start the agent, and run this once more"
        )
    if leftovers.only_there and not options.force:
        raise RefusalError(
            f"{len(leftovers.only_there)} addresses that are served are on no interface but {leftovers.link} "
            f"({leftovers.only_there[0]}): see in the agent's log why it has not bound them"
        )
    report = await remove(leftovers)
    after = await look(proxy, settings, options.node_ports)
    if not report.failed and not after.are_removed:
        raise RefusalError(
            f"what was removed came back: {proxy.name} runs somewhere out of sight. Stop it, and run this again"
        )
    next_step = f"nothing of {proxy.name}'s is left"
    if report.failed:
        next_step = f"run this again, when what failed is put right: {proxy.name}'s rest is still here"
    return Outcome(report.undone, report.failed, next_step, leftovers.warnings)


async def _wait_for_agent(settings: Settings, options: TakeOverOptions) -> None:
    """Return when the agent serves everything that was listed at its start."""
    try:
        async with asyncio.timeout(options.wait):
            async with DirectoryChanges(settings.state_dir) as changes:
                while not is_agent_ready(settings.state_dir):
                    await changes.next()
    except TimeoutError:
        raise RefusalError(
            f"kroute's agent is not ready after {options.wait:g} s: nothing is removed before it serves every Service; "
            "see its log"
        ) from None


async def _refuse_if_it_runs(proxy: OtherProxy, *, look_at_ports: bool) -> None:
    if signs := await signs_of_life(proxy, look_at_ports=look_at_ports):
        raise RefusalError(
            f"{proxy.name} still runs on this node ({', '.join(signs)}): stop it first, what it made stays and goes on "
            "serving. If that is something else, say --force"
        )
