"""Take a node over from another proxy in two steps, between which kroute begins to serve.

1. The other proxy's virtual servers are recorded in the ledger; that alone makes them kroute's. Nothing changes in the
   kernel, except the protocol of source routes on a link that kroute continues to use.
2. When kroute serves every Service, the other proxy's remaining objects are removed.

An agent takes both steps by itself when its turn has come (`TakeOver`). `kroute migrate` takes them by hand
(`take_over`): the first while no agent runs, the second beside a running one. Each step scans the node again and does
what is left of it. So both may be repeated, and repeating an interrupted step finishes it.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec
import structlog

from kroute.base.backoff import Backoff
from kroute.checks.other_proxies import OTHER_PROXIES, OtherProxy
from kroute.checks.running_proxies import LISTENERS, Sign, firewall_at_work, routing_at_work, signs_of_life
from kroute.controllers.network_policy import NetworkPolicyController
from kroute.controllers.pod_routes import PodRoutes
from kroute.inspect.agent_socket import AgentUnreachableError, ask_for
from kroute.kernel.errors import KernelError
from kroute.kernel.inotify import DirectoryChanges
from kroute.kernel.net.routes import Routes, SetLocalRoute
from kroute.migration.leftovers import Leftovers, NodeScan, allocated_node_ports, recognise
from kroute.migration.node_scan import scan_node
from kroute.migration.removal import remove
from kroute.model.document import Document
from kroute.reconcile.ledger import Exclusion, Ledger, LedgerError, TakeOverBegun, TakeOverDone
from kroute.reconcile.pass_status import ControllerStatistics
from kroute.runtime.state_dir import StateDirectory, StateDirectoryInUseError, is_agent_ready
from kroute.settings import PortRange, Settings
from kroute.settings.text import parse_ports
from kroute.telemetry.statistics import QUESTION
from kroute.watchers.initial_sync import InitialSyncError, initial_sync

NODE_PORT_RANGE = PortRange(30000, 32767)
"""The API server's default (`--service-node-port-range`)."""


class TakeOverOptions(msgspec.Struct, frozen=True):
    """`node_ports`: the range of node ports.

    `wait`: seconds for the agent to become ready. `force`: skip all refusals. `is_by_hand`: kube-router's file of CNI
    goes, too. A kube-router that is only restarted would not start without: its init container has seen the file.
    """

    node_ports: PortRange = NODE_PORT_RANGE
    wait: float = 60.0
    force: bool = False
    is_by_hand: bool = False


DEFAULTS = TakeOverOptions()


def parse_port_range(text: str) -> PortRange:
    """Read one range of ports, `30000-32767`."""
    ranges = parse_ports(text)
    if len(ranges) != 1:
        raise ValueError(f"{text!r} is not one range of ports: write 30000-32767")
    return ranges[0]


log = structlog.get_logger(__name__)

NOT_WRITTEN = "kroute has not written its own yet"
FIRST_RETRY, LAST_RETRY = 1.0, 300.0
"""Seconds until what could not be removed is tried again."""


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


async def look(proxy: OtherProxy, settings: Settings, options: TakeOverOptions) -> Leftovers:
    """The other proxy's leftovers. Services are read only if there are virtual servers in doubt.

    If kroute is to enforce network policies, the other's rules for these are among them, but not before an agent has
    written its own, nor while the other's firewall runs. The same is true of the pods' network.
    """
    whole = proxy.with_parts(firewall=settings.network_policies, routing=settings.pod_network)
    node = await scan_node(whole, settings)
    if not options.is_by_hand:
        node = msgspec.structs.replace(node, cni_files=())
    exclusion = Exclusion(settings.exclude_cidrs)
    found, no_services = recognise(proxy, node, options.node_ports, exclusion=exclusion), ""
    if found.in_doubt:
        try:
            allocated = allocated_node_ports(await initial_sync(settings))
            found = recognise(proxy, node, options.node_ports, allocated, exclusion)
        except InitialSyncError as error:
            no_services = str(error)
    found = msgspec.structs.replace(found, no_services=no_services)
    if settings.network_policies:
        found = await _with(_FIREWALL, firewall_at_work, found, node, settings, options)
    return await _with(_ROUTING, routing_at_work, found, node, settings, options) if settings.pod_network else found


class _Part(NamedTuple):
    """What kube-router may do besides Services. `field`: that of `Leftovers`. `controller`: what does it in kroute."""

    field: str
    controller: str
    things: str
    name: str


_FIREWALL = _Part("with_firewall", NetworkPolicyController.name, "rules of network policies", "firewall")
_ROUTING = _Part("with_routing", PodRoutes.name, "routes to pods", "routing")
_OF_PARTS = ("tables", "sets", "nft_tables", "policy_rules", "routes", "tunnels", "cni_files")


async def _with(
    part: _Part,
    at_work: Callable[[], str],
    found: Leftovers,
    node: NodeScan,
    settings: Settings,
    options: TakeOverOptions,
) -> Leftovers:
    """The same with a further part of the proxy's, if there is any and it may go."""
    whose = msgspec.structs.replace(found, **{part.field: True}).whose
    whole = recognise(whose, node, options.node_ports)
    more = {name: getattr(whole, name) for name in _OF_PARTS}
    if all(getattr(found, name) == value for name, value in more.items()):
        return found
    why = ""
    if not await _has_written(part.controller, settings.state_dir):
        why = NOT_WRITTEN
    elif not options.force and (sign := at_work()):
        why = f"its {part.name} seems to run ({sign}): end it, and run this again, or with --force"
    if why:
        return msgspec.structs.replace(found, stays=(*found.stays, f"{found.proxy}'s {part.things} stay: {why}"))
    return msgspec.structs.replace(found, **more, **{part.field: True})


class _Statistics(msgspec.Struct):
    """What is read of an agent's statistics (`kroute.telemetry.statistics`)."""

    controllers: dict[str, ControllerStatistics]


async def _has_written(controller: str, state_dir: Path) -> bool:
    """Whether an agent answers whose controller of this name has written what it should."""
    try:
        found = await ask_for(state_dir, QUESTION, partial(msgspec.json.decode, type=_Statistics))
    except AgentUnreachableError:
        return False
    asked = found.controllers.get(controller)
    return asked is not None and asked.last_success > 0 and not asked.failing_for


async def take_over(proxy: OtherProxy, settings: Settings, options: TakeOverOptions) -> Outcome:
    """Perform the step that is due, beside an agent the second one.

    Raises RefusalError, KernelError, LedgerError or StateDirectoryError.
    """
    try:
        with StateDirectory.claim(settings.state_dir):
            return await _adopt(proxy, settings, options)
    except StateDirectoryInUseError:
        await _wait_for_agent(settings, options)
        if not options.force:
            await _refuse_if_it_runs(proxy, look_at_ports=False)
        return await _remove(proxy, settings, options)


async def _adopt(proxy: OtherProxy, settings: Settings, options: TakeOverOptions) -> Outcome:
    """Perform the first step."""
    if not options.force:
        await _refuse_if_it_runs(proxy, look_at_ports=True)
    leftovers = await look(proxy, settings, options)
    if leftovers.are_removed:
        return Outcome([], [], f"nothing of {proxy.name}'s is here: start kroute", leftovers.warnings)
    ledger = Ledger.open(settings.state_dir)
    done = await adopt(leftovers, ledger, settings.dummy_interface)
    ledger.close()
    next_step = f"start kroute, and run this again to remove the rest of {proxy.name}'s"
    return Outcome(done, [], next_step, leftovers.warnings)


async def adopt(leftovers: Leftovers, ledger: Ledger, dummy_interface: str) -> list[str]:
    """Make the other proxy's virtual servers kroute's, and its link if kroute uses one of this name.

    Returns what was done. Raises LedgerError, or KernelError for a route that cannot be adopted.
    """
    links = [dummy_interface] if leftovers.link == dummy_interface else []
    ledger.adopt([*ledger.virtual_servers, *leftovers.to_adopt], {*ledger.links, *links})
    done = [f"adopt virtual server {key}" for key in leftovers.to_adopt]
    for link in links:
        done += [f"adopt link {link} with {len(leftovers.addresses)} addresses", *await _adopt_routes(link)]
    return done


async def _adopt_routes(link: str) -> list[str]:
    """Set kroute's protocol on the IPv6 source routes of the link: by it kroute tells its routes from the kernel's."""
    async with Routes() as routes:
        found = await routes.read(link)
        sources = [(address, route.source) for address, on_link in sorted(found.items()) for route in on_link]
        changes = [SetLocalRoute(address, source) for address, source in sources if source and ":" in address]
        failures = await routes.write(link, changes)
    if failures:
        raise KernelError(f"{failures[0]}; run this again")
    return [f"adopt the source route of {change.address}" for change in changes]


async def _remove(proxy: OtherProxy, settings: Settings, options: TakeOverOptions) -> Outcome:
    """Remove the other proxy's objects beside an agent that is ready. Raises RefusalError, KernelError, LedgerError."""
    leftovers = await look(proxy, settings, options)
    early = [line for line in leftovers.warnings if line.endswith(NOT_WRITTEN)]
    if leftovers.are_removed:
        return _outcome(leftovers, [], early)
    if leftovers.to_adopt:
        raise RefusalError(
            f"{len(leftovers.to_adopt)} virtual servers still belong to {proxy.name} ({leftovers.to_adopt[0]}): "
            "stop kroute's agent (what it serves stays served), run this again, start the agent, and run this once more"
        )
    if leftovers.only_there and not options.force:
        raise RefusalError(
            f"{len(leftovers.only_there)} addresses that are served are on no interface but {leftovers.link} "
            f"({leftovers.only_there[0]}): see in the agent's log why it has not bound them"
        )
    report = await remove(leftovers)
    report.add(failed=early)
    after = await look(proxy, settings, options)
    if not report.failed and not after.are_removed:
        raise RefusalError(
            f"what was removed came back: {proxy.name} still runs where kroute cannot see it. "
            "Stop it, and run this again"
        )
    return _outcome(after, report.undone, report.failed)


def _outcome(after: Leftovers, done: list[str], failed: list[str]) -> Outcome:
    next_step = f"nothing {'else ' if after.stays else ''}of {after.proxy}'s is left"
    if failed:
        next_step = f"correct what failed, and run this again: {after.proxy}'s rest is still here"
    return Outcome(done, failed, next_step, [line for line in after.warnings if line not in failed])


_TRANSLATES = (
    "it has ended, but its legacy iptables rules translate packets before IPVS, and only an image with the iptables "
    "tools can remove them: docs/deploy.md"
)


class TakeOver:
    """Both steps, for an agent whose turn has come. `names` are the proxies that have ended.

    The ledger records the first step before it begins and the end of the second, so that an agent that is killed in
    between finishes the take-over at its next start.
    """

    def __init__(self, settings: Settings, names: Collection[str], ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger
        self._proxies = [OTHER_PROXIES[name] for name in sorted(names)]

    async def hindrance(self) -> Sign | None:
        """Rules of a proxy that would translate packets before IPVS sees them, and cannot be removed; else None."""
        for proxy in self._proxies:
            try:
                leftovers = await look(proxy, self._settings, DEFAULTS)
                why = _TRANSLATES if leftovers.may_translate_first else ""
            except KernelError as error:
                why = f"it has ended, and what it left cannot be read: {error}"
            if why:
                return Sign(proxy.name, why, is_at_work=False)
        return None

    async def adopt(self) -> None:
        """Adopt what they serve, and say what cannot be seen. Raises as the function `adopt` does."""
        for proxy in self._proxies:
            leftovers = await look(proxy, self._settings, DEFAULTS)
            for line in leftovers.warnings:
                if not line.endswith(NOT_WRITTEN):  # they are written when kroute serves
                    log.warning("take_over.incomplete", proxy=proxy.name, what=line)
            if not leftovers.are_removed:
                self._ledger.record([TakeOverBegun(proxy.name)])
                done = await adopt(leftovers, self._ledger, self._settings.dummy_interface)
                log.info("take_over.adopted", proxy=proxy.name, objects=len(done))

    async def remove(self) -> None:
        """Remove what is left of them, once kroute serves. What cannot be removed is tried again, until cancelled."""
        backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        rest, said = self._proxies, set[str]()
        while rest:
            reasons = [(proxy, await self._removed(proxy)) for proxy in rest]
            for proxy, reason in reasons:
                if reason and reason not in said:
                    said.add(reason)
                    log.warning("take_over.unfinished", proxy=proxy.name, reason=reason, next_step="trying again")
            if rest := [proxy for proxy, reason in reasons if reason]:
                await asyncio.sleep(backoff.delay())

    async def _removed(self, proxy: OtherProxy) -> str:
        """Remove what is left of one proxy. Returns why something stays, or an empty text."""
        try:
            outcome = await _remove(proxy, self._settings, DEFAULTS)
            if not outcome.failed and proxy.name in self._ledger.take_overs:
                self._ledger.record([TakeOverDone(proxy.name)])
        except (RefusalError, KernelError, LedgerError) as error:
            return str(error)
        for line in outcome.done:
            log.info("take_over.removed", proxy=proxy.name, what=line)
        return "; ".join(outcome.failed)


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
    """Refuse by the proxy's signs. Beside an agent, which may have kube-proxy's ports, only processes count."""
    ours = () if look_at_ports else {listener.port for listener in LISTENERS}
    if why := ", ".join(sign.why for sign in await signs_of_life(ours=ours) if sign.proxy == proxy.name):
        raise RefusalError(
            f"{proxy.name} still runs on this node ({why}): stop it first, what it made stays and goes on serving. "
            "If that is something else, say --force"
        )
