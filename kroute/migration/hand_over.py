"""Give a node back to another proxy, which already runs beside what kroute has left.

A proxy that uses IPVS gets what serves. Virtual servers stay, since the other proxy takes every virtual server that it
desires for its own. So do sysctls, which it needs as well. Removed are kroute's rules, its sets, and its link, unless
the other proxy uses the link too. A proxy that has no source routes would never delete kroute's, so it gets the
addresses with the kernel's own routes.

A proxy that translates packets before IPVS sees them (kube-proxy in the modes iptables and nftables) uses nothing of
kroute's, and has every new connection once kroute's rules are gone, which keep VIPs from other programs. They go as
soon as the proxy serves every VIP. Connections that are open go on through IPVS. When these have ended, everything else
of kroute's is removed.
"""

import asyncio
from collections.abc import Iterable, Set
from contextlib import suppress
from typing import ClassVar

from kroute.checks.other_proxies import OtherProxy
from kroute.controllers.node_controllers import NodeControllers
from kroute.firewall.backend import open_what_stands
from kroute.kernel.errors import KernelError
from kroute.kernel.ipvs.client import Ipvs
from kroute.kernel.net.addresses import Addresses, BindAddress, UnbindAddress
from kroute.kernel.net.routes import DeleteLocalRoute, Routes
from kroute.migration.cleanup import no_plans, undo_all
from kroute.migration.leftovers import NodeScan
from kroute.migration.node_scan import scan_node, translated_vips
from kroute.migration.take_over import Outcome, RefusalError
from kroute.model.document import Document
from kroute.model.plan import VirtualServerKey
from kroute.reconcile.broadcaster import Broadcaster
from kroute.reconcile.cleanup_report import CleanupReport
from kroute.reconcile.comparison.source_routes import ours_among
from kroute.reconcile.comparison.virtual_servers import planned_key
from kroute.runtime.state_dir import AnotherKrouteError, StateDirectory
from kroute.settings import Settings

LOOK_EVERY = 2.0
"""Seconds between two looks whether the other proxy serves."""


class HandOver(Document):
    """What a hand-over would do.

    `unserved` are VIPs of kroute that the other proxy does not serve. `missing` are those that it serves, but has not
    bound because kroute's link has them. `translates`: it serves without IPVS, and `connections` are still open through
    kroute's virtual servers, which would be removed.
    """

    kind: ClassVar[str] = "HandOverPlan"

    keeps_link: bool
    vips: tuple[str, ...]
    unserved: tuple[str, ...]
    missing: tuple[str, ...]
    translates: bool = False
    connections: int = 0

    @property
    def is_due(self) -> bool:
        """Whether the other proxy serves every VIP, and no connection would be cut."""
        return not self.unserved and not self.connections

    def names(self) -> tuple[str, ...]:
        """The VIPs."""
        return self.vips


async def look_back(proxy: OtherProxy, settings: Settings) -> HandOver:
    """Compute what a hand-over would do now."""
    node = await scan_node(proxy, settings)
    async with Addresses() as addresses:
        vips = await addresses.read(settings.dummy_interface) if settings.dummy_interface in node.our_links else set()
    if proxy.nft_tables and node.nft_tables:  # it has removed IPVS's virtual servers and `kube-ipvs0` at its start
        vips |= {key.address for key in node.our_virtual_servers} - node.elsewhere
    keeps_link = proxy.link == settings.dummy_interface
    served = _served_by(proxy, node)
    bound, unserved = tuple(sorted(vips)), vips - served
    if unserved and (translated := vips & await translated_vips(proxy)):
        connections = await _open_connections(node.our_virtual_servers)
        unserved_yet = tuple(sorted(unserved - translated))
        return HandOver(False, bound, unserved_yet, (), translates=True, connections=connections)
    missing = vips & served - (vips if keeps_link else node.link_addresses or set())
    return HandOver(keeps_link, bound, tuple(sorted(unserved)), tuple(sorted(missing)))


async def until_it_serves(proxy: OtherProxy, settings: Settings, wait: float) -> None:
    """Return when no agent runs and a hand-over is due, or after `wait` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(wait):
            while not await _is_due(proxy, settings):  # noqa: ASYNC110  no event tells of changed sets
                await asyncio.sleep(LOOK_EVERY)


async def _is_due(proxy: OtherProxy, settings: Settings) -> bool:
    try:
        with StateDirectory.claim(settings.state_dir):
            return (await _begin(proxy, settings)).is_due
    except AnotherKrouteError:
        return False


async def _begin(proxy: OtherProxy, settings: Settings) -> HandOver:
    """Look, and remove kroute's rules once the other proxy translates what is for any VIP."""
    plan = await look_back(proxy, settings)
    if plan.translates and not plan.unserved:
        async with open_what_stands(settings) as (_, _, firewalls):
            for firewall in firewalls:
                await firewall.remove(CleanupReport())
    return plan


async def hand_over(proxy: OtherProxy, settings: Settings, *, force: bool) -> Outcome:
    """Remove kroute's own objects. Raises RefusalError while the hand-over is not due, unless `force`.

    The agent must not run: raises StateDirectoryError while it does. Where nothing of kroute's is, nothing is touched:
    a link with the name of the dummy interface is then another proxy's.
    """
    with StateDirectory.claim(settings.state_dir) as state_dir:
        plan = await _begin(proxy, settings)
        if plan.unserved and not force:
            raise RefusalError(
                f"{proxy.name} does not serve {len(plan.unserved)} of kroute's addresses yet ({plan.unserved[0]}): "
                "start it, wait until it has, and run this again"
            )
        if plan.connections and not force:
            raise RefusalError(
                f"{plan.connections} connections are still open through kroute's virtual servers, and would end: wait "
                "until they have ended, and run this again"
            )
        if plan.translates:
            report = await undo_all(settings, state_dir)
            return _outcome(proxy, report.undone, report)
        async with (
            open_what_stands(settings) as (settled, kernel, firewalls),
            NodeControllers(settled, Broadcaster(), no_plans, kernel) as controllers,
        ):
            if not controllers.ledger.exists and not firewalls:
                state_dir.empty()
                return Outcome([], [], f"nothing of kroute's is on this node: it is {proxy.name}'s")
            done = await _bind(proxy, plan.missing)
            report = await controllers.hand_over(firewalls, keep_interface=plan.keeps_link)
        if plan.keeps_link and not proxy.has_source_routes:
            with report.step(f"routes on {proxy.link}"):
                report.add(await _with_the_kernels_routes(proxy.link))
        if not report.failed:
            state_dir.empty()
    return _outcome(proxy, done + report.undone, report)


def _outcome(proxy: OtherProxy, done: list[str], report: CleanupReport) -> Outcome:
    next_step = "correct what failed, and run this again" if report.failed else f"the node is {proxy.name}'s"
    return Outcome(done, report.failed, next_step)


def _served_by(proxy: OtherProxy, node: NodeScan) -> set[str]:
    """The addresses that the other proxy's sets name."""
    return {str(element[0]) for name in proxy.port_sets for element in node.sets.get(name, ())}


async def _open_connections(virtual_servers: Set[VirtualServerKey]) -> int:
    """How many TCP and SCTP connections are established through these virtual servers."""
    async with Ipvs() as ipvs:
        found = (await ipvs.read()).items()
    ours = [state.real_servers for key, state in found if planned_key(key) in virtual_servers]
    return sum(real.active for real_servers in ours for real in real_servers.values())


async def _bind(proxy: OtherProxy, missing: Iterable[str]) -> list[str]:
    """Bind the addresses that the other proxy lacks: kube-proxy binds no external IP that kroute's link has."""
    changes = [BindAddress(address, keep_kernel_route=True) for address in missing]
    async with Addresses() as addresses:
        failures = await addresses.write(proxy.link, changes)
    if failures:
        raise KernelError(f"{failures[0]} (on {proxy.link}); nothing of kroute's was removed")
    return [f"{change} to {proxy.link}" for change in changes]


async def _with_the_kernels_routes(link: str) -> str:
    """Give the addresses on the link the kernel's own routes in place of kroute's; returns what was done.

    The kernel writes its route when an address is bound. Meanwhile kroute's route stays, so every packet to the address
    is delivered here.
    """
    async with Addresses() as addresses, Routes() as routes:
        bound = sorted(await addresses.read(link))
        pairs = [(UnbindAddress(address), BindAddress(address, keep_kernel_route=True)) for address in bound]
        again = [change for pair in pairs for change in pair]
        failures = [str(failure) for failure in await addresses.write(link, again)]
        ours = {address: ours_among(address, found) for address, found in (await routes.read(link)).items()}
        deletions = [
            DeleteLocalRoute(address, source) for address, route in ours.items() if route for source in route.sources
        ]
        failures += [str(failure) for failure in await routes.write(link, deletions)]
    if failures:
        raise KernelError(f"{failures[0]} (on {link}); run this again")
    return f"give {len(bound)} addresses on {link} the kernel's own routes"
